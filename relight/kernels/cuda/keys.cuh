// Rows of the cache as float32 values, exactly. Knows no op.
//
// A row has data and scales (kernels/rows.py): FP8 is E4M3 with a UE8M0 scale for each 64 values, and bf16 (WIDE) from value PLAIN
// on; FP8_ALL is E4M3 with a UE8M0 scale for each 32; FP4 is E2M1 with a UE8M0 scale for each 32, FP4_FINE with an E4M3 one for
// each 16.
// What holds a NaN has the scale NaN, so codes need not be looked at.
#pragma once
#include "values.cuh"

enum { FP8, FP8_ALL, FP4_FINE, FP4, WIDE };  // kernels/attend/cuda.py
D constexpr int group_of(int format) { return format == FP8 ? 64 : format == FP4_FINE ? 16 : 32; }
D constexpr bool is_fp4(int format) { return format == FP4_FINE || format == FP4; }

struct Source {  // where rows lie: row i is [i / inner, i % inner]; strides and lengths in bytes
  const u8 *data, *scale;
  i64 data_outer, scale_outer;
  int inner, data_bytes, scale_bytes;
};
// A source as arguments of a kernel, as Rows.strides gives them.
#define SOURCE(name) \
  const u8 *name##_data, const u8 *name##_scale, i64 name##_outer, i64 name##_scale_outer, int name##_inner, int name##_bytes, \
      int name##_scale_bytes
