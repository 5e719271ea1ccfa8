// One vector of WIDTH values, held by THREADS threads in pairs: pair j * THREADS + thread. What ops do with it, stage by stage:
// norm, rotation, Hadamard, and a row of the cache. Knows no layer.
//
// Every stage computes what its definition computes, rounding for rounding; sums are the definition's trees: of the bits of an
// index the top ones are folded first, so pairs of one thread, then warps, then lanes, then the two of a pair.
#pragma once
#include "round.cuh"

#ifndef ROPE
#define ROPE 0  // nothing is rotated
#endif
constexpr int PAIRS = WIDTH / 2 / THREADS, WARPS = THREADS / 32;
static_assert(WIDTH == PAIRS * 2 * THREADS && (THREADS & THREADS - 1) == 0 && THREADS >= 32, "threads share a vector evenly");

typedef float Pairs[PAIRS][2];
struct Room {  // shared memory of one sum
  float v[2][THREADS];
};

D int place(int j) { return (j * THREADS + threadIdx.x) * 2; }  // of the first of a pair

template <class T> D void read_row(const T* p, Pairs& v) {
  UNROLL for (int j = 0; j < PAIRS; j++) read_pair(p + place(j), v[j]);
}
template <class T> D void write_row(T* p, const Pairs& v) {
  UNROLL for (int j = 0; j < PAIRS; j++) write_pair(p + place(j), v[j]);
}

// A sum over the vector: each thread gives, all meet, each takes.
D void give(const Pairs& v, Room& room) {
  UNROLL for (int b = 0; b < 2; b++) {
    float own[PAIRS];
    UNROLL for (int j = 0; j < PAIRS; j++) own[j] = v[j][b];
    room.v[b][threadIdx.x] = tree(own);
  }
}
D float take(const Room& room) {
  float ends[2];
  UNROLL for (int b = 0; b < 2; b++) {
    float across[WARPS];
    UNROLL for (int w = 0; w < WARPS; w++) across[w] = room.v[b][w * 32 + lane_id()];
    ends[b] = lanes_tree(tree(across));
  }
  return add(ends[0], ends[1]);
}
D void give_squares(const Pairs& v, Room& room) {
  Pairs squares;
  UNROLL for (int j = 0; j < PAIRS; j++)
    UNROLL for (int b = 0; b < 2; b++) squares[j][b] = mul(v[j][b], v[j][b]);
  give(squares, room);
}
// torch divides by a number of the host as it multiplies by its inverse on a device; for powers of two both are exact.
D float mean_of(float sum) { return mul(sum, 1.f / WIDTH); }

D void norm_end(Pairs& v, const Pairs& weight, float eps, const Room& room) {
  const float factor = rsqrtf(add(mean_of(take(room)), eps));
  UNROLL for (int j = 0; j < PAIRS; j++)
    UNROLL for (int b = 0; b < 2; b++) v[j][b] = rounded(mul(mul(v[j][b], factor), weight[j][b]));
}
D void norm(Pairs& v, const Pairs& weight, float eps, Room& room) {
  give_squares(v, room);
  __syncthreads();
  norm_end(v, weight, eps, room);
}
D void norm(Pairs& v, const float* weight, float eps, Room& room) {
  Pairs w;
  read_row(weight, w);
  norm(v, w, eps, room);
}

// Without a weight, as V4's query heads: where the boundary is bf16 each of the five results is rounded to it.
D void norm_plain(Pairs& v, float eps, Room& room) {
  Pairs squares;
  UNROLL for (int j = 0; j < PAIRS; j++)
    UNROLL for (int b = 0; b < 2; b++) {
      v[j][b] = rounded(v[j][b]);
      squares[j][b] = rounded(mul(v[j][b], v[j][b]));
    }
  give(squares, room);
  __syncthreads();
  const float factor = rounded(rsqrtf(rounded(add(rounded(mean_of(take(room))), eps))));
  UNROLL for (int j = 0; j < PAIRS; j++)
    UNROLL for (int b = 0; b < 2; b++) v[j][b] = rounded(mul(v[j][b], factor));
}

// Rotates the last ROPE values in pairs by position * frequency, against the clock.
typedef float Frequencies[PAIRS];
D void read_frequencies(const float* p, Frequencies& f) {
  UNROLL for (int j = 0; j < PAIRS; j++) f[j] = ROPE && place(j) >= WIDTH - ROPE ? p[(place(j) - (WIDTH - ROPE)) / 2] : 0.f;
}
D void rotate(Pairs& v, i64 position, const Frequencies& f) {
  UNROLL for (int j = 0; j < PAIRS; j++) {
    if (place(j) >= WIDTH - ROPE) {
      const float angle = mul((float)position, f[j]), c = cosf(angle), s = sinf(angle);
      const float even = v[j][0], odd = v[j][1];
      v[j][0] = rounded(add(mul(even, c), -mul(odd, s)));
      v[j][1] = rounded(add(mul(even, s), mul(odd, c)));
    }
  }
}
D void rotate(Pairs& v, i64 position, const float* frequencies) {
  Frequencies f;
  read_frequencies(frequencies, f);
  rotate(v, position, f);
}

#if WIDTH == 128 && THREADS == 32
// Times Sylvester's matrix: butterflies of values 1, 2, 4, ... apart, then the scale, then one rounding.
D void hadamard(Pairs& v) {
  UNROLL for (int j = 0; j < PAIRS; j++) {
    const float first = v[j][0], second = v[j][1];
    v[j][0] = add(first, second);
    v[j][1] = add(first, -second);
    UNROLL for (int apart = 1; apart < 32; apart *= 2)
      UNROLL for (int b = 0; b < 2; b++) {
        const float mine = v[j][b], other = __shfl_xor_sync(~0u, mine, apart);
        v[j][b] = lane_id() & apart ? add(other, -mine) : add(mine, other);
      }
  }
  UNROLL for (int b = 0; b < 2; b++) {
    const float first = v[0][b], second = v[1][b];
    v[0][b] = rounded(mul(add(first, second), 0.08838834764831845f));  // 128^-0.5
    v[1][b] = rounded(mul(add(first, -second), 0.08838834764831845f));
  }
}
#endif

