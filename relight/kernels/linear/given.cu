// y[m, n] = sum over k of w[n, k] * x[m, k], for given rows. See tile.cuh for what is summed and in which order.
#include "tile.cuh"

#if Y_BF16
typedef u16 Y;
D Y stored(float v) { return to_bf16(v); }
#else
typedef float Y;
D Y stored(float v) { return v; }
#endif
constexpr int PER = 16 / sizeof(Y), STRIDE = TILE_ROWS + PER;  // + PER: lanes that write at once write to different banks

// Blocks start in the order of their numbers, about one a processor at a time. Those of TOGETHER tiles of tokens take turns, so
// that 132 blocks read 8 tiles of tokens and 17 of weights: 25 MiB of E4M3 at K = 8192, which stay in an L2 of 50 MB, where a row
// of the grid would read 133.
constexpr int TOGETHER = 8;

// w [N, K] E4M3 with ws [ceil(N / BLOCK), K / BLOCK] UE8M0, or bf16. x [M, groups * K] of X_BYTES; E4M3 has sx [M, groups * K /
// BLOCK]. y [M, N], N a multiple of 8. Rows n of w make one group with group_rows rows before and after, whose input is its own K
// columns of x; a group is whole tiles, or there is one.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    given_linear(const u8* w, const u8* ws, const u8* x, const float* sx, Y* y, int M, int N, int K, int x_columns,
                 int group_rows) {
  const int row_tiles = (N + TILE_ROWS - 1) / TILE_ROWS, token_tiles = (M + TILE_TOKENS - 1) / TILE_TOKENS;
  const int first = blockIdx.x / (TOGETHER * row_tiles) * TOGETHER, among = blockIdx.x % (TOGETHER * row_tiles);
  const int together = min(TOGETHER, token_tiles - first);
  const int m0 = (first + among % together) * TILE_TOKENS, n0 = among / together * TILE_ROWS;
  const int at = n0 / group_rows * K;  // among the columns of x
  Tile tile;
  tile.rows = N - n0;
  tile.tokens = M - m0;
  tile.w_step = K / 8 * FORMAT;
  tile.x_step = x_columns * X_BYTES;
  tile.ws_step = K / BLOCK;
  tile.sx_step = x_columns / BLOCK;
  tile.w = w + (i64)n0 * tile.w_step;
  tile.x = x + (i64)m0 * tile.x_step + at * X_BYTES;
  tile.ws = ws + n0 / BLOCK * tile.ws_step;
  tile.sx = sx + (i64)m0 * tile.sx_step + at / BLOCK;
  wait_for_previous();
#if WARP_GROUPS && FORMAT == 8 && X_BYTES == 2  // the first unit is no addition
  Totals total;
#else
  Totals total = {};
#endif
  sum_tile(total, tile, K / UNIT);
  Y* out = (Y*)stages;
  each(total, [&](int row, int token, float sum) { out[token * STRIDE + row] = stored(sum); });
  __syncthreads();
  constexpr int WORDS = TILE_ROWS / PER;
  for (int i = threadIdx.x; i < TILE_TOKENS * WORDS; i += THREADS) {
    const int row = i % WORDS * PER, token = i / WORDS;
    if (token < tile.tokens && row < tile.rows)
      *(uint4*)(y + (i64)(m0 + token) * N + n0 + row) = *(const uint4*)(out + token * STRIDE + row);
  }
}
