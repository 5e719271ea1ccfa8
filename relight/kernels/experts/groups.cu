// Routed experts for given rows by warp groups: tiles of pairs that chose one expert (group.cu). See group_fp4.cuh for what is summed.
//
// Hidden rows stand in the order of tiles, as tokens lie for the next product; that puts its rows back to their pairs.
#include "group_fp4.cuh"
#include "values.cuh"

struct Tile {  // of group.cu
  int expert, first, count;
};
constexpr int LEFT_ROW = 528;  // bytes of a token among results: 128 floats or 256 bf16, and 16 so that banks differ

// Calls work<N>() with the fewest columns that hold so many tokens.
#define WITH_COLUMNS(count, work)     \
  if ((count) <= 16) work(2)          \
  else if ((count) <= 32) work(4)     \
  else if ((count) <= 64) work(8)     \
  else if ((count) <= 96) work(12)    \
  else work(16)

#if LAYS
// Codes [M, K] with scales [M, K / BLOCK] to values as group_fp4.cuh has them. A thread makes four chunks of a unit.
extern "C" __global__ void __launch_bounds__(256) lay(const u8* codes, const float* scales, uint4* to, int words) {
  const i64 at = (i64)blockIdx.x * 256 + threadIdx.x;
  wait_for_previous();
  if (at >= words) return;
  const int i = at & 3;
  const i64 unit = at >> 2;
  u32 chunks[4][4];
  UNROLL for (int q = 0; q < 4; q++) {
    const uint2 eight = *(const uint2*)(codes + unit * 128 + 32 * q + 8 * i);
    const u32 scale = __float_as_uint(scales[BLOCK == 32 ? unit * 4 + q : unit]) >> 16, by = scale | scale << 16;
    UNROLL for (int two = 0; two < 2; two++) {
      u32 p[2];
      e4m3(__byte_perm(eight.x, eight.y, two ? 0x7632 : 0x5410), p[0], p[1]);
      UNROLL for (int j = 0; j < 2; j++) chunks[2 * two + j][q] = raise_bf16(p[j], by);
    }
  }
  UNROLL for (int p = 0; p < 4; p++) to[unit * 16 + 4 * i + p] = make_uint4(chunks[p][0], chunks[p][1], chunks[p][2], chunks[p][3]);
}
#elif PAIRED
constexpr int HIDDEN = ROWS / 2;  // of a block
static_assert(HIDDEN == 128, "a block rounds what it makes");

// Rounds hidden rows as act_round of small.cu does: eight lanes a row, each with two chunks.
D void round_rows(const float* values, int count, uint4* h, i64 first, int block, int blocks) {
  const int part = lane_id() & 7;
  for (int begin = warp_id() * 4; begin < count; begin += WARPS * 4) {
    const int token = begin + (lane_id() >> 3);
    const float* from = values + token * (LEFT_ROW / 4) + (part >> 1) * 8 + (part & 1) * 2;
    float v[4][2][2];    // quarter, which half of eight, value
    u32 largest[4] = {};  // of a quarter
    UNROLL for (int q = 0; q < 4; q++)
      UNROLL for (int b = 0; b < 2; b++) {
        read_pair(from + 32 * q + 4 * b, v[q][b]);
        UNROLL for (int j = 0; j < 2; j++) largest[q] = max(largest[q], size_bits(v[q][b][j]));
      }
    if (BLOCK == 128) largest[0] = max(max(largest[0], largest[1]), max(largest[2], largest[3]));
    u32 e[4];
    UNROLL for (int q = 0; q < 4; q++) e[q] = BLOCK == 128 && q ? e[0] : scale_of(lanes_max(largest[q], 4), FP8_FLOOR, 1.f / 448);
    if (token >= count) continue;
    UNROLL for (int j = 0; j < 2; j++) {
      u32 pairs[4];
      UNROLL for (int q = 0; q < 4; q++) {
        pairs[q] = 0;
        UNROLL for (int b = 0; b < 2; b++) {
          const float found = on_e4m3(v[q][b][j] * inverse(e[q])) * __uint_as_float(e[q] << 23);
          pairs[q] |= (e[q] == 255 ? 0x7FC0u : __float_as_uint(found) >> 16) << 16 * b;
        }
      }
      h[((first + token) * blocks + block) * 16 + 2 * part + j] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  }
}

template <int N>
D void hidden(const u8* gate, const u8* up, const u8* gate_scale, const u8* up_scale, const u8* x, const float* route,
              const int* order, const Tile& tile, float* routes, uint4* h, int K, int I, int slots, float limit) {
  const int units = K / 128;
  Copied<N> from;
  const bool second = copied_row(0) >> 4 & 1;
  const i64 row = (i64)tile.expert * I + blockIdx.x * HIDDEN;
  from.w = (second ? up : gate) + (row + (copied_row(0) >> 5) * 16 + (copied_row(0) & 15)) * (K / 2) + (threadIdx.x & 3) * 16;
  UNROLL for (int i = 0; i < 4; i++) from.w_step[i] = i * 32 * (K / 2);
  from.scales = (threadIdx.x >> 4 & 1 ? up_scale : gate_scale) + (row + warp_id() * 16 + (threadIdx.x & 15)) * (K / 32);
  from.x = x + (threadIdx.x & 15) * 16;
  UNROLL for (int i = 0; i < N / 2; i++)
    from.x_at[i] = order[tile.first + min(copied_token(i), tile.count - 1)] / slots * (2 * K);
  if ((int)threadIdx.x < N * 8) routes[threadIdx.x] = route[order[tile.first + min((int)threadIdx.x, tile.count - 1)]];
  Sums<N> total;
  product<N>(total, from, units);
  float* values = (float*)stage_of(0);
  UNROLL for (int n = 0; n < N; n++)
    UNROLL for (int i = 0; i < 4; i++) {
      const int token = n * 8 + acc_token(i);
      const float g = rounded(total[0][n][i]), u = rounded(total[1][n][i]);
      // A comparison that a NaN fails keeps the NaN, as torch's clamp does; fminf would lose it.
      const float a = g > limit ? limit : g, b = u > limit ? limit : u < -limit ? -limit : u;
      values[token * (LEFT_ROW / 4) + warp_id() * 16 + acc_row(i)] = rounded(a * (1.f / (1.f + expf(-a))) * b * routes[token]);
    }
  __syncthreads();
  round_rows(values, tile.count, h, tile.first, blockIdx.x, I / 128);
}

// gate, up [E, I, K / 2] with scales [E, I, K / 32]; x [M, K] as lay leaves it; route [M * slots]. h [P, I] likewise, in the order of
// tiles. Grid: I / 128, tiles that there can be.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    group_gate_up(const u8* gate, const u8* up, const u8* gate_scale, const u8* up_scale, const u8* x, const float* route,
                  const int* order, const Tile* tiles, const int* num_tiles, uint4* h, int K, int I, int slots, float limit) {
  __shared__ float routes[TOKENS];
  wait_for_previous();
  const Tile tile = tiles[blockIdx.y];
  if ((int)blockIdx.y >= *num_tiles) return;
#define WORK(N) hidden<N>(gate, up, gate_scale, up_scale, x, route, order, tile, routes, h, K, I, slots, limit);
  WITH_COLUMNS(tile.count, WORK)
}
#else
constexpr int LEFT = ROWS + 16 / (int)sizeof(Out);
D void put(u16* p, float v) { *p = to_bf16(v); }
D void put(float* p, float v) { *p = v; }