// Scales of FP4 are for 32 values, 16 lanes: of this thread's pair.
D u32 fp4_scale(const float (&v)[2]) {
  return scale_of(lanes_max(max(size_bits(v[0]), size_bits(v[1])), 8), FP4_FLOOR, 1.f / 6);
}
D float fp4_value(float v, u32 scale) {  // a zero has no sign, as in the definition
  const float size = from_e2m1(to_e2m1(mul(v, inverse(scale))) & 7);
  const float found = mul(size, __uint_as_float(scale << 23));
  return scale == 255 ? __uint_as_float(0x7FC00000u) : v < 0.f && size > 0.f ? -found : found;
}

#if ROUNDS  // the vector as what a product takes
typedef u32 Sizes[PAIRS][WARPS];
D void tell_sizes(const Pairs& v, Sizes& sizes) {
  UNROLL for (int j = 0; j < PAIRS; j++) tell_size(v[j], sizes[j]);
}
D void put_rounded(const Pairs& v, const Sizes& sizes, i64 row, u8* codes, float* scales) {
  UNROLL for (int j = 0; j < PAIRS; j++) put_rounded(v[j], sizes[j], row * WIDTH + place(j), codes, scales);
}
#endif

// A row of the cache (kernels/rows.py): "fp4", WIDTH / 2 bytes and a UE8M0 scale for each 32 values.
D void put_fp4(const Pairs& v, u8* data, u8* scale) {
  UNROLL for (int j = 0; j < PAIRS; j++) {
    const u32 e = fp4_scale(v[j]);
    const float up = inverse(e);
    data[place(j) / 2] = e == 255 ? 0x77 : to_e2m1(mul(v[j][0], up)) | to_e2m1(mul(v[j][1], up)) << 4;
    if ((lane_id() & 15) == 0) scale[place(j) / 32] = e;
  }
}
// "fp8": E4M3 with a UE8M0 scale for each 64 values, but the last ROPE ones as bf16; scale bytes are padded with zero.
D void put_fp8(const Pairs& v, u8* data, u8* scale) {
  constexpr int PLAIN = WIDTH - ROPE, GROUPS = PLAIN / 64;
  static_assert(PLAIN % 64 == 0 && ROPE % 64 == 0, "a warp holds one group");
  UNROLL for (int j = 0; j < PAIRS; j++) {
    const int group = j * WARPS + warp_id();
    if (group < GROUPS) {
      const u32 e = scale_of(lanes_max(max(size_bits(v[j][0]), size_bits(v[j][1])), 16), FP8_FLOOR, 1.f / 448);
      const float up = inverse(e);
      *(u16*)(data + place(j)) = e == 255 ? 0x7F7F : to_e4m3(mul(v[j][0], up)) | to_e4m3(mul(v[j][1], up)) << 8;
      if (lane_id() == 0) scale[group] = e;
    } else {
      write_pair((u16*)(data + PLAIN) + (place(j) - PLAIN), v[j]);
    }
  }
  if (threadIdx.x == 0 && GROUPS % 2) scale[GROUPS] = 0;
}
// "fp8-all": E4M3 with a UE8M0 scale for each 32 values.
D void put_fp8_all(const Pairs& v, u8* data, u8* scale) {
  UNROLL for (int j = 0; j < PAIRS; j++) {
    const u32 e = scale_of(lanes_max(max(size_bits(v[j][0]), size_bits(v[j][1])), 8), FP8_FLOOR, 1.f / 448);
    const float up = inverse(e);
    *(u16*)(data + place(j)) = e == 255 ? 0x7F7F : to_e4m3(mul(v[j][0], up)) | to_e4m3(mul(v[j][1], up)) << 8;
    if ((lane_id() & 15) == 0) scale[place(j) / 32] = e;
  }
}
// "fp4-fine": E2M1 with an E4M3 scale for each 16 values, 8 lanes: the nearest to the largest by 6, and no power of two, so values
// are divided by it.
D void put_fp4_fine(const Pairs& v, u8* data, u8* scale) {
  UNROLL for (int j = 0; j < PAIRS; j++) {
    const u32 size = lanes_max(max(size_bits(v[j][0]), size_bits(v[j][1])), 4);
    const bool sick = size > SICK;
    const float most = fminf(__fdiv_rn(fmaxf(__uint_as_float(size), FINE_FLOOR), 6.f), 448.f), by = on_e4m3(most);
    u32 codes = 0;
    UNROLL for (int b = 0; b < 2; b++) codes |= to_e2m1(fminf(fmaxf(__fdiv_rn(v[j][b], by), -6.f), 6.f)) << 4 * b;
    data[place(j) / 2] = sick ? 0x77 : codes;
    if ((lane_id() & 7) == 0) scale[place(j) / 16] = sick ? 0x7F : to_e4m3(most);
  }
}
struct Store {  // where rows lie: row i is [i / inner, i % inner], strides in bytes
  u8 *data, *scale;
  i64 data_outer, scale_outer;
  int inner, data_inner, scale_inner;
};
D u8* data_of(const Store& s, i64 row) { return s.data + row / s.inner * s.data_outer + row % s.inner * s.data_inner; }
D u8* scale_of_row(const Store& s, i64 row) { return s.scale + row / s.inner * s.scale_outer + row % s.inner * s.scale_inner; }
