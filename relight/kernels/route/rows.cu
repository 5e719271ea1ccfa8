// Experts of each row, one warp a row: scores, the K best or a table's, and their weights.
//
// HASHED: 1 by a table of the token, 0 the K largest of score + bias, ties to the lowest id, NaN above all.
#include "values.cuh"

constexpr int OWN = EXPERTS / 32;
static_assert(EXPERTS % 32 == 0 && K <= 32, "lanes share experts evenly, and each holds one that is chosen");

D float score_of(float logit) {  // sqrt(softplus)
  const float positive = logit < 0.f ? 0.f : logit;  // keeps NaN
  return sqrtf(add(positive, log1pf(expf(-fabsf(logit)))));
}
D u32 rank_of(float v) {  // ascends with v; both zeros are one
  const u32 b = __float_as_uint(v == 0.f ? 0.f : v);
  return (b & 0x7FFFFFFFu) > 0x7F800000u ? 0xFFFFFFFFu : b >> 31 ? ~b : b | 0x80000000u;
}

// logits [n, EXPERTS] -> ids [n, K] ascending and weights [n, K]: scores by their sum, added in that order, times `scale`.
extern "C" __global__ void __launch_bounds__(32)
    route(const float* logits, const float* bias, const i64* table, const i64* tokens, float scale, i64* ids, float* weights) {
  const i64 row = blockIdx.x;
  const int lane = lane_id();
  wait_for_previous();
  logits += row * EXPERTS;
  int chosen = EXPERTS;  // of lane k < K
#if HASHED
  if (lane < K) chosen = (int)table[tokens[row] * K + lane];
#else
  u32 ranks[OWN];
  UNROLL for (int i = 0; i < OWN; i++) ranks[i] = rank_of(add(score_of(logits[i * 32 + lane]), bias[i * 32 + lane]));
  u32 taken = 0;
  for (int k = 0; k < K; k++) {
    u32 best = 0;
    int at = EXPERTS;
    UNROLL for (int i = 0; i < OWN; i++)
      if (!(taken >> i & 1) && (ranks[i] > best || at == EXPERTS)) {
        best = ranks[i];
        at = i * 32 + lane;
      }
    const u32 most = lanes_max(best, 16);
    const int first = EXPERTS - (int)lanes_max(best == most && at < EXPERTS ? EXPERTS - at : 0, 16);
    if (first % 32 == lane) taken |= 1u << first / 32;
    if (lane == k) chosen = first;
  }
#endif
  // Ascending: a lane's place is how many are below it.
  int below = 0;
  for (int k = 0; k < K; k++) below += __shfl_sync(~0u, chosen, k) < chosen;
  const float score = lane < K ? score_of(logits[chosen]) : 0.f;
  float own = 0.f, total = 0.f;
  int id = 0;
  for (int k = 0; k < K; k++) {  // k-th smallest
    const u32 who = __ballot_sync(~0u, lane < K && below == k);
    const float next = __shfl_sync(~0u, score, __ffs(who) - 1);
    const int its = __shfl_sync(~0u, chosen, __ffs(who) - 1);
    total = k ? add(total, next) : next;
    if (lane == k) {
      own = next;
      id = its;
    }
  }
  if (lane < K) {
    ids[row * K + lane] = id;
    weights[row * K + lane] = mul(__fdiv_rn(own, total), scale);
  }
}
