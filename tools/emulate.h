// A block on a processor: lanes meet where lanes of a device meet, and each access to memory is looked at (watch.h). For tests of
// kernels without a device; the layouts of matrix fragments are those of the PTX ISA, "Matrix Fragments for mma". Knows no kernel.
// Few headers: they are most of what compiling a kernel takes.
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <utility>
#include "watch.h"
template <class T> constexpr T max(T a, T b) { return a < b ? b : a; }
template <class T> constexpr T min(T a, T b) { return b < a ? b : a; }
template <int WORDS> struct alignas(4 * WORDS) Words;  // several words that are loaded and stored at once
template <> struct alignas(16) Words<4> {
  unsigned x, y, z, w;
  Words() = default;
  Words(unsigned x, unsigned y, unsigned z, unsigned w) : x(x), y(y), z(z), w(w) {}
  Words(const Words& o) : x(o.x), y(o.y), z(o.z), w(o.w) { watch::whole(&o, 16); }
  Words& operator=(const Words& o) {
    watch::whole(&o, 16), watch::whole(this, 16);
    x = o.x, y = o.y, z = o.z, w = o.w;
    return *this;
  }
};
template <> struct alignas(8) Words<2> {
  unsigned x, y;
  Words() = default;
  Words(unsigned x, unsigned y) : x(x), y(y) {}
  Words(const Words& o) : x(o.x), y(o.y) { watch::whole(&o, 8); }
  Words& operator=(const Words& o) {
    watch::whole(&o, 8), watch::whole(this, 8);
    x = o.x, y = o.y;
    return *this;
  }
};
typedef Words<4> uint4;
typedef Words<2> uint2;
#define __device__
#define __forceinline__ inline
#define __global__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)

// Lanes take turns: one runs until it meets the others, then another goes on, in an order that each block draws anew. A switch is
// a jump between stacks, a thousand times faster than threads that wait for each other.
namespace turns {
static const int MOST = watch::MOST, STACK = 128 << 10;
static ucontext_t fresh[MOST];
static jmp_buf lanes_at[MOST];
static bool begun[MOST], done[MOST];
static int order[MOST], place[MOST];  // lane order[i] has place i
static int current, lanes_in_all, lanes_of_block;
static long waits_in_vain;
static unsigned drawn = 1;
static void (*body)(void*);  // what each lane does, of `work`
static void* work;
HOST static int draw(int below) {
  drawn = drawn * 1664525u + 1013904223u;
  return (drawn >> 8) % below;
}
HOST static void shuffle(int* list, int count) {
  for (int i = count - 1; i > 0; i--) {
    const int other = draw(i + 1), held = list[i];
    list[i] = list[other];
    list[other] = held;
  }
}
HOST static void begin_block() {
  shuffle(order, lanes_in_all);
  for (int i = 0; i < lanes_in_all; i++) place[order[i]] = i;
  watch::begin_block();
}
HOST static void go_on() {  // leaves the lane that runs for the next one that is not done
  for (int i = 1; i <= lanes_in_all; i++) {
    const int next = order[(place[current] + i) % lanes_in_all];
    if (done[next]) continue;
    current = watch::me = next;
    threadIdx.x = next % lanes_of_block;
    watch::enter(next / lanes_of_block);
    blockIdx.x = blockIdx.x / CLUSTER * CLUSTER + watch::rank;
    if (begun[next]) _longjmp(lanes_at[next], 1);
    begun[next] = true;
    setcontext(&fresh[next]);
  }
  _longjmp(watch::ended, 1);
}
struct Meeting {
  int count, here, line;
  long past;
  HOST void wait(int at, bool last_of_block = false) {  // `at`: a line of the source, where all must be
    watch::settle();
    if (here && at != line) watch::stop("threads meet at line %d and at line %d", line, at);
    line = at;
    const long mine = past;
    if (++here == count) {
      here = 0;
      past++;
      waits_in_vain = 0;
      if (last_of_block) begin_block();
      return;
    }
    while (past == mine) {
      if (++waits_in_vain > 4l * lanes_in_all) watch::stop("at line %d threads wait for others that never come", line);
      if (!_setjmp(lanes_at[current])) go_on();
    }
  }
};
}  // namespace turns
static turns::Meeting warps[32 * CLUSTER], blocks[CLUSTER], cluster, end;
static unsigned given[32 * CLUSTER][32][6];  // by warp, lane: what lanes show each other
HOST static int lane() { return threadIdx.x & 31; }
HOST static int warp() { return watch::me >> 5; }  // of all in a cluster
HOST static void meet_warp(int line) { warps[warp()].wait(line); }
HOST static void sync_warp(int line) {
  meet_warp(line);
  watch::warp_meetings[watch::me]++;
}
HOST static void sync_block(int line) {
  blocks[watch::rank].wait(line);
  watch::block_meetings[watch::me]++;
}
#define __syncwarp() sync_warp(__LINE__)
#define __syncthreads() sync_block(__LINE__)
HOST static void waited() { watch::waited[watch::me] = true; }

