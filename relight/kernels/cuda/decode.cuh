// Stored values as pairs for the matrix unit, exactly. Knows no layout of lanes.
//
// A decoder may leave out a power of two, the same for all values; the caller puts it back in float32 (E4M3_RAISE, RAISE). The
// order in which a decoder gives the values of a word is its own: weights and tokens go through decoders of one order.
#pragma once
#include "values.cuh"

#define LOAD16(how)                                                                                            \
  uint4 v;                                                                                                     \
  asm volatile("ld.global" how ".v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p)); \
  return v
D uint4 stream16(const void* p) { LOAD16(".nc.L1::no_allocate"); }  // read once: leaves L1 to the tokens
D uint4 load16(const void* p) { LOAD16(""); }
D void bring(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }  // its line, into L2
D u32 word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
D u32 low_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x5410); }
D u32 high_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x7632); }

D float e8m0(u32 b) { return __uint_as_float(max(b << 23, 0x400000u)); }  // 2^(b - 127); NaN, 255, is refused at load

// Four E4M3 bytes -> two pairs.
constexpr u32 UP = 0x7B807B80u;  // a pair of 2^120 in bf16
D u32 up_by(u32 scale) { return (scale + 120) * 0x00800080u; }  // the same times a scale: 2^7 at most, as the binder holds
#if CONVERTS_E4M3  // sm_89 and later: order (0,1) (2,3)
constexpr float E4M3_RAISE = 1.f;
D void e4m3(u32 w, u32& p, u32& q, u32 = 0) {
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }" : "=r"(p), "=r"(q) : "r"(w));
}
#elif X_BF16  // order (0,2) (1,3): seeeemmm in the place of a bf16 is value * 2^-120, which a bf16 multiply by `up` puts right
constexpr float E4M3_RAISE = 1.f;
D u32 raise_bf16(u32 a, u32 up) {
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(up), "r"(0x80008000u));
  return r;
}
D void e4m3(u32 w, u32& p, u32& q, u32 up = UP) {
  p = raise_bf16((w << 8 & 0x80008000u) | (w << 4 & 0x07F007F0u), up);
  q = raise_bf16((w & 0x80008000u) | (w >> 4 & 0x07F007F0u), up);
}
#else  // order (0,2) (1,3): in the place of an fp16 it is value * 2^-8, subnormals too
constexpr float E4M3_RAISE = 256.f;
D void e4m3(u32 w, u32& p, u32& q, u32 = 0) {
  p = (w << 8 & 0x80008000u) | (w << 7 & 0x3F803F80u);
  q = (w & 0x80008000u) | (w >> 1 & 0x3F803F80u);
}
#endif

// Of two pairs of bf16 without signs the larger ones, NaN on top.
D u32 larger_two(u32 a, u32 b) {
#if STEP_FORM == 80
  u32 r;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
#else
  return max(a & 0xFFFF0000u, b & 0xFFFF0000u) | max(a & 0xFFFFu, b & 0xFFFFu);
#endif
}
// Two floats within 448 -> E4M3 bytes.
#if CONVERTS_E4M3
D u32 two_e4m3(float a, float b) {
  u16 r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(r) : "f"(a), "f"(b));
  return r;
}
#else
D u32 two_e4m3(float a, float b) { return to_e4m3(a) | to_e4m3(b) << 8; }
#endif

// 16 bytes of weights hold LOADED values, which are LOADED / 4 calls of step(). A UNIT of K is what is asked for at once.
#if FORMAT == 8
constexpr int UNIT = 128, LOADED = 16;
constexpr float RAISE = E4M3_RAISE;
D void step(const uint4& v, int i, u32& p, u32& q, u32 up) { e4m3(word(v, i), p, q, up); }
#elif FORMAT == 16
constexpr int UNIT = 64, LOADED = 8;
#if STEP_FORM < 80  // no bf16 operands: 2^8 times the value in fp16, exact for 2^-25 <= |w| < 2^8
constexpr float RAISE = 1.f / 256;
D u32 narrow(u32 w) {
  u32 r;
  asm("{ .reg .b16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h}; }"
      : "=r"(r)
      : "f"(__uint_as_float(w << 16) * 256.f), "f"(__uint_as_float(w & 0xFFFF0000u) * 256.f));
  return r;
}
#else
constexpr float RAISE = 1.f;
D u32 narrow(u32 w) { return w; }
#endif
D void step(const uint4& v, int i, u32& p, u32& q, u32) {
  p = narrow(word(v, 2 * i));
  q = narrow(word(v, 2 * i + 1));
}
#else  // E2M1: an fp16 that is value * 2^-14 is s000eem000000000; a word gives (0,4) (2,6), then (1,5) (3,7)
constexpr int UNIT = 128, LOADED = 32;
constexpr float RAISE = 16384.f;
// Bitwise operations go at half the rate of others, so a multiply stands for what shifts of sign and size, masked and joined, did: of
// n = seem, 9 n - 8 has eem in its low three bits and s in the seventh; of 0 it has s, which is -0. Each half of a word has 2^16 to
// borrow from. Instructions are written where the compiler would let masks wander past them, which doubles these.
D u32 masked(u32 a, u32 b, u32 mask) {  // (a | b) & mask
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0xA8;" : "=r"(r) : "r"(a), "r"(b), "r"(mask));
  return r;
}
D void step(const uint4& v, int i, u32& p, u32& q, u32) {
  const u32 w = word(v, i >> 1), n = masked(w, w, i & 1 ? 0xF0F0F0F0u : 0x0F0F0F0Fu);
  const u32 a = n * (i & 1 ? 9 << 5 : 9 << 9) + 0xF000F000u, b = i & 1 ? n >> 3 : n * (9 << 1) + 0xF000F000u;
  p = masked(a, a, 0x8E008E00u);
  q = masked(b, i & 1 ? n : b, 0x8E008E00u);
}
#endif

// The tokens' values that meet those 16 bytes, in the same order. X_BYTES is 1 (E4M3 with scales) or 2.
constexpr int X_WORDS = LOADED * X_BYTES / 16;
constexpr float X_RAISE = X_BYTES == 1 ? E4M3_RAISE : 1.f;
#if FORMAT == 4 && X_BYTES == 1  // four codes of eight: those in even places, then those in odd ones, each beside that four further on
D u32 every_second(const uint4 (&v)[X_WORDS], int i) {
  const u32 even = CONVERTS_E4M3 ? 0x6240 : 0x6420, odd = CONVERTS_E4M3 ? 0x7351 : 0x7531;
  return __byte_perm(word(v[i / 4], i & 2), word(v[i / 4], (i & 2) + 1), i & 1 ? odd : even);
}
#endif
D void unpack_x(const uint4 (&v)[X_WORDS], u32 (&pairs)[LOADED / 2]) {
  UNROLL for (int i = 0; i < LOADED / 2; i += 2) {
#if X_BYTES == 2
    const u32 a = word(v[i / 4], i & 3), b = word(v[i / 4], (i & 3) + 1);
    const bool as_stored = FORMAT == 16 || CONVERTS_E4M3;
    pairs[i] = as_stored ? a : low_halves(a, b);
    pairs[i + 1] = as_stored ? b : high_halves(a, b);
#elif FORMAT == 8
    e4m3(word(v[0], i / 2), pairs[i], pairs[i + 1]);
#else
    e4m3(every_second(v, i / 2), pairs[i], pairs[i + 1]);
#endif
  }
}
