// Float32 tokens for a matrix unit that multiplies fp16: each value as two of them, and the sum of what these gave.
//
// A row of K values is divided by a power of two, so that its largest is 1 to 2: value = high + low / 2^11, where `high` is the
// nearest fp16 and `low` that of what is left. What is lost is 2^-23 of the largest at most.
#include "values.cuh"

D u32 to_half(float v) {  // |v| < 65504: nearest, ties to even
  const u32 b = __float_as_uint(v), normal = (b + 0xFFF + (b >> 13 & 1) >> 13 & 0x3FFFF) - (112 << 10);
  return (b >> 16 & 0x8000) | (fabsf(v) < 6.103515625e-5f ? (u32)rintf(fabsf(v) * 16777216.f) : normal);
}
// The bits of an fp16 in the place of a float32 are its value times 2^-112, subnormals too.
D float from_half(u32 h) { return mul(__uint_as_float((h & 0x8000) << 16 | (h & 0x7FFF) << 13), 0x1p112f); }

// x [rows, K] -> high, low [rows, K] and scale [rows], NaN where a row is not finite. Grid: rows.
extern "C" __global__ void __launch_bounds__(256) split(const float* x, u16* high, u16* low, float* scale, int K) {
  __shared__ u32 most[8];
  const i64 row = blockIdx.x;
  wait_for_previous();
  x += row * K;
  u32 size = 0;
  for (int i = threadIdx.x; i < K; i += 256) size = max(size, size_bits(x[i]));
  size = lanes_max(size, 16);
  if (lane_id() == 0) most[warp_id()] = size;
  __syncthreads();
  UNROLL for (int w = 0; w < 8; w++) size = max(size, most[w]);
  const bool sick = size >= SICK;
  const u32 e = min(max(size >> 23, 1u), 253u);
  const float down = __uint_as_float((254 - e) << 23);
  for (int i = threadIdx.x; i < K; i += 256) {
    const float v = sick ? 0.f : mul(x[i], down);
    const u32 h = to_half(v);
    high[row * K + i] = h;
    low[row * K + i] = to_half(mul(add(v, -from_half(h)), 2048.f));
  }
  if (threadIdx.x == 0) scale[row] = __uint_as_float(sick ? 0x7FC00000u : e << 23);
}

// high, low [rows, N], scale [rows, groups] -> y [rows, N] = (high + low / 2^11) * scale of the group. Grid: rows, columns by 256.
extern "C" __global__ void __launch_bounds__(256)
    join(const float* high, const float* low, const float* scale, float* y, int N, int groups) {
  const i64 row = blockIdx.x;
  const int n = blockIdx.y * 256 + threadIdx.x;
  wait_for_previous();
  if (n >= N) return;
  const i64 at = row * N + n;
  y[at] = mul(add(high[at], mul(low[at], 1.f / 2048)), scale[row * groups + n / (N / groups)]);
}
