// Routed experts for the rows of a step, in E2M1. See walk.cuh for what is summed and in which order.
//
// A pair is a token with one of its slots; pairs P = M * slots. Row y of the grid stands for pair y: it works only if no earlier
// pair has chosen the same expert, and then serves every pair of that expert, ascending, so that weights leave memory once. Of an
// expert of many pairs the first SHARES rows share the tiles: it may be one of few, and then there are too few blocks.
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
constexpr int SHARES = 2;
struct Served {
  int count;
  i64 expert;
  int pair[MOST];
};

// Every warp fills a copy of its own. The number of earlier pairs of this block's expert. Read past L1, which may be older than the
// ids where nobody has waited yet; and all at once, since each wait is a tenth of what a block takes.
D int serves(const i64* ids, int pairs, Served& served) {
  constexpr int SEEN = 4;  // rounds of 32 pairs
  const int mine = blockIdx.y;
  const i64 expert = __ldcg(ids + mine);
  int found = 0, earlier = 0;
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
      found += __popc(who);
      earlier += __popc(__ballot_sync(~0u, same && begin + lane_id() < mine));
    }
  }
  if (lane_id() == 0) {
    served.count = min(found, MOST);
    served.expert = expert;
  }
  __syncwarp();
  return earlier;
}
// Rows [begin, end) of `rows` are this block's: `tiles` times BLOCK_ROWS, or a share of them. False if there are none.
D bool share(const Served& served, int earlier, int tiles, int rows, int& begin, int& end) {
  begin = blockIdx.x * tiles * BLOCK_ROWS;
  end = min(begin + tiles * BLOCK_ROWS, rows);
  if (TOKEN_TILES == 1 || served.count <= 2) return earlier == 0;
  const int each = (tiles + SHARES - 1) / SHARES * BLOCK_ROWS;
  begin += earlier * each;
  end = min(begin + each, end);
  return earlier < SHARES && begin < end;
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

// Rows [begin, end) with `count` tokens, by a walk for N pairs of them. result(sums, n0, r, n): of row n0 + r and token n.
template <int N, class Result>
D void sum_rows(Flow& flow, const Operands& o, Staged& staged, Sums (*sums)[WARPS], int& turn, int begin, int end, int count, Result result) {
  flow.stage<N>(o, staged);
  for (int n0 = begin; n0 < end; n0 += BLOCK_ROWS, turn ^= 1) {
    flow.sum<N>(staged, sums[turn]);
    for (int i = threadIdx.x; i < BLOCK_ROWS * count; i += THREADS) result(sums[turn], n0, i % BLOCK_ROWS, i / BLOCK_ROWS);
  }
}
// Apart, so that one or two tokens pay nothing for what more of them need.
template <class Result>
D void sum_rows(Flow& flow, const Operands& o, Staged& staged, Sums (*sums)[WARPS], int& turn, int begin, int end, int count, Result result) {
  if (TOKEN_TILES > 1 && count > 2) sum_rows<TOKEN_TILES>(flow, o, staged, sums, turn, begin, end, count, result);
  else sum_rows<1>(flow, o, staged, sums, turn, begin, end, count, result);
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
  int begin, end;
  if (!share(served, serves(ids, pairs, served), tiles, I, begin, end)) return;
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
    const int count = min(TOKENS, served.count - base);
    aim(o, served, base, x, sx, slots);
    flow.begin(o, (end - begin) / BLOCK_ROWS);
    sum_rows(flow, o, staged[warp_id()], sums, turn, begin, end, count, [&](const Sums* found, int n0, int r, int n) {
      const int pair = served.pair[base + n];
      const float g = rounded(over_slices(found, r / 16, r % 16, n));
      const float u = rounded(over_slices(found, r / 16, 16 + r % 16, n));
      // A comparison that a NaN fails keeps the NaN, as torch's clamp does; fminf would lose it.
      const float a = g > limit ? limit : g, b = u > limit ? limit : u < -limit ? -limit : u;
      h[(i64)pair * I + n0 + r] = rounded(a * (1.f / (1.f + expf(-a))) * b * route[pair]);
    });
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
  int begin, end;
  // The ids are older than the kernel before, which makes or rounds x.
  if (!share(served, serves(ids, pairs, served), tiles, N, begin, end)) return;
  const i64 row = served.expert * N + begin + my_row();
  Operands o;
  o.w[0] = w + row * ROW_BYTES + my_k() / 2 + 16 * lane_quarter();
  o.ws[0] = ws + row * SCALE_ROW + my_k() / 32;
  Flow flow;
  int turn = 0;
  for (int base = 0; base < served.count; base += TOKENS) {
    const int count = min(TOKENS, served.count - base);
    aim(o, served, base, x, sx, 1);
    flow.begin(o, (end - begin) / BLOCK_ROWS);
    if (base == 0) wait_for_previous();
    sum_rows(flow, o, staged[warp_id()], sums, turn, begin, end, count, [&](const Sums* found, int n0, int r, int n) {
      d[(i64)served.pair[base + n] * N + n0 + r] = rounded(over_slices(found, r / (16 * TILES), r % (16 * TILES), n));
    });
  }
}
#endif