// A cluster: no thread is told anything before all are there, and none goes on before all are told.
static int bytes_wanted[CLUSTER], bytes_told[CLUSTER];
HOST static void meet_cluster(int line) {
  cluster.wait(line);
  watch::block_meetings[watch::me]++;
}
HOST static void want_told(int bytes) { bytes_wanted[watch::rank] = bytes, bytes_told[watch::rank] = 0; }
template <class... V> HOST void tell_block(float* place, int peer, V... values) {
  const float all[] = {values...};
  watch::settle();
  watch::tell(place, peer, all, sizeof all);
  bytes_told[peer] += sizeof all;
}
HOST static void hear_all(int line) {
  meet_cluster(line);
  if (bytes_told[watch::rank] != bytes_wanted[watch::rank])
    watch::stop("a block waits for %d bytes and is told %d", bytes_wanted[watch::rank], bytes_told[watch::rank]);
}

// Copies past the registers land as late as they may: when their lane waits for them.
struct Copy {
  char* to;
  const void* from;
  int size, group;
};
static const int MOST_COPIES = 256;
static Copy copies[turns::MOST][MOST_COPIES];
static int num_copies[turns::MOST], groups_sent[turns::MOST];
HOST static unsigned __cvta_generic_to_shared(const void* p) { return (const char*)p - __start_shared_memory; }
HOST static void* shared_at(unsigned at) { return __start_shared_memory + at; }
HOST static void copy_later(void* to, const void* from, int size) {
  watch::whole(to, size), watch::whole(from, size);
  watch::touch(from, size, false), watch::touch(to, size, true);
  watch::forget(to, size);
  const int me = watch::me;
  if (num_copies[me] == MOST_COPIES) watch::stop("a thread has more copies under way than are followed");
  copies[me][num_copies[me]++] = {(char*)to, from, size, groups_sent[me]};
}
HOST static void copies_sent_by_lane() { groups_sent[watch::me]++; }
HOST static void copies_landed_but(int groups) {  // of those sent, the last ones may still be on their way
  const int me = watch::me, count = num_copies[me];
  num_copies[me] = 0;
  for (int i = 0; i < count; i++) {
    const Copy one = copies[me][i];
    if (one.group >= groups_sent[me] - groups) {
      copies[me][num_copies[me]++] = one;
      continue;
    }
    watch::touch(one.to, one.size, true);
    memcpy(one.to, one.from, one.size);
  }
}

inline uint2 make_uint2(unsigned a, unsigned b) { return uint2(a, b); }
inline uint4 make_uint4(unsigned a, unsigned b, unsigned c, unsigned d) { return uint4(a, b, c, d); }
inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __ffs(unsigned v) { return __builtin_ffs(v); }
HOST static int atomicAdd(int* p, int v) {
  const int before = *p;
  watch::whole(p, 4), watch::atomic(p, 4);
  *p += v;
  return before;
}
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float v) { return 1.f / sqrtf(v); }
template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcg(const T* p) { return *p; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned which) {
  const uint64_t all = (uint64_t)b << 32 | a;
  unsigned found = 0;
  for (int i = 0; i < 4; i++) found |= (unsigned)(all >> (which >> 4 * i & 7) * 8 & 255) << 8 * i;
  return found;
}
template <class T> HOST T shuffle(int line, unsigned, T value, int from) {
  memcpy(&given[warp()][lane()][0], &value, 4);
  meet_warp(line);
  memcpy(&value, &given[warp()][from & 31][0], 4);
  meet_warp(line);
  return value;
}
template <class T> HOST T shuffle_xor(int line, unsigned all, T value, int apart) { return shuffle(line, all, value, lane() ^ apart); }
HOST static unsigned ballot(int line, unsigned, bool vote) {
  given[warp()][lane()][0] = vote;
  meet_warp(line);
  unsigned found = 0;
  for (int i = 0; i < 32; i++) found |= given[warp()][i][0] << i;
  meet_warp(line);
  return found;
}
HOST static int sum_of_warp(int line, unsigned, int value) {
  given[warp()][lane()][0] = value;
  meet_warp(line);
  int found = 0;
  for (int i = 0; i < 32; i++) found += given[warp()][i][0];
  meet_warp(line);
  return found;
}
#define __reduce_add_sync(...) sum_of_warp(__LINE__, __VA_ARGS__)
#define __shfl_sync(...) shuffle(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) shuffle_xor(__LINE__, __VA_ARGS__)
#define __ballot_sync(...) ballot(__LINE__, __VA_ARGS__)

