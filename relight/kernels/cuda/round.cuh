// Values in pairs to E4M3, with a scale for each ROUNDS of them, 32 or 128: what act_quant (small.cu) does, where they are made.
// Knows no op.
//
// A warp holds 64 neighbouring values, so a block of 128 is two warps', which tell each other its largest through shared memory.
#pragma once
#include "values.cuh"

#ifndef ROUNDS
#define ROUNDS 0  // nothing is rounded
#endif

#if ROUNDS
static_assert(ROUNDS == 32 || ROUNDS == 128, "scales are for 32 or for 128 values");
// Each warp tells the largest of its values; then all meet. `sizes` has a place for each warp.
D void tell_size(const float (&v)[2], u32* sizes) {
  if (ROUNDS == 32) return;
  const u32 size = lanes_max(max(size_bits(v[0]), size_bits(v[1])), 16);
  if (lane_id() == 0) sizes[warp_id()] = size;
}
// Values `at` and at + 1 of codes and scales that begin at whole blocks.
D void put_rounded(const float (&v)[2], const u32* sizes, i64 at, u8* codes, float* scales) {
  const u32 size = ROUNDS == 32 ? lanes_max(max(size_bits(v[0]), size_bits(v[1])), 8) : max(sizes[warp_id() & ~1], sizes[warp_id() | 1]);
  const u32 e = scale_of(size, FP8_FLOOR, 1.f / 448);
  const float up = inverse(e);
  *(u16*)(codes + at) = e == 255 ? 0 : to_e4m3(mul(v[0], up)) | to_e4m3(mul(v[1], up)) << 8;
  if (at % ROUNDS == 0) scales[at / ROUNDS] = __uint_as_float(e == 255 ? 0x7FC00000u : e << 23);
}
#endif
