// Routed experts for the rows of a step, in E2M1. See walk.cuh for what is summed and in which order.
//
// A pair is a token with one of its slots; pairs P = M * slots. Row y of the grid stands for pair y: it works only if no earlier
// pair has chosen the same expert, and then serves every pair of that expert, ascending, so that weights leave memory once.
#include "flow.cuh"

// Where the official numerics round to bf16, if they do (BOUNDARY_BF16).
D float rounded(float v) {
#if BOUNDARY_BF16
  return from_bf16(to_bf16(v));
#else
  return v;
#endif
}

constexpr int MOST = 16;  // rows of a call, each of which chooses an expert once at most; the launcher holds it
struct Served {
  int count;
  i64 expert;
  int pair[MOST];
};

// Every warp fills a copy of its own. True if this block works. Read past L1, which may be older than the ids where nobody has
// waited yet; and all at once, since each wait is a tenth of what a block takes.
D bool serves(const i64* ids, int pairs, Served& served) {
  constexpr int SEEN = 4;  // rounds of 32 pairs
  const int mine = blockIdx.y;
  const i64 expert = __ldcg(ids + mine);
  int found = 0;
  bool first = true;
  for (int at = 0; at < pairs; at += 32 * SEEN) {
    i64 some[SEEN];
    UNROLL for (int i = 0; i < SEEN; i++) {
      const int pair = at + 32 * i + lane_id();
      some[i] = pair < pairs ? __ldcg(ids + pair) : -1;
    }
    UNROLL for (int i = 0; i < SEEN; i++) {
      const int begin = at + 32 * i;
      const bool same = some[i] == expert;
      const u32 who = __ballot_sync(~0u, same);
      if (same) served.pair[min(found + __popc(who & ((1u << lane_id()) - 1)), MOST - 1)] = begin + lane_id();
      if (found == 0 && who && begin + __ffs(who) - 1 < mine) first = false;
      found += __popc(who);
    }
  }
  if (lane_id() == 0) {
    served.count = min(found, MOST);
    served.expert = expert;
  }
  __syncwarp();
  return first;
}
// `rows`: pairs that share one row of x.
D void aim(Operands& o, const Served& served, int base, const u8* x, const float* sx, int rows) {
  UNROLL for (int n = 0; n < TOKEN_TILES; n++) {
    const int row = served.pair[min(base + my_token(n), served.count - 1)] / rows;
    o.x[n] = x + ((i64)row * K + my_k() + LOADED * lane_quarter()) * (ROUNDS ? 4 : 1);
    UNROLL for (int j = 0; j < X_SCALES; j++) {
      const int its = served.pair[min(base + token_of_scale(n, j), served.count - 1)] / rows;
      o.sx[n][j] = sx + its * (K / BLOCK) + my_k() / BLOCK + first_scale(j);
    }
  }
}

#if PAIRED
// gate, up [E, I, K / 2] with scales [E, I, K / 32]; x [M, K] E4M3 with sx [M, K / BLOCK]; ids, route [M, slots].
// h [P, I] = silu(min(g, limit)) * clamp(u, +-limit) * route. A block has `tiles` times BLOCK_ROWS of I.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    step_gate_up(const u8* __restrict__ gate, const u8* __restrict__ up, const u8* __restrict__ gate_scale,
                 const u8* __restrict__ up_scale, const u8* x, const float* sx, const i64* ids, const float* route, float* h,
                 int pairs, int slots, int I, int tiles, float limit) {
  __shared__ Sums sums[2][WARPS];
  __shared__ Served all[WARPS];
  __shared__ Staged staged[WARPS];
  Served& served = all[warp_id()];
  wait_for_previous();  // x comes rounded, so the kernel before may be the one that chose the ids
  if (!serves(ids, pairs, served)) return;
  const int begin = blockIdx.x * tiles * BLOCK_ROWS, end = min(begin + tiles * BLOCK_ROWS, I);
  const i64 row = served.expert * I + begin + my_row();
  const i64 at = row * ROW_BYTES + my_k() / 2 + 16 * lane_quarter(), scale_at = row * SCALE_ROW + my_k() / 32;
  Operands o;
  o.w[0] = gate + at;
  o.w[1] = up + at;
  o.ws[0] = gate_scale + scale_at;
  o.ws[1] = up_scale + scale_at;
  Flow flow;
  int turn = 0;
  for (int base = 0; base < served.count; base += TOKENS) {
    aim(o, served, base, x, sx, slots);
    flow.begin(o, (end - begin) / BLOCK_ROWS);
    flow.stage(o, staged[warp_id()]);
    for (int n0 = begin; n0 < end; n0 += BLOCK_ROWS, turn ^= 1) {
      flow.sum(o, staged[warp_id()], sums[turn]);
      for (int i = threadIdx.x; i < BLOCK_ROWS * min(TOKENS, served.count - base); i += THREADS) {
        const int n = i / BLOCK_ROWS, r = i % BLOCK_ROWS, pair = served.pair[base + n];
        const float g = rounded(over_slices(sums[turn], r / 16, r % 16, n));
        const float u = rounded(over_slices(sums[turn], r / 16, 16 + r % 16, n));
        // A comparison that a NaN fails keeps the NaN, as torch's clamp does; fminf would lose it.
        const float a = g > limit ? limit : g, b = u > limit ? limit : u < -limit ? -limit : u;
        h[(i64)pair * I + n0 + r] = rounded(a * (1.f / (1.f + expf(-a))) * b * route[pair]);
      }
    }
  }
}
#else
// w [E, N, K / 2] with scales [E, N, K / 32]; x [P, K] E4M3 with sx [P, K / BLOCK], of ROUNDS float32 and no sx. d [P, N]: a row for
// each pair. A block has `tiles` times BLOCK_ROWS of N.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    step_down(const u8* __restrict__ w, const u8* __restrict__ ws, const u8* x, const float* sx, const i64* ids, float* d, int pairs,
              int N, int tiles) {
  __shared__ Sums sums[2][WARPS];
  __shared__ Served all[WARPS];
  __shared__ Staged staged[WARPS];
  Served& served = all[warp_id()];
  if (!serves(ids, pairs, served)) return;  // the ids are older than the kernel before, which makes or rounds x
  const int begin = blockIdx.x * tiles * BLOCK_ROWS, end = min(begin + tiles * BLOCK_ROWS, N);
  const i64 row = served.expert * N + begin + my_row();
  Operands o;
  o.w[0] = w + row * ROW_BYTES + my_k() / 2 + 16 * lane_quarter();
  o.ws[0] = ws + row * SCALE_ROW + my_k() / 32;
  Flow flow;
  int turn = 0;
  for (int base = 0; base < served.count; base += TOKENS) {
    aim(o, served, base, x, sx, 1);
    flow.begin(o, (end - begin) / BLOCK_ROWS);
    if (base == 0) wait_for_previous();
    flow.stage(o, staged[warp_id()]);
    for (int n0 = begin; n0 < end; n0 += BLOCK_ROWS, turn ^= 1) {
      flow.sum(o, staged[warp_id()], sums[turn]);
      for (int i = threadIdx.x; i < BLOCK_ROWS * min(TOKENS, served.count - base); i += THREADS) {
        const int n = i / BLOCK_ROWS, r = i % BLOCK_ROWS;
        d[(i64)served.pair[base + n] * N + n0 + r] = rounded(over_slices(sums[turn], r / (16 * TILES), r % (16 * TILES), n));
      }
    }
  }
}
#endif
