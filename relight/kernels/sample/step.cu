// One token for each row of logits: the largest, or of rows with a temperature the largest of scaled logit + noise.
//
// A row is cut into SPLITS spans. What is compared are ranks, integers in the order of values, and of equals the lowest token is
// taken, so no order of comparing matters. The noise is a hash of (seed, choice, position, token), as in the definition.
#include "values.cuh"
typedef unsigned long long u64;

constexpr int SPLITS = 128, THREADS = 256;
constexpr int OWN = 4;  // tokens of a thread whose noise is made before the largest logit is known: all of 131,072

D u32 rank_of(float v) {  // ascends with v; both zeros are one, NaN is above all
  const u32 b = __float_as_uint(v == 0.f ? 0.f : v);
  return (b & 0x7FFFFFFFu) > 0x7F800000u ? 0xFFFFFFFFu : b >> 31 ? ~b : b | 0x80000000u;
}
D float of_rank(u32 rank) { return __uint_as_float(rank >> 31 ? rank & 0x7FFFFFFFu : ~rank); }
D bool is_number(u32 rank) { return rank > 0x007FFFFFu && rank < 0xFF800000u; }  // between the infinities

struct Best {
  u32 rank;
  int token;
};
D Best better(Best a, Best b) { return b.rank > a.rank || (b.rank == a.rank && b.token < a.token) ? b : a; }
D Best lanes_best(Best best) {
  UNROLL for (int apart = 16; apart; apart >>= 1)
    best = better(best, {__shfl_xor_sync(~0u, best.rank, apart), __shfl_xor_sync(~0u, best.token, apart)});
  return best;
}
D Best read_best(const u32* ranks, const int* tokens, i64 row) {
  Best best[SPLITS / 32];
  UNROLL for (int i = 0; i < SPLITS / 32; i++) {
    const i64 at = row * SPLITS + 32 * i + lane_id();
    best[i] = {ranks[at], tokens[at]};
  }
  UNROLL for (int i = 1; i < SPLITS / 32; i++) best[0] = better(best[0], best[i]);
  return lanes_best(best[0]);
}
// Of what each thread found, into ranks and tokens [n, SPLITS].
D void write_best(Best best, u32* ranks, int* tokens) {
  __shared__ Best of_warps[THREADS / 32];
  best = lanes_best(best);
  if (lane_id() == 0) of_warps[warp_id()] = best;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < THREADS / 32; w++) best = better(best, of_warps[w]);
    ranks[(i64)blockIdx.y * SPLITS + blockIdx.x] = best.rank;
    tokens[(i64)blockIdx.y * SPLITS + blockIdx.x] = best.token;
  }
}
D int span_of(int vocab) { return (vocab + SPLITS - 1) / SPLITS; }

D i64 mixed(u64 x) {  // SplitMix64's
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return (i64)(x ^ x >> 31);
}
D float gumbel(i64 key, int token) {
  const u64 high = (u64)mixed((u64)key + (u64)token) >> 24;  // 40 bits
  const float v = fminf(mul(add((float)(i64)high, 0.5f), 9.094947017729282e-13f), 1.f - 5.9604644775390625e-8f);
  return -logf(-log1pf(-v));
}

// logits [n, vocab] -> the best of each span. Grid: SPLITS, n; here and below.
extern "C" __global__ void __launch_bounds__(THREADS) largest_parts(const float* logits, u32* ranks, int* tokens, int vocab) {
  const float* row = logits + (i64)blockIdx.y * vocab;
  const int from = blockIdx.x * span_of(vocab), to = min(from + span_of(vocab), vocab);
  wait_for_previous();
  Best best = {0, vocab};
  _Pragma("unroll 4") for (int t = from + threadIdx.x; t < to; t += THREADS) best = better(best, {rank_of(row[t]), t});
  write_best(best, ranks, tokens);
}

// The same of scaled logits with noise, of rows with a temperature whose largest logit is a number.
extern "C" __global__ void __launch_bounds__(THREADS)
    drawn_parts(const float* logits, const u32* ranks, const int* tokens, const float* temperature, const float* min_p,
                const i64* seed, const i64* choice, const i64* position, u32* drawn_ranks, int* drawn_tokens, int vocab) {
  const i64 r = blockIdx.y;
  const float* row = logits + r * vocab;
  const int from = blockIdx.x * span_of(vocab), to = min(from + span_of(vocab), vocab);
  // All but the best of spans is older than the kernel before.
  const float t_row = __ldcg(temperature + r), least = __ldcg(min_p + r);
  const i64 key = mixed((u64)mixed((u64)mixed((u64)__ldcg(seed + r)) + (u64)__ldcg(choice + r)) + (u64)__ldcg(position + r));
  float logit[OWN], noise[OWN];
  if (t_row > 0.f)
    UNROLL for (int i = 0; i < OWN; i++) {
      const int t = from + threadIdx.x + i * THREADS;
      logit[i] = t < to ? __ldcg(row + t) : 0.f;
      noise[i] = gumbel(key, t);
    }
  wait_for_previous();
  const u32 most = read_best(ranks, tokens, r).rank;
  if (!(t_row > 0.f) || !is_number(most)) return;
  const float largest = of_rank(most);
  Best best = {0, vocab};
  auto draw = [&](float own, float with, int t) {
    const float scaled = __fdiv_rn(add(own, -largest), t_row);
    const float kept = expf(scaled) < least ? __uint_as_float(0xFF800000u) : scaled;
    best = better(best, {rank_of(add(kept, with)), t});
  };
  UNROLL for (int i = 0; i < OWN; i++) {
    const int t = from + threadIdx.x + i * THREADS;
    if (t < to) draw(logit[i], noise[i], t);
  }
  for (int t = from + threadIdx.x + OWN * THREADS; t < to; t += THREADS) draw(row[t], gumbel(key, t), t);
  write_best(best, drawn_ranks, drawn_tokens);
}

// A warp a row: the token, or -1 where the largest logit is no number.
extern "C" __global__ void __launch_bounds__(32)
    choose(const u32* ranks, const int* tokens, const u32* drawn_ranks, const int* drawn_tokens, const float* temperature,
           i64* found) {
  const i64 r = blockIdx.x;
  const bool draws = __ldcg(temperature + r) > 0.f;
  wait_for_previous();
  Best best = read_best(ranks, tokens, r);
  const bool valid = is_number(best.rank);
  if (draws) best = read_best(drawn_ranks, drawn_tokens, r);  // of no meaning where it is not valid
  if (lane_id() == 0) found[r] = valid ? best.token : -1;
}