inline unsigned short bf16_bits(float v) {
  const unsigned b = __float_as_uint(v);
  return v != v ? 0x7FFF : b + 0x7FFF + (b >> 16 & 1) >> 16;
}
inline unsigned short half_bits(float v) { _Float16 h = (_Float16)v; unsigned short b; memcpy(&b, &h, 2); return b; }
HOST static float operand(unsigned bits) {
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
HOST static double pair(unsigned a, unsigned b) {
  return (double)operand(a & 65535) * operand(b & 65535) + (double)operand(a >> 16) * operand(b >> 16);
}
HOST static void show(unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  const unsigned all[6] = {a0, a1, a2, a3, b0, b1};
  memcpy(given[warp()][lane()], all, sizeof all);
  meet_warp(__LINE__);
}
// `halves` 2: m16n8k16; 1: m16n8k8, of a0, a1 and b0.
HOST static void m16n8(float* c, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1, int halves) {
  show(a0, a1, a2, a3, b0, b1);
  for (int i = 0; i < 4; i++) {
    const int row = (lane() >> 2) + (i >> 1) * 8, column = (lane() & 3) * 2 + (i & 1);
    double sum = c[i];
    for (int t = 0; t < 4; t++)
      for (int h = 0; h < halves; h++)
        sum += pair(given[warp()][(row & 7) * 4 + t][(row >> 3) + 2 * h], given[warp()][column * 4 + t][4 + h]);
    c[i] = sum;
  }
  meet_warp(__LINE__);
}
HOST static void m8n8k4(float* c, unsigned a0, unsigned a1, unsigned b0, unsigned b1) {
  show(a0, a1, 0, 0, b0, b1);
  const int quad = lane() >> 2 & 3;
  auto holder = [&](int i) HOST { return given[warp()][(i & 3) + quad * 4 + (i >> 2) * 16]; };
  for (int i = 0; i < 8; i++) {
    const unsigned *a = holder((lane() & 1) + (i & 2) + (lane() >> 4) * 4), *b = holder((i & 4) + (lane() & 2) + (i & 1));
    c[i] = c[i] + pair(a[0], b[4]) + pair(a[1], b[5]);
  }
  meet_warp(__LINE__);
}

// wgmma of m64 and 32 bytes of K (cuda/groups.cuh): adds to 4 `width` sums of a lane. Weights lie in shared memory or are `mine`. Where
// a byte lies is what PTX ISA says of matrices whose rows are 128 bytes and swizzled. `kind`: 0 E4M3, 1 bf16, 2 bf16 whose rows are K.
HOST static float e4m3_value(unsigned code) {
  const int size = code & 127, exponent = size >> 3, whole = exponent ? 8 | (size & 7) : size & 7;
  const float v = size == 127 ? NAN : ldexpf(whole, (exponent ? exponent : 1) - 10);
  return code & 128 ? -v : v;
}
// 32 bytes of a row.
HOST static void row_of_group(uint64_t rows, int row, unsigned char* bytes) {
  if (rows >> 62 != 1 || (rows >> 49 & 7) || (rows & 63) > 7) watch::stop("rows of a group are described wrongly");
  const unsigned at = ((rows & 0x3FFF) << 4) + (rows >> 32 & 0x3FFF) * 16 * (row / 8) + row % 8 * 128;
  for (int chunk = 0; chunk < 2; chunk++) {
    const unsigned from = at + 16 * chunk;
    const char* p = (const char*)__start_shared_memory + (from ^ (from >> 7 & 7) << 4);
    watch::touch(p, 16, false);
    memcpy(bytes + 16 * chunk, p, 16);
  }
}
// 16 values of a column, where rows are K.
HOST static void column_of_group(uint64_t rows, int column, unsigned char* bytes) {
  if (rows >> 62 != 1 || (rows >> 49 & 7) || (rows & 63) > 7) watch::stop("columns of a group are described wrongly");
  const unsigned begin = ((rows & 0x3FFF) << 4) + (rows >> 16 & 0x3FFF) * 16 * (column / 64) + column % 64 * 2;
  for (int k = 0; k < 16; k++) {
    const unsigned from = begin + (rows >> 32 & 0x3FFF) * 16 * (k / 8) + k % 8 * 128;
    const char* p = (const char*)__start_shared_memory + (from ^ (from >> 7 & 7) << 4);
    watch::touch(p, 2, false);
    memcpy(bytes + 2 * k, p, 2);
  }
}
HOST static float value_in_group(const unsigned char* bytes, int k, bool bf16) {
  return bf16 ? __uint_as_float(bytes[2 * k] << 16 | (unsigned)bytes[2 * k + 1] << 24) : e4m3_value(bytes[k]);
}
HOST static void group_products(float* sums, int width, uint64_t rows, const unsigned* mine, uint64_t tokens, bool more, int kind) {
  const bool bf16 = kind > 0;
  if (mine) memcpy(given[warp()][lane()], mine, 16);
  meet_warp(__LINE__);
  unsigned char w[2][32], x[32];
  for (int half = 0; half < 2; half++) {
    const int row = (lane() >> 2) + 8 * half;
    if (!mine) row_of_group(rows, warp() % 4 * 16 + row, w[half]);
    if (mine)
      for (int at = 0; at < 32; at += 4)
        memcpy(w[half] + at, &given[warp()][(lane() & 28) + at % 16 / 4][half + 2 * (at / 16)], 4);
  }
  for (int column = 0; column < 2 * width; column++) {
    const int its = column / 2 * 8 + (lane() & 3) * 2 + column % 2;
    kind == 2 ? column_of_group(tokens, its, x) : row_of_group(tokens, its, x);
    for (int half = 0; half < 2; half++) {
      float* sum = sums + column / 2 * 4 + half * 2 + column % 2;
      double found = more ? *sum : 0;
      for (int k = 0; k < (bf16 ? 16 : 32); k++) found += (double)value_in_group(w[half], k, bf16) * value_in_group(x, k, bf16);
      *sum = found;
    }
  }
  meet_warp(__LINE__);
}

template <class F> struct Grid {
  int columns, rows;
  int* order;  // in which blocks run
  F kernel;
};
template <class F> HOST void run(int columns, int rows, int threads, F kernel) {
  using namespace turns;
  blockDim = {threads, 1, 1};
  gridDim = {columns, rows, 1};
  for (Meeting& one : warps) one = {32, 0, 0, 0};
  for (Meeting& one : blocks) one = {threads, 0, 0, 0};
  lanes_of_block = threads;
  lanes_in_all = threads * CLUSTER;
  cluster = end = {lanes_in_all, 0, 0, 0};
  waits_in_vain = watch::doubted.size = 0;
  const int count = columns * rows / CLUSTER;
  Grid<F> grid = {columns, rows, (int*)malloc(count * sizeof(int)), kernel};
  for (int i = 0; i < count; i++) grid.order[i] = i;
  shuffle(grid.order, count);
  work = &grid;
  body = [](void* given) HOST {
    const Grid<F>& grid = *(const Grid<F>*)given;
    for (int i = 0; i < grid.columns * grid.rows / CLUSTER; i++) {
      const int first = grid.order[i] * CLUSTER;
      blockIdx = {first % grid.columns + watch::rank, first / grid.columns, 0};
      num_copies[watch::me] = 0;
      grid.kernel();
      end.wait(0, true);
    }
  };
  char* stacks = (char*)malloc((size_t)lanes_in_all * STACK);
  watch::stacks = stacks, watch::stacks_end = stacks + (size_t)lanes_in_all * STACK;
  for (int t = 0; t < lanes_in_all; t++) {
    order[t] = t;
    begun[t] = done[t] = false;
    getcontext(&fresh[t]);
    fresh[t].uc_stack.ss_sp = stacks + (size_t)t * STACK;
    fresh[t].uc_stack.ss_size = STACK;
    makecontext(&fresh[t], []() HOST { body(work); done[current] = true; go_on(); }, 0);
  }
  begin_block();
  current = order[lanes_in_all - 1];
  if (!_setjmp(watch::ended)) go_on();
  free(stacks);
  free(grid.order);
}

// A kernel with arguments that lie at `given`, as a driver takes them.
template <class... A, size_t... I>
HOST void start(void (*kernel)(A...), int columns, int rows, int threads, void** given, int* sizes, int count, std::index_sequence<I...>) {
  if (count != sizeof...(A) || !((sizes[I] == (int)sizeof(A)) && ...)) {
    snprintf(watch::message, sizeof watch::message, "it takes other arguments");
    return;
  }
  run(columns, rows, threads, [=]() HOST { kernel(*(std::remove_const_t<A>*)given[I]...); });
}
struct Given {  // by the host, of one launch
  int columns, rows, threads, bound, count, num_ranges, num_changed;
  void** arguments;
  int* sizes;
  Range *ranges, *changed;
};
// What went wrong; nothing if all went well.
template <class... A> HOST const char* launch(void (*kernel)(A...), const Given& g) {
  watch::message[0] = 0;
  if (g.threads > g.bound) return "it has more threads than its launch bounds say";
  if (g.columns < 1 || g.columns % CLUSTER || g.rows < 1 || g.rows > 65535) return "there is no such grid";
  watch::ranges = g.ranges, watch::num_ranges = g.num_ranges;
  watch::changed = g.changed, watch::num_changed = g.num_changed;
  start(kernel, g.columns, g.rows, g.threads, g.arguments, g.sizes, g.count, std::index_sequence_for<A...>());
  return watch::message;
}