#define GIVEN(name) \
  Source { name##_data, name##_scale, name##_outer, name##_scale_outer, name##_inner, name##_bytes, name##_scale_bytes }
struct Stored {  // one row; without scales it is none: its data are another's, which may be loaded, and its values zero
  const u8 *data, *scale;
};
D Stored row_at(const Source& s, i64 row) {
  const u32 at = row < 0 ? 0 : (u32)row, outer = at / s.inner, inner = at % s.inner;  // fewer than 2^31 rows
  const u8* scale = s.scale + outer * s.scale_outer + (i64)inner * s.scale_bytes;
  return {s.data + outer * s.data_outer + (i64)inner * s.data_bytes, row < 0 ? nullptr : scale};
}

D float from_e8m0(u32 b) { return __uint_as_float(b == 255 ? 0x7FC00000u : b ? b << 23 : 0x400000u); }  // 2^(b - 127)
// The bits of a small float in the place of a larger one are its value times a power of two, subnormals too.
D float from_e4m3(u32 b) { return __uint_as_float((b & 0x80) << 24 | (b & 0x7F) << 20) * 0x1p120f; }
D float from_nibble(u32 b) { return __uint_as_float((b & 8) << 28 | (b & 7) << 22) * 0x1p126f; }
template <int FORMAT> D float from_scale(u32 b) {
  if (FORMAT == FP4_FINE) return (b & 0x7F) == 0x7F ? __uint_as_float(0x7FC00000u) : from_e4m3(b);
  return from_e8m0(b);
}

D void four_e4m3(u32 w, float scale, float* x) {
  UNROLL for (int i = 0; i < 4; i++) x[i] = from_e4m3(w >> 8 * i & 255) * scale;
}
D void eight_e2m1(u32 w, float scale, float* x) {
  UNROLL for (int i = 0; i < 8; i++) x[i] = from_nibble(w >> 4 * i & 15) * scale;
}
D void two_bf16(u32 w, float* x) {
  x[0] = __uint_as_float(w << 16);
  x[1] = __uint_as_float(w & 0xFFFF0000u);
}

// What is loaded of a row, without a branch, so that many loads are under way at once.
D u32 scale_at(const Stored& p, int i) {
  const u32 b = (p.scale ? p.scale : p.data)[i];
  return p.scale ? b : 0;
}
D u32 kept(const Stored& p, u32 word) { return p.scale ? word : 0; }

// Values d to d + 7 of a row; d is a multiple of 8.
template <int FORMAT> D void read8(const Stored& p, int d, float (&x)[8]) {
  if (FORMAT == WIDE) {
    const uint4 v = *(const uint4*)(p.data + PLAIN + 2 * (d - PLAIN));
    two_bf16(kept(p, v.x), x);
    two_bf16(kept(p, v.y), x + 2);
    two_bf16(kept(p, v.z), x + 4);
    two_bf16(kept(p, v.w), x + 6);
    return;
  }
  const float scale = from_scale<FORMAT>(scale_at(p, d / group_of(FORMAT)));
  if (is_fp4(FORMAT)) {
    eight_e2m1(kept(p, *(const u32*)(p.data + d / 2)), scale, x);
  } else {
    const uint2 v = *(const uint2*)(p.data + d);
    four_e4m3(kept(p, v.x), scale, x);
    four_e4m3(kept(p, v.y), scale, x + 4);
  }
}
// Values d and d + 1; d is even.
template <int FORMAT> D void read2(const Stored& p, int d, float (&x)[2]) {
  if (FORMAT == WIDE) {
    two_bf16(kept(p, *(const u32*)(p.data + PLAIN + 2 * (d - PLAIN))), x);
    return;
  }
  const float scale = from_scale<FORMAT>(scale_at(p, d / group_of(FORMAT)));
  const u32 w = kept(p, is_fp4(FORMAT) ? p.data[d / 2] : *(const u16*)(p.data + d));
  x[0] = (is_fp4(FORMAT) ? from_nibble(w & 15) : from_e4m3(w & 255)) * scale;
  x[1] = (is_fp4(FORMAT) ? from_nibble(w >> 4) : from_e4m3(w >> 8)) * scale;
}

#if STEP_FORM == 80
// N values, 4, 8 or 16, of a row as they are stored, and as pairs of bf16, in order: every one is exact there. Loads pass by L1,
// which a row's lanes do not share and which may be older than what the kernel in front left.
template <int N> struct Packed {
  u32 w[N / 2], scale;
};
template <int FORMAT, int N> D void ask(const Stored& p, int d, Packed<N>& x) {
  const u8* from = p.data + (FORMAT == WIDE ? PLAIN + 2 * (d - PLAIN) : is_fp4(FORMAT) ? d / 2 : d);
  constexpr int BYTES = FORMAT == WIDE ? 2 * N : is_fp4(FORMAT) ? N / 2 : N;
  if constexpr (BYTES >= 16) {
    UNROLL for (int i = 0; i < BYTES / 16; i++) {
      const uint4 v = __ldcg((const uint4*)(from + 16 * i));
      x.w[4 * i] = v.x, x.w[4 * i + 1] = v.y, x.w[4 * i + 2] = v.z, x.w[4 * i + 3] = v.w;
    }
  } else if constexpr (BYTES == 8) {
    const uint2 v = __ldcg((const uint2*)from);
    x.w[0] = v.x, x.w[1] = v.y;
  } else {
    x.w[0] = BYTES == 4 ? __ldcg((const u32*)from) : __ldcg((const u16*)from);
  }
  if (FORMAT != WIDE) x.scale = __ldcg((p.scale ? p.scale : p.data) + d / group_of(FORMAT));
}
template <int FORMAT, int N> D void keep(bool there, Packed<N>& x) {  // what is no key is zero
  constexpr int BYTES = FORMAT == WIDE ? 2 * N : is_fp4(FORMAT) ? N / 2 : N;
  UNROLL for (int i = 0; 4 * i < BYTES; i++) x.w[i] = there ? x.w[i] : 0;
  if (FORMAT != WIDE) x.scale = there ? x.scale : 0;
}
template <int FORMAT, int N> D void load(const Stored& p, int d, Packed<N>& x) {
  ask<FORMAT>(p, d, x);
  keep<FORMAT>(p.scale != nullptr, x);
}
D u32 products(u32 a, u32 up) {
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(up), "r"(0x80008000u));
  return r;
}
// A code in the place of a bf16 is its value times 2^-120 or 2^-126, subnormals too.
template <int FORMAT, int N> D void unpack(const Packed<N>& x, u32 (&pairs)[N / 2]) {
  const u32 scale = __byte_perm(__float_as_uint(from_scale<FORMAT>(x.scale)), 0, 0x3232);
  UNROLL for (int i = 0; i < N / 2; i++) {
    if (FORMAT == WIDE) {
      pairs[i] = x.w[i];
    } else if (is_fp4(FORMAT)) {
      const u32 b = x.w[i / 4] >> 8 * (i % 4), both = (b & 15) | (b & 0xF0) << 12;
      pairs[i] = products(products((both & 0x00080008u) << 12 | (both & 0x00070007u) << 6, 0x7E807E80u), scale);
    } else {
      const u32 v = __byte_perm(x.w[i / 2], 0, i & 1 ? 0x3424 : 0x1404);
      pairs[i] = products(products((v & 0x80008000u) | (v >> 4 & 0x07F007F0u), 0x7B807B80u), scale);
    }
  }
}
#endif

// Two values as a pair of bf16, by their upper halves: every stored value is exact there.
D u32 pair_of(float a, float b) { return __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x7632); }
