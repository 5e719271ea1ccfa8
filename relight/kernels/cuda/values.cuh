// Values as memory holds them, their grids, and float32 sums in a fixed order. Knows no op.
//
// IN_BF16 and OUT_BF16 say what comes in and what goes out, else float32; OUT is the boundary between ops.
#pragma once
#include "lanes.cuh"

D u16 to_bf16(float v) {  // nearest, ties to even
#if STEP_FORM == 80
  u32 r;  // of a pair, which takes a quarter of the time of one
  asm("cvt.rn.bf16x2.f32 %0, 0f00000000, %1;" : "=r"(r) : "f"(v));
  return v != v ? 0x7FC0 : r;
#else
  const u32 b = __float_as_uint(v);
  return (b & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0 : b + 0x7FFF + (b >> 16 & 1) >> 16;
#endif
}
D float from_bf16(u16 b) { return __uint_as_float((u32)b << 16); }

D u32 to_e4m3(float v) {  // |v| <= 448: nearest, ties to even, as a byte
  const u32 b = __float_as_uint(v), normal = (b + 0x7FFFF + (b >> 20 & 1) >> 20 & 0x7FF) - (120 << 3);
  return (b >> 24 & 0x80) | (fabsf(v) < 0.015625f ? (u32)rintf(fabsf(v) * 512.f) : normal);
}
D float on_e4m3(float v) {  // |v| <= 448: the same as a value
  const float size = fabsf(v), tiny = rintf(size * 512.f) * (1.f / 512);
  const u32 b = __float_as_uint(v);
  return size < 0.015625f ? (v < 0.f ? -tiny : tiny) : __uint_as_float(b + 0x7FFFF + (b >> 20 & 1) & 0xFFF00000u);
}
D u32 to_e2m1(float v) {  // |v| <= 6: nearest, ties to the even code, as a nibble
  const float a = fabsf(v);
  const float code = a < 2.f ? rintf(a * 2.f) : a < 4.f ? rintf(a) + 2.f : rintf(a * 0.5f) + 4.f;
  return (__float_as_uint(v) >> 28 & 8) | (u32)code;
}
D float from_e2m1(u32 code) {  // without sign
  return code < 2 ? 0.5f * code : __uint_as_float((126 + (code >> 1) << 23) | (code & 1) << 22);
}
constexpr u32 SICK = 0x7F800000u;  // bits of a size from which on it is no number
D u32 size_bits(float v) { return __float_as_uint(v) & 0x7FFFFFFFu; }  // of finite values in their order, NaN on top
// UE8M0 of 2^ceil(log2(max(size, floor) / most)); 255, NaN, where the size is no number.
D u32 scale_of(u32 size, float floor, float one_by_most) {
  const u32 t = __float_as_uint(__fmul_rn(fmaxf(__uint_as_float(size), floor), one_by_most));
  return size >= SICK ? 255 : (t >> 23) + ((t & 0x7FFFFF) != 0);
}
D float inverse(u32 scale) { return __uint_as_float(254 - min(scale, 253u) << 23); }  // of a finite block: at most 2^126
constexpr float FP8_FLOOR = 1e-4f, FP4_FLOOR = 7.052966104933725e-38f, FINE_FLOOR = 0.01171875f;  // 6 * 2^-126, 6 * 2^-9

// The definitions round after every operation; an fma would round once.
D float add(float a, float b) { return __fadd_rn(a, b); }
D float mul(float a, float b) { return __fmul_rn(a, b); }
D float sigmoid(float v) { return __fdiv_rn(1.f, add(1.f, expf(-v))); }

// A sum of N values as a tree of halves, padded with nothing to a power of two (kernels/invariant.py).
template <int HALF, int N> D void fold(float (&v)[N]) {
  if constexpr (HALF > 0) {
    UNROLL for (int i = 0; i < HALF; i++)
      if (i + HALF < N) v[i] = add(v[i], v[i + HALF]);
    fold<HALF / 2>(v);
  }
}
D constexpr int half_of(int n) {
  int half = 1;
  while (half < n) half *= 2;
  return half / 2;
}
template <int N> D float tree(float (&v)[N]) {
  fold<half_of(N)>(v);
  return v[0];
}
D float lanes_tree(float v) {
  UNROLL for (int apart = 16; apart; apart >>= 1) v = add(v, __shfl_xor_sync(~0u, v, apart));
  return v;
}
D u32 lanes_max(u32 v, int apart) {  // over 2 * apart lanes
  for (; apart; apart >>= 1) v = max(v, __shfl_xor_sync(~0u, v, apart));
  return v;
}
D u32 warp_max(u32 v) {
#if STEP_FORM == 80
  return __reduce_max_sync(~0u, v);
#else
  return lanes_max(v, 16);
#endif
}

// Two neighbours at once.
D void read_pair(const float* p, float (&v)[2]) {
  const uint2 w = *(const uint2*)p;
  v[0] = __uint_as_float(w.x);
  v[1] = __uint_as_float(w.y);
}
D void read_pair(const u16* p, float (&v)[2]) {
  const u32 w = *(const u32*)p;
  v[0] = __uint_as_float(w << 16);
  v[1] = __uint_as_float(w & 0xFFFF0000u);
}
D void write_pair(float* p, const float (&v)[2]) {
  uint2 w;
  w.x = __float_as_uint(v[0]);
  w.y = __float_as_uint(v[1]);
  *(uint2*)p = w;
}
D void write_pair(u16* p, const float (&v)[2]) { *(u32*)p = to_bf16(v[0]) | (u32)to_bf16(v[1]) << 16; }

// Eight neighbours, from a multiple of 16 bytes on.
D void read_eight(const float* p, float (&v)[8]) {
  UNROLL for (int i = 0; i < 2; i++) {
    const uint4 w = *(const uint4*)(p + 4 * i);
    v[4 * i] = __uint_as_float(w.x), v[4 * i + 1] = __uint_as_float(w.y);
    v[4 * i + 2] = __uint_as_float(w.z), v[4 * i + 3] = __uint_as_float(w.w);
  }
}
D void read_eight(const u16* p, float (&v)[8]) {
  const uint4 w = *(const uint4*)p;
  const u32 pairs[4] = {w.x, w.y, w.z, w.w};
  UNROLL for (int i = 0; i < 4; i++) {
    v[2 * i] = __uint_as_float(pairs[i] << 16);
    v[2 * i + 1] = __uint_as_float(pairs[i] & 0xFFFF0000u);
  }
}
D void write_eight(float* p, const float (&v)[8]) {
  UNROLL for (int i = 0; i < 2; i++)
    *(uint4*)(p + 4 * i) = make_uint4(__float_as_uint(v[4 * i]), __float_as_uint(v[4 * i + 1]), __float_as_uint(v[4 * i + 2]),
                                      __float_as_uint(v[4 * i + 3]));
}
D void write_eight(u16* p, const float (&v)[8]) {
  u32 pairs[4];
  UNROLL for (int i = 0; i < 4; i++) pairs[i] = to_bf16(v[2 * i]) | (u32)to_bf16(v[2 * i + 1]) << 16;
  *(uint4*)p = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

#ifdef IN_BF16
#if IN_BF16
typedef u16 In;
#else
typedef float In;
#endif
#if OUT_BF16
typedef u16 Out;
D float rounded(float v) { return from_bf16(to_bf16(v)); }
#else
typedef float Out;
D float rounded(float v) { return v; }
#endif
#endif
