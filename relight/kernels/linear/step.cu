// y[m, n] = sum over k of w[n, k] * x[m, k], for the rows of a step. See walk.cuh for what is summed and in which order.
#include "walk.cuh"

#if PEERS > 1
#define CLUSTERED __cluster_dims__(PEERS, 1, 1)
#else
#define CLUSTERED
#endif

#if Y_BF16
typedef u16 Y;
D Y stored(float v) { return to_bf16(v); }
#else
typedef float Y;
D Y stored(float v) { return v; }
#endif

// w [N, K] E4M3 with ws [ceil(N / BLOCK), K / BLOCK] UE8M0, or bf16. x [M, groups * K] of X_BYTES; E4M3 has sx [M, groups * K /
// BLOCK]; with ROUNDS x is bf16 and there is no sx.
// y [M, N]. Rows n of w make one group with group_rows rows before and after, whose input is its own K columns of x.
extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS, MIN_BLOCKS)
    step_linear(const u8* __restrict__ w, const u8* __restrict__ ws, const u8* x, const float* sx, Y* __restrict__ y, int M, int N,
                int x_columns, int group_rows) {
  __shared__ Sums sums[SLICES * ROW_WARPS];
  const int first = blockIdx.y * TOKENS, last = min(first + TOKENS, M) - 1;
  const int n0 = blockIdx.x / PEERS * BLOCK_ROWS, row = n0 + my_row(), at = n0 / group_rows * K + my_k();
  Operands o;
  o.w[0] = w + (i64)row * ROW_BYTES + my_k() * FORMAT / 8 + my_bytes();
  o.ws[0] = ws + row / BLOCK * (K / BLOCK) + my_k() / BLOCK;
  UNROLL for (int n = 0; n < TOKEN_TILES; n++) {
    o.x[n] = x + ((i64)min(first + my_token(n), last) * x_columns + at + my_x()) * CAME_BYTES;
    UNROLL for (int j = 0; j < X_SCALES; j++)
      o.sx[n][j] = sx + (i64)min(first + token_of_scale(n, j), last) * (x_columns / BLOCK) + at / BLOCK + first_scale(j);
  }
  walk(o, true, sums);
  constexpr int ROWS = SHARE * ROW_WARPS;
  for (int i = threadIdx.x; i < ROWS * (last - first + 1); i += THREADS) {
    const int r = i % ROWS, m = i / ROWS, tile = r / SHARE, at = n0 + tile * 16 * TILES + my_rank() * SHARE + r % SHARE;
    y[(i64)(first + m) * N + at] = stored(over_slices(sums, tile, r % SHARE, m));
  }
}
