// A block on a processor: lanes meet where lanes of a device meet. For tests of kernels without a device; the
// layouts of matrix fragments are those of the PTX ISA, "Matrix Fragments for mma". Knows no kernel.
// Few headers: they are most of what compiling a kernel takes.
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <utility>
template <class T> constexpr T max(T a, T b) { return a < b ? b : a; }
template <class T> constexpr T min(T a, T b) { return b < a ? b : a; }
struct uint4 { unsigned x, y, z, w; };
struct uint2 { unsigned x, y; };
struct Place { int x, y, z; };
static Place threadIdx, blockIdx;
static Place blockDim, gridDim;
#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __shared__ static

// Lanes take turns: one runs until it meets the others, then the next goes on. A switch is a jump between stacks, a thousand
// times faster than threads that wait for each other.
namespace turns {
static const int MOST = 1024, STACK = 128 << 10;
static ucontext_t fresh[MOST];
static jmp_buf lanes_at[MOST], ended;
static bool begun[MOST], done[MOST];
static int current, lanes_in_all;
static long waits_in_vain;
static void (*body)(void*);  // what each lane does, of `work`
static void* work;
static void go_on() {  // leaves the lane that runs for the next one that is not done
  for (int i = 1; i <= lanes_in_all; i++) {
    const int next = (current + i) % lanes_in_all;
    if (done[next]) continue;
    current = threadIdx.x = next;
    if (begun[next]) _longjmp(lanes_at[next], 1);
    begun[next] = true;
    setcontext(&fresh[next]);
  }
  _longjmp(ended, 1);
}
struct Meeting {
  int count, here;
  long past;
  void wait() {
    const long mine = past;
    if (++here == count) {
      here = 0;
      past++;
      waits_in_vain = 0;
      return;
    }
    while (past == mine) {
      if (++waits_in_vain > 4l * lanes_in_all) {
        fprintf(stderr, "lanes wait for others that have ended\n");
        abort();
      }
      if (!_setjmp(lanes_at[current])) go_on();
    }
  }
};
}  // namespace turns
static turns::Meeting warps[32], block;
static unsigned given[32][32][6];  // by warp, lane: what lanes show each other
inline int lane() { return threadIdx.x & 31; }
inline int warp() { return threadIdx.x >> 5; }
inline void __syncwarp() { warps[warp()].wait(); }
inline void __syncthreads() { block.wait(); }

inline uint4 make_uint4(unsigned a, unsigned b, unsigned c, unsigned d) { return {a, b, c, d}; }
inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __ffs(unsigned v) { return __builtin_ffs(v); }
inline int atomicAdd(int* p, int v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float rsqrtf(float v) { return 1.f / sqrtf(v); }
template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcg(const T* p) { return *p; }
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

// Copies past the registers land as late as they may, when their lane waits for them; those of odd lanes land at once.
static struct Copy { void* to; const void* from; int size; } copies[turns::MOST][256];
static int copies_asked[turns::MOST], groups_sent[turns::MOST], copies_in[turns::MOST][16];
inline void copy_later(void* to, const void* from, int size) {
  if (threadIdx.x & 1) {
    memcpy(to, from, size);
    return;
  }
  const int at = copies_asked[threadIdx.x]++;
  if (at == 256) abort();
  copies[threadIdx.x][at] = {to, from, size};
  copies_in[threadIdx.x][groups_sent[threadIdx.x]]++;
}
inline void copies_sent_by_lane() {
  if (++groups_sent[threadIdx.x] == 16) abort();
  copies_in[threadIdx.x][groups_sent[threadIdx.x]] = 0;
}
inline void copies_landed_but(int groups) {  // of those sent, the last ones may still be on their way
  const int t = threadIdx.x;
  int landed = 0, over = groups_sent[t] - groups;
  for (int g = 0; g < over; g++)
    for (int i = 0; i < copies_in[t][g]; i++, landed++) memcpy(copies[t][landed].to, copies[t][landed].from, copies[t][landed].size);
  if (over <= 0) return;
  memmove(copies[t], copies[t] + landed, (copies_asked[t] -= landed) * sizeof(Copy));
  memmove(copies_in[t], copies_in[t] + over, ((groups_sent[t] -= over) + 1) * sizeof(int));
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
inline unsigned e4m3_pair(unsigned two) {
  unsigned halves = 0;
  for (int i = 0; i < 2; i++) {
    const int code = two >> 8 * i & 127, exponent = code >> 3, whole = exponent ? 8 | (code & 7) : code & 7;
    const float size = code == 127 ? NAN : ldexpf(whole, (exponent ? exponent : 1) - 10);
    halves |= (unsigned)half_bits(two >> 8 * i & 128 ? -size : size) << 16 * i;
  }
  return halves;
}
inline unsigned half_products(unsigned a, unsigned b) {
  _Float16 x[2], y[2];
  memcpy(x, &a, 4);
  memcpy(y, &b, 4);
  return half_bits((float)x[0] * (float)y[0]) | (unsigned)half_bits((float)x[1] * (float)y[1]) << 16;
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

template <class F> struct Grid {
  int columns, rows;
  F kernel;
};
template <class F> void run(int columns, int rows, int threads, F kernel) {
  using namespace turns;
  blockDim = {threads, 1, 1};
  gridDim = {columns, rows, 1};
  for (Meeting& one : warps) one = {32, 0, 0};
  block = {threads, 0, 0};
  lanes_in_all = threads;
  waits_in_vain = 0;
  Grid<F> grid = {columns, rows, kernel};
  work = &grid;
  body = [](void* given) {
    const Grid<F>& grid = *(const Grid<F>*)given;
    for (int y = 0; y < grid.rows; y++)
      for (int x = 0; x < grid.columns; x++) {
        blockIdx = {x, y, 0};
        grid.kernel();
        __syncthreads();
      }
  };
  char* stacks = (char*)malloc((size_t)threads * STACK);
  for (int t = 0; t < threads; t++) {
    begun[t] = done[t] = false;
    getcontext(&fresh[t]);
    fresh[t].uc_stack.ss_sp = stacks + (size_t)t * STACK;
    fresh[t].uc_stack.ss_size = STACK;
    makecontext(&fresh[t], [] { body(work); done[current] = true; go_on(); }, 0);
  }
  current = threads - 1;
  if (!_setjmp(ended)) go_on();
  free(stacks);
}

// A kernel with arguments that lie at `given`, as a driver takes them; false where it takes others.
template <class... A, size_t... I>
bool launch(void (*kernel)(A...), int columns, int rows, int threads, void** given, int* sizes, int count, std::index_sequence<I...>) {
  if (count != sizeof...(A) || !((sizes[I] == (int)sizeof(A)) && ...)) return false;
  run(columns, rows, threads, [=] { kernel(*(std::remove_const_t<A>*)given[I]...); });
  return true;
}
template <class... A> bool launch(void (*kernel)(A...), int columns, int rows, int threads, void** given, int* sizes, int count) {
  return launch(kernel, columns, rows, threads, given, sizes, count, std::index_sequence_for<A...>());
}
