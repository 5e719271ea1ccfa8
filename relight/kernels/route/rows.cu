// Experts of each row, one block a row: scores, the K best or a table's, and their weights.
//
// HASHED: 1 by a table of the token, 0 the K largest of score + bias, ties to the lowest id, NaN above all.
#include "values.cuh"

constexpr int OWN = EXPERTS / 32;
constexpr int THREADS = HASHED ? 32 : EXPERTS;
static_assert(EXPERTS % 32 == 0 && EXPERTS <= 1024 && K <= 32, "lanes share experts evenly, and each holds one that is chosen");

D float score_of(float logit) {  // sqrt(softplus)
  const float positive = logit < 0.f ? 0.f : logit;  // keeps NaN
  return sqrtf(add(positive, log1pf(expf(-fabsf(logit)))));
}
D u32 rank_of(float v) {  // ascends with v; both zeros are one
  const u32 b = __float_as_uint(v == 0.f ? 0.f : v);
  return (b & 0x7FFFFFFFu) > 0x7F800000u ? 0xFFFFFFFFu : b >> 31 ? ~b : b | 0x80000000u;
}

// The K best experts, of lane k the k-th: threads have an expert each, then lanes of the first warp those of a residue. Other
// warps get nothing.
D int best_of(u32 rank) {
  __shared__ u32 ranks[EXPERTS];
  ranks[threadIdx.x] = rank;
  __syncthreads();
  if (warp_id()) return EXPERTS;
  const int lane = lane_id();
  int chosen = EXPERTS;
  u32 own[OWN];
  UNROLL for (int i = 0; i < OWN; i++) own[i] = ranks[i * 32 + lane];
  UNROLL for (int k = 0; k < K; k++) {
    u32 best[OWN];
    int at[OWN];
    UNROLL for (int i = 0; i < OWN; i++) {
      best[i] = own[i];
      at[i] = i * 32 + lane;
    }
    UNROLL for (int apart = 1; apart < OWN; apart *= 2)  // of neighbours, so of equals the first wins
      UNROLL for (int i = 0; i + apart < OWN; i += 2 * apart)
        if (best[i + apart] > best[i]) {
          best[i] = best[i + apart];
          at[i] = at[i + apart];
        }
    const u32 most = warp_max(best[0]);
    const int first = EXPERTS - (int)warp_max(best[0] == most ? EXPERTS - at[0] : 0);
    UNROLL for (int i = 0; i < OWN; i++)
      if (i * 32 + lane == first) own[i] = 0;  // less than any rank
    if (lane == k) chosen = first;
  }
  return chosen;
}

// logits [n, EXPERTS] -> ids [n, K] ascending and weights [n, K]: scores by their sum, added in that order, times `scale`.
extern "C" __global__ void __launch_bounds__(THREADS)
    route(const float* logits, const float* bias, const i64* table, const i64* tokens, float scale, i64* ids, float* weights) {
  __shared__ float scores[HASHED ? 1 : EXPERTS], sorted[K];
  __shared__ int names[K];
  const i64 row = blockIdx.x;
  const int lane = lane_id();
  logits += row * EXPERTS;
#if HASHED
  wait_for_previous();
  const int chosen = lane < K ? (int)table[tokens[row] * K + lane] : EXPERTS;
  const float score = lane < K ? score_of(logits[chosen]) : 0.f;
#else
  const float offset = bias[threadIdx.x];  // a weight
  wait_for_previous();
  const float mine = score_of(logits[threadIdx.x]);
  scores[threadIdx.x] = mine;
  const int chosen = best_of(rank_of(add(mine, offset)));
  if (warp_id()) return;
  const float score = lane < K ? scores[chosen] : 0.f;
#endif
  // Ascending: a lane's place is how many are below it.
  int below = 0;
  UNROLL for (int k = 0; k < K; k++) below += __shfl_sync(~0u, chosen, k) < chosen;
  if (lane < K) {
    sorted[below] = score;
    names[below] = chosen;
  }
  __syncwarp();
  float total = sorted[0];
  UNROLL for (int k = 1; k < K; k++) total = add(total, sorted[k]);
  if (lane < K) {
    ids[row * K + lane] = names[lane];
    weights[row * K + lane] = mul(__fdiv_rn(sorted[lane], total), scale);
  }
}
