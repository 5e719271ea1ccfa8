// A warp on a processor: lanes are threads that meet where lanes of a device meet. For tests of kernels without a device; the
// layouts of matrix fragments are those of the PTX ISA, "Matrix Fragments for mma". Knows no kernel.
#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>
using std::max;
using std::min;
struct uint4 { unsigned x, y, z, w; };
struct uint2 { unsigned x, y; };
struct Place { int x, y, z; };
static thread_local Place threadIdx, blockIdx;
static Place blockDim, gridDim;
#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __shared__ static

static pthread_barrier_t warps[32], block;
static unsigned given[32][32][6];  // by warp, lane: what lanes show each other
inline int lane() { return threadIdx.x & 31; }
inline int warp() { return threadIdx.x >> 5; }
inline void __syncwarp() { pthread_barrier_wait(&warps[warp()]); }
inline void __syncthreads() { pthread_barrier_wait(&block); }

inline uint4 make_uint4(unsigned a, unsigned b, unsigned c, unsigned d) { return {a, b, c, d}; }
inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __ffs(unsigned v) { return __builtin_ffs(v); }
template <class T> T __ldg(const T* p) { return *p; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned which) {
  const uint64_t all = (uint64_t)b << 32 | a;
  unsigned found = 0;
  for (int i = 0; i < 4; i++) found |= (unsigned)(all >> (which >> 4 * i & 7) * 8 & 255) << 8 * i;
  return found;
}
template <class T> T __shfl_sync(unsigned, T value, int from) {
  memcpy(&given[warp()][lane()][0], &value, 4);
  __syncwarp();
  memcpy(&value, &given[warp()][from & 31][0], 4);
  __syncwarp();
  return value;
}
template <class T> T __shfl_xor_sync(unsigned all, T value, int apart) { return __shfl_sync(all, value, lane() ^ apart); }
inline unsigned __ballot_sync(unsigned, bool vote) {
  given[warp()][lane()][0] = vote;
  __syncwarp();
  unsigned found = 0;
  for (int i = 0; i < 32; i++) found |= given[warp()][i][0] << i;
  __syncwarp();
  return found;
}

inline unsigned short half_bits(float v) { _Float16 h = (_Float16)v; unsigned short b; memcpy(&b, &h, 2); return b; }
inline float operand(unsigned bits) {
#if X_BF16
  return __uint_as_float(bits << 16);
#else
  unsigned short b = bits;
  _Float16 h;
  memcpy(&h, &b, 2);
  return (float)h;
#endif
}
inline double pair(unsigned a, unsigned b) {
  return (double)operand(a & 65535) * operand(b & 65535) + (double)operand(a >> 16) * operand(b >> 16);
}
inline void show(unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  const unsigned all[6] = {a0, a1, a2, a3, b0, b1};
  memcpy(given[warp()][lane()], all, sizeof all);
  __syncwarp();
}
// `halves` 2: m16n8k16; 1: m16n8k8, of a0, a1 and b0.
inline void m16n8(float* c, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1, int halves) {
  show(a0, a1, a2, a3, b0, b1);
  for (int i = 0; i < 4; i++) {
    const int row = (lane() >> 2) + (i >> 1) * 8, column = (lane() & 3) * 2 + (i & 1);
    double sum = c[i];
    for (int t = 0; t < 4; t++)
      for (int h = 0; h < halves; h++)
        sum += pair(given[warp()][(row & 7) * 4 + t][(row >> 3) + 2 * h], given[warp()][column * 4 + t][4 + h]);
    c[i] = sum;
  }
  __syncwarp();
}
inline void m8n8k4(float* c, unsigned a0, unsigned a1, unsigned b0, unsigned b1) {
  show(a0, a1, 0, 0, b0, b1);
  const int quad = lane() >> 2 & 3;
  auto holder = [&](int i) { return given[warp()][(i & 3) + quad * 4 + (i >> 2) * 16]; };
  for (int i = 0; i < 8; i++) {
    const unsigned *a = holder((lane() & 1) + (i & 2) + (lane() >> 4) * 4), *b = holder((i & 4) + (lane() & 2) + (i & 1));
    c[i] = c[i] + pair(a[0], b[4]) + pair(a[1], b[5]);
  }
  __syncwarp();
}

inline void run(int columns, int rows, int threads, std::function<void()> kernel) {
  blockDim = {threads, 1, 1};
  gridDim = {columns, rows, 1};
  for (int w = 0; w < threads / 32; w++) pthread_barrier_init(&warps[w], nullptr, 32);
  pthread_barrier_init(&block, nullptr, threads);
  std::vector<std::thread> lanes;
  for (int t = 0; t < threads; t++)
    lanes.emplace_back([=] {
      threadIdx = {t, 0, 0};
      for (int y = 0; y < rows; y++)
        for (int x = 0; x < columns; x++) {
          blockIdx = {x, y, 0};
          kernel();
          __syncthreads();
        }
    });
  for (auto& one : lanes) one.join();
}
