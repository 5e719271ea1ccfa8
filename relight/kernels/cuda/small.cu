// What goes between products: rounding tokens to E4M3, the sum over slots, and the read-only stream that times are compared with.
#include "values.cuh"

typedef float Four[4];
#if X_BF16
typedef u16 X;
D void load4(const X* x, Four& v) {
  const uint2 two = *(const uint2*)x;
  v[0] = __uint_as_float(two.x << 16), v[1] = __uint_as_float(two.x & 0xFFFF0000u);
  v[2] = __uint_as_float(two.y << 16), v[3] = __uint_as_float(two.y & 0xFFFF0000u);
}
#else
typedef float X;
D void load4(const X* x, Four& v) {
  const uint4 four = *(const uint4*)x;
  v[0] = __uint_as_float(four.x), v[1] = __uint_as_float(four.y);
  v[2] = __uint_as_float(four.z), v[3] = __uint_as_float(four.w);
}
#endif

// A warp rounds 128 values, which have a scale for each BLOCK: s = 2^ceil(log2(max(largest, 1e-4) / 448)), q = e4m3(x / s). With a
// NaN or an infinity among them s is NaN, and so is every product with them.
constexpr int SHARE = BLOCK / 4;  // lanes
struct Rounded {
  float inverse;
  u32 e;
  bool sick;
  D Rounded(const Four& v) {
    u32 largest = 0;
    UNROLL for (int i = 0; i < 4; i++) largest = max(largest, size_bits(v[i]));
    largest = lanes_max(largest, SHARE / 2);
    const u32 t = __float_as_uint(fmaxf(__uint_as_float(largest), FP8_FLOOR) * (1.f / 448));
    sick = largest >= SICK;
    e = sick ? 127 : (t >> 23) + ((t & 0x7FFFFF) != 0);
    inverse = __uint_as_float((254 - e) << 23);
  }
};
// Calls for each 128 values of this warp: put(block, values, how). The next ones are on their way meanwhile: with many rows a warp
// has several, as far apart as there are warps.
template <class Put> D void round_all(const X* x, int blocks, Put put) {
  const int step = gridDim.x * 4;
  int block = blockIdx.x * 4 + warp_id();
  wait_for_previous();
  if (block >= blocks) return;
  Four now, next;
  load4(x + (i64)block * 128 + lane_id() * 4, now);
  for (; block < blocks; block += step) {
    const int following = block + step < blocks ? block + step : block;
    load4(x + (i64)following * 128 + lane_id() * 4, next);
    put(block, now, Rounded(now));
    UNROLL for (int i = 0; i < 4; i++) now[i] = next[i];
  }
}

extern "C" __global__ void __launch_bounds__(128) act_quant(const X* x, u32* q, float* s, int blocks) {
  const int l = lane_id();
  round_all(x, blocks, [&](int block, const Four& v, const Rounded& r) {
    u32 bytes = 0;
    UNROLL for (int i = 0; i < 4; i++) bytes |= to_e4m3(v[i] * r.inverse) << 8 * i;
    q[(i64)block * 32 + l] = r.sick ? 0 : bytes;
    if (l % SHARE == 0) s[(i64)block * (128 / BLOCK) + l / SHARE] = __uint_as_float(r.sick ? 0x7FC00000u : r.e << 23);
  });
}

// The same as values: y = q * s in bf16, which holds them exactly.
extern "C" __global__ void __launch_bounds__(128) act_round(const X* x, uint2* y, int blocks) {
  const int l = lane_id();
  round_all(x, blocks, [&](int block, const Four& v, const Rounded& r) {
    u32 pair[2] = {};
    UNROLL for (int i = 0; i < 4; i++) {
      const float found = on_e4m3(v[i] * r.inverse) * __uint_as_float(r.e << 23);
      pair[i / 2] |= (r.sick ? 0x7FC0u : __float_as_uint(found) >> 16) << 16 * (i & 1);
    }
    uint2 both;
    both.x = pair[0];
    both.y = pair[1];
    y[(i64)block * 32 + l] = both;
  });
}

// y[m, n] = ((0 + d[m, 0, n]) + d[m, 1, n]) + ..., in the order of slots.
extern "C" __global__ void __launch_bounds__(256) slot_sum(const float* d, float* y, int N, int slots) {
  const int n = blockIdx.x * 256 + threadIdx.x, m = blockIdx.y;
  wait_for_previous();
  if (n >= N) return;
  float s = 0.f;
  for (int j = 0; j < slots; j++) s += d[((i64)m * slots + j) * N + n];
  y[(i64)m * N + n] = s;
}

// Reads n words of 16 bytes once: what a kernel that needs all these bytes can hope for.
extern "C" __global__ void __launch_bounds__(512) stream_read(const uint4* __restrict__ p, u32* out, i64 n) {
  const i64 step = (i64)gridDim.x * blockDim.x;
  u32 a = 0;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += 8 * step) {
    uint4 v[8];
    UNROLL for (int j = 0; j < 8; j++) {
      v[j] = make_uint4(0, 0, 0, 0);
      if (i + j * step < n)
        asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v[j].x), "=r"(v[j].y), "=r"(v[j].z), "=r"(v[j].w)
                     : "l"(p + i + j * step));
    }
    UNROLL for (int j = 0; j < 8; j++) a ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  wait_for_previous();
  if (a == 0x9E3779B9u) out[threadIdx.x] = a;
}
