// Routed experts for given rows, in E2M1: tiles of pairs that chose one expert (group.cu). See tile_fp4.cuh for what is summed.
//
// Hidden rows stand in the order of tiles, rounded to E4M3 where they are made; the down product puts its rows back to their pairs.
#include "tile_fp4.cuh"

struct Tile {  // of group.cu
  int expert, first, count;
};

// Calls work<N>() with the fewest columns that hold so many tokens.
#define WITH_COLUMNS(count, work)                    \
  if ((count) <= TOKENS / 4) work(TOKENS / 4 / COLUMNS) \
  else if ((count) <= TOKENS / 2) work(TOKENS / 2 / COLUMNS) \
  else work(TOKENS / COLUMNS)

D int my_token(const Tile& tile) { return tile.first + min((int)threadIdx.x >> 2, tile.count - 1); }

#if PAIRED
constexpr int HIDDEN = ROWS / 2;  // of a block: a block of the rounding
static_assert(HIDDEN == 128, "a block rounds what it makes");

// Rounds hidden rows as act_quant of small.cu does: eight lanes a row, each with four values of each 32.
D void round_rows(const float* values, int count, u8* h, float* sh, i64 first, int block, int blocks) {
  const int part = lane_id() & 7;
  for (int begin = warp_id() * 4; begin < count; begin += WARPS * 4) {
    const int token = begin + (lane_id() >> 3);
    const uint4* from = (const uint4*)(values + token * (LEFT_ROW / 4)) + part;
    uint4 v[4];
    u32 largest[4] = {};  // of each 32
    UNROLL for (int i = 0; i < 4; i++) {
      v[i] = from[i * 8];
      UNROLL for (int j = 0; j < 4; j++) largest[i] = max(largest[i], word(v[i], j) & 0x7FFFFFFFu);
    }
    if (SCALES == 1) largest[0] = max(max(largest[0], largest[1]), max(largest[2], largest[3]));
    u32 e[SCALES];
    UNROLL for (int i = 0; i < SCALES; i++) e[i] = scale_of(lanes_max(largest[i], 4), FP8_FLOOR, 1.f / 448);
    if (token >= count) continue;
    const i64 at = (first + token) * blocks + block;
    UNROLL for (int i = 0; i < 4; i++) {
      const u32 its = e[i % SCALES];
      u32 bytes = 0;
      UNROLL for (int j = 0; j < 4; j++) bytes |= to_e4m3(__uint_as_float(word(v[i], j)) * inverse(its)) << 8 * j;
      ((u32*)(h + at * 128))[i * 8 + part] = its == 255 ? 0 : bytes;
      if (part == 0 && i < SCALES) sh[at * SCALES + i] = __uint_as_float(its == 255 ? 0x7FC00000u : its << 23);
    }
  }
}

template <int N>
D void hidden(Rows& rows, const Quarter& now, const u8* x, const float* sx, int units, float limit, const float* route,
              Room& room) {
  Sums<N> total = {};
  product<N>(total, rows, now, x, sx, units, room);
  float* values = (float*)room.x;
  const float* factor = room.factor + warp_id() * 32;
  UNROLL for (int n = 0; n < N; n++)
    UNROLL for (int i = 0; i < RESULTS; i++) {
      const int token = n * COLUMNS + found_token(i), r = found_row(i);
      const float g = rounded(total[0][n][i] * factor[r]), u = rounded(total[1][n][i] * factor[16 + r]);
      // A comparison that a NaN fails keeps the NaN, as torch's clamp does; fminf would lose it.
      const float a = g > limit ? limit : g, b = u > limit ? limit : u < -limit ? -limit : u;
      values[token * (LEFT_ROW / 4) + warp_id() * 16 + r] = rounded(a * (1.f / (1.f + expf(-a))) * b * route[token]);
    }
  __syncthreads();
}