template <int N>
D void down(const u8* w, const u8* ws, const u8* h, const int* order, const Tile& tile, Out* d, int K, i64 row, int columns,
            int outputs) {
  const int units = K / 128, rows = outputs - 1;  // those behind the last repeat others, and are dropped
  Copied<N> from;
  from.w = w + (row + copied_row(0)) * (K / 2) + (threadIdx.x & 3) * 16;
  UNROLL for (int i = 0; i < 4; i++) from.w_step[i] = (i * 64 & rows) * (K / 2);
  from.scales = ws + (row + (threadIdx.x & rows)) * (K / 32);
  from.x = h + (i64)tile.first * (2 * K) + (threadIdx.x & 15) * 16;
  UNROLL for (int i = 0; i < N / 2; i++) from.x_at[i] = min(copied_token(i), tile.count - 1) * (2 * K);
  Sums<N> total;
  product<N>(total, from, units);
  Out* values = (Out*)stage_of(0);
  UNROLL for (int n = 0; n < N; n++)
    UNROLL for (int t = 0; t < TILES; t++)
      UNROLL for (int i = 0; i < 4; i++)
        put(values + (n * 8 + acc_token(i)) * LEFT + (warp_id() * TILES + t) * 16 + acc_row(i), total[t][n][i]);
  __syncthreads();
  for (int token = warp_id(); token < tile.count; token += WARPS) {
    const uint4* of = (const uint4*)(values + token * LEFT);
    uint4* to = (uint4*)(d + (i64)order[tile.first + token] * columns);
    for (int i = lane_id(); i < outputs * (int)sizeof(Out) / 16; i += 32) to[i] = of[i];
  }
}

// w [E, N, K / 2] with scales [E, N, K / 32]; h [P, K] as group_gate_up leaves it. d [P, columns]: of each pair rows first .. first +
// columns of w, a multiple of 128. Grid: columns / 256, rounded up, tiles that there can be.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    group_down(const u8* w, const u8* ws, const u8* h, const int* order, const Tile* tiles, const int* num_tiles, Out* d, int K,
               int N, int first, int columns) {
  wait_for_previous();
  const Tile tile = tiles[blockIdx.y];
  if ((int)blockIdx.y >= *num_tiles) return;
  const int begin = blockIdx.x * ROWS, outputs = min(columns - begin, ROWS);
  const i64 row = (i64)tile.expert * N + first + begin;
#define WORK(N) down<N>(w, ws, h, order, tile, d + begin, K, row, columns, outputs);
  WITH_COLUMNS(tile.count, WORK)
}
#endif