// gate, up [E, I, K / 2] with scales [E, I, K / 32]; x [M, K] E4M3 with sx [M, K / BLOCK]; route [M * slots]. h [P, I] E4M3
// with sh [P, I / BLOCK], in the order of tiles. Grid: I / 128, tiles that there can be.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    given_gate_up(const u8* gate, const u8* up, const u8* gate_scale, const u8* up_scale, const u8* x, const float* sx,
                  const float* route, const int* order, const Tile* tiles, const int* num_tiles, u8* h, float* sh, int K, int I,
                  int slots, float limit) {
  __shared__ Room room;
  __shared__ float routes[TOKENS];
  wait_for_previous();
  const Tile tile = tiles[blockIdx.y];
  if ((int)blockIdx.y >= *num_tiles) return;
  const int units = K / 128;
  const i64 row = (i64)tile.expert * I + blockIdx.x * HIDDEN + warp_id() * 16 + brought_row(0);
  Rows rows;
  rows.w[0] = gate + row * (K / 2);
  rows.w[1] = up + row * (K / 2);
  rows.scale[0] = gate_scale + row * (K / 32);
  rows.scale[1] = up_scale + row * (K / 32);
  Quarter now;
  ask(now, rows, 0, units);
  const int pair = order[my_token(tile)], token = pair / slots;
  if ((threadIdx.x & 3) == 0) routes[threadIdx.x >> 2] = route[pair];
  const u8* from = x + (i64)token * K + (threadIdx.x & 3) * 32;
  const float* scales = sx + (i64)token * units * SCALES + (threadIdx.x & SCALES - 1);
#define WORK(N) hidden<N>(rows, now, from, scales, units, limit, routes, room);
  WITH_COLUMNS(tile.count, WORK)
  round_rows((const float*)room.x, tile.count, h, sh, tile.first, blockIdx.x, I / 128);
}
#else
constexpr int AT_ONCE = TOKENS * 2 / (int)sizeof(Out), LEFT = ROWS + 16 / (int)sizeof(Out);  // tokens whose results fit; one's
static_assert(AT_ONCE * LEFT * sizeof(Out) <= sizeof(Room::x), "results have room");
D void put(u16* p, float v) { *p = to_bf16(v); }
D void put(float* p, float v) { *p = v; }

template <int N>
D void down(Rows& rows, const Quarter& now, const u8* x, const float* sx, int units, const int* pairs, int count, Out* d,
            int columns, int outputs, Room& room) {
  Sums<N> total = {};
  product<N>(total, rows, now, x, sx, units, room);
  Out* values = (Out*)room.x;
  const float* factor = room.factor + warp_id() * 32;
  UNROLL for (int begin = 0; begin < N * COLUMNS; begin += AT_ONCE) {
    UNROLL for (int n = 0; n < N; n++)
      if (n * COLUMNS / AT_ONCE * AT_ONCE == begin)
        UNROLL for (int t = 0; t < TILES; t++)
          UNROLL for (int i = 0; i < RESULTS; i++) {
            const int r = t * 16 + found_row(i);
            put(values + (n * COLUMNS - begin + found_token(i)) * LEFT + warp_id() * 32 + r, total[t][n][i] * factor[r]);
          }
    __syncthreads();
    for (int token = begin + warp_id(); token < min(count, begin + AT_ONCE); token += WARPS) {
      const uint4* from = (const uint4*)(values + (token - begin) * LEFT);
      uint4* to = (uint4*)(d + (i64)pairs[token] * columns);
      for (int i = lane_id(); i < outputs * (int)sizeof(Out) / 16; i += 32) to[i] = from[i];
    }
    __syncthreads();
  }
}

// w [E, N, K / 2] with scales [E, N, K / 32]; h [P, K] E4M3 with sh [P, K / BLOCK], in the order of tiles. d [P, columns]: of each
// pair rows first .. first + columns of w, a multiple of 128. Grid: columns / 256, rounded up, tiles that there can be.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    given_down(const u8* w, const u8* ws, const u8* h, const float* sh, const int* order, const Tile* tiles, const int* num_tiles,
               Out* d, int K, int N, int first, int columns) {
  __shared__ Room room;
  __shared__ int pairs[TOKENS];
  wait_for_previous();
  const Tile tile = tiles[blockIdx.y];
  if ((int)blockIdx.y >= *num_tiles) return;
  const int units = K / 128, begin = blockIdx.x * ROWS, outputs = min(columns - begin, ROWS);
  const int mine = warp_id() * 32 < outputs ? warp_id() * 32 : 0;  // those behind the last repeat the first, and are dropped
  const i64 at = my_token(tile), row = (i64)tile.expert * N + first + begin + mine + brought_row(0);
  Rows rows;
  UNROLL for (int t = 0; t < TILES; t++) {
    rows.w[t] = w + (row + t * 16) * (K / 2);
    rows.scale[t] = ws + (row + t * 16) * (K / 32);
  }
  Quarter now;
  ask(now, rows, 0, units);
  if ((threadIdx.x & 3) == 0) pairs[threadIdx.x >> 2] = order[at];
  const u8* from = h + at * K + (threadIdx.x & 3) * 32;
  const float* scales = sh + at * units * SCALES + (threadIdx.x & SCALES - 1);
#define WORK(N) down<N>(rows, now, from, scales, units, pairs, tile.count, d + begin, columns, outputs, room);
  WITH_COLUMNS(tile.count, WORK)
}
#endif
