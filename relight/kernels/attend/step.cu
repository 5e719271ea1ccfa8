// Attention of rows to the keys listed for them, with a sink; see attend/__init__.py for what it is.
//
// Keys come in blocks of 64, at fixed places of a row's lists. The definition walks them in order, and a numerator is rounded
// against the best key so far, so what a block adds hangs on all blocks in front of it. Hence two kernels: attend_scores takes
// the scores of each block and the best of them by itself; attend_values finds the running maxima first, which no order of
// reading can change, then takes the weighted sum of several blocks at once and adds them up in ascending order,
//     total = total * exp(top before - top) + sum of the block.
// A block without keys is passed over. Nothing hangs on how many rows there are, nor on where a key lies.
//
// A block of the grid has one row and 16 heads: of attend_scores with 64 keys, whose warps take 64 dims each; of attend_values
// with 64 dims, whose warps take a block of keys each.
//
// MATRIX: products of bf16 by the matrix unit, where queries and numerators are bf16; else float32 by multiply and add. Other
// macros: those of lists.cuh, IN_BF16 (queries), OUT_BF16 (numerators and results).
#include "lists.cuh"

static_assert(!MATRIX || (STEP_FORM == 80 && IN_BF16 && OUT_BF16), "the matrix unit multiplies bf16");

D int own_row() { return lane_id() >> 2; }
D int own_quarter() { return lane_id() & 3; }
D float value_of(float v) { return v; }
D float value_of(u16 v) { return from_bf16(v); }
D void put(float* p, float v) { *p = v; }
D void put(u16* p, float v) { *p = to_bf16(v); }
D int chunk_format(const Lists& l, int block, int chunk) {
  const int format = format_at(l, block);
  return format == FP8 && chunk * CHUNK >= PLAIN ? WIDE : format;
}

typedef float Sums[TILE][KEYS + 8];  // + 8: neighbouring heads in other banks

#if MATRIX
// This warp's dims of the products of 16 heads with 64 keys.
template <int FORMAT> D void dots(const In* q, int first, const Stored (&places)[KEYS], Sums& sums) {
  const int d = warp_id() * CHUNK + 16 * own_quarter();
  u32 a[4][4];  // four dims each: of head own_row() in 0 and 2, of head own_row() + 8 in 1 and 3
  UNROLL for (int h = 0; h < 2; h++)
    UNROLL for (int half = 0; half < 2; half++) {
      const uint4 v = *(const uint4*)(q + head_of(first, own_row() + 8 * h) * DIM + d + 8 * half);
      a[2 * half][h] = v.x;
      a[2 * half][2 + h] = v.y;
      a[2 * half + 1][h] = v.z;
      a[2 * half + 1][2 + h] = v.w;
    }
  float c[KEYS / 8][ACC] = {};  // all before any is stored: what is loaded may lie anywhere, so no load would pass a store
  UNROLL for (int n = 0; n < KEYS / 8; n++)
    UNROLL for (int half = 0; half < 2; half++) {
      float x[8];
      read8<FORMAT>(places[8 * n + own_row()], d + 8 * half, x);
      UNROLL for (int i = 0; i < 2; i++) {
        const u32(&own)[4] = a[2 * half + i];
        mma(c[n], own[0], own[1], own[2], own[3], pair_of(x[4 * i], x[4 * i + 1]), pair_of(x[4 * i + 2], x[4 * i + 3]));
      }
    }
  UNROLL for (int n = 0; n < KEYS / 8; n++)
    UNROLL for (int i = 0; i < ACC; i++) sums[acc_row(i)][8 * n + acc_token(i)] = c[n][i];
}
#else
// A lane has two keys; `queries` [TILE][DIM] are in shared memory, where all lanes read the same.
template <int FORMAT> D void dots(const float* queries, const Stored (&places)[KEYS], float (&c)[TILE][2]) {
  const Stored at[2] = {places[lane_id()], places[lane_id() + 32]};
  _Pragma("unroll 2") for (int d = warp_id() * CHUNK; d < (warp_id() + 1) * CHUNK; d += 8) {
    float x[2][8];
    UNROLL for (int n = 0; n < 2; n++) read8<FORMAT>(at[n], d, x[n]);
    UNROLL for (int h = 0; h < TILE; h++)
      UNROLL for (int i = 0; i < 8; i += 4) {
        const uint4 v = *(const uint4*)(queries + h * DIM + d + i);
        UNROLL for (int n = 0; n < 2; n++) {
          c[h][n] += __uint_as_float(v.x) * x[n][i];
          c[h][n] += __uint_as_float(v.y) * x[n][i + 1];
          c[h][n] += __uint_as_float(v.z) * x[n][i + 2];
          c[h][n] += __uint_as_float(v.w) * x[n][i + 3];
        }
      }
  }
}
#endif

// q [rows, HEADS, DIM] -> scores [rows, HEADS, blocks, KEYS] of blocks with keys, best [rows, HEADS, blocks].
extern "C" __global__ void __launch_bounds__(32 * CHUNKS)
    attend_scores(const In* q, SOURCE(window), SOURCE(entry), const i64* window_index, const i64* entry_index, int window_blocks,
                  int entry_blocks, float scale, float* scores, float* best) {
  __shared__ Stored places[KEYS];
  alignas(16) __shared__ Sums sums[CHUNKS];  // of each warp; without matrix unit the queries before
  static_assert(sizeof(Sums) >= TILE * CHUNK * sizeof(float), "queries fit");
  const Lists lists = {GIVEN(window), GIVEN(entry), window_index, entry_index, window_blocks, entry_blocks};
  const int blocks = window_blocks + entry_blocks, block = blockIdx.x / GROUPS, row = blockIdx.y;
  const int first = blockIdx.x % GROUPS * TILE, heads = min(TILE, HEADS - first);
  wait_for_previous();
  q += (i64)row * HEADS * DIM;
  best += ((i64)row * HEADS + first) * blocks + block;
  for (int i = threadIdx.x; i < KEYS; i += 32 * CHUNKS) places[i] = key_at(lists, row, block, i);
#if !MATRIX
  float* queries = &sums[0][0][0];
  for (int i = threadIdx.x; i < TILE * DIM; i += 32 * CHUNKS) queries[i] = value_of(q[head_of(first, i / DIM) * DIM + i % DIM]);
#endif
  __syncthreads();
  if (!some_key(places)) {
    for (int h = threadIdx.x; h < heads; h += 32 * CHUNKS) best[h * blocks] = none();
    return;
  }
  const int format = chunk_format(lists, block, warp_id());
#if MATRIX
#define DOTS(F) dots<F>(q, first, places, sums[warp_id()])
  BY_FORMAT(format, DOTS);
#else
#define DOTS(F) dots<F>(queries, places, c)
  float c[TILE][2] = {};
  BY_FORMAT(format, DOTS);
  __syncthreads();  // sums lie where the queries are
  UNROLL for (int h = 0; h < TILE; h++)
    UNROLL for (int n = 0; n < 2; n++) sums[warp_id()][h][lane_id() + 32 * n] = c[h][n];
#endif
  __syncthreads();
  for (int h = warp_id(); h < heads; h += CHUNKS) {
    float most = none();
    UNROLL for (int key = lane_id(); key < KEYS; key += 32) {
      float s = sums[0][h][key];
      UNROLL for (int c = 1; c < CHUNKS; c++) s = add(s, sums[c][h][key]);
      s = places[key].scale ? mul(s, scale) : none();
      scores[(((i64)row * HEADS + first + h) * blocks + block) * KEYS + key] = s;
      most = fmaxf(most, s);
    }
    for (int apart = 16; apart; apart >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, apart));
    if (lane_id() == 0) best[h * blocks] = most;
  }
}

constexpr int WARPS = 8, OUTPUTS = TILE * CHUNK / (32 * WARPS);
typedef float Part[TILE][CHUNK + 4];
typedef float Numerators[2][16];  // of head own_row() + 8 h and key 16 s + 4 own_quarter() + i in [h][4 s + i]

// Numerators of a block, and their sums for the same two heads: the definition's tree, whose top bits of a key are s.
D void weigh(const float* scores, int blocks, int first, const float (&top)[TILE], Numerators& p, float (&sum)[2]) {
  UNROLL for (int h = 0; h < 2; h++) {
    const int own = own_row() + 8 * h;
    const float* from = scores + (i64)head_of(first, own) * blocks * KEYS + 4 * own_quarter();
    UNROLL for (int s = 0; s < 4; s++) {
      const uint4 v = *(const uint4*)(from + 16 * s);
      UNROLL for (int i = 0; i < 4; i++) {
        const u32 bits = i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
        p[h][4 * s + i] = expf(__uint_as_float(bits) - top[own]);
      }
    }
    float t[4];
    UNROLL for (int i = 0; i < 4; i++) {
      t[i] = add(add(p[h][i], p[h][8 + i]), add(p[h][4 + i], p[h][12 + i]));
      t[i] = add(t[i], __shfl_xor_sync(~0u, t[i], 2));
      t[i] = add(t[i], __shfl_xor_sync(~0u, t[i], 1));
    }
    sum[h] = add(add(t[0], t[2]), add(t[1], t[3]));
  }
}

#if MATRIX
template <int FORMAT> D void weighted(const Numerators& p, const Stored (&places)[KEYS], int d, Part& part) {
  float c[8][ACC] = {};
  UNROLL for (int s = 0; s < 4; s++) {
    u32 a[2][2];
    UNROLL for (int h = 0; h < 2; h++)
      UNROLL for (int i = 0; i < 2; i++) a[h][i] = rounded_pair(p[h][4 * s + 2 * i], p[h][4 * s + 2 * i + 1]);
    float x[4][8];  // of four keys, the dims 8 own_row() to + 7
    UNROLL for (int i = 0; i < 4; i++) read8<FORMAT>(places[16 * s + 4 * own_quarter() + i], d + 8 * own_row(), x[i]);
    UNROLL for (int j = 0; j < 8; j++)
      mma(c[j], a[0][0], a[1][0], a[0][1], a[1][1], pair_of(x[0][j], x[1][j]), pair_of(x[2][j], x[3][j]));
  }
  UNROLL for (int i = 0; i < ACC; i++)
    UNROLL for (int j = 0; j < 8; j += 4)
      *(uint4*)&part[acc_row(i)][8 * acc_token(i) + j] = make_uint4(__float_as_uint(c[j][i]), __float_as_uint(c[j + 1][i]),
                                                                    __float_as_uint(c[j + 2][i]), __float_as_uint(c[j + 3][i]));
}
#else
// A lane has two dims. Numerators go through shared memory, [KEYS][TILE] where the part will be.
template <int FORMAT> D void weighted(const Numerators& p, const Stored (&places)[KEYS], int d, Part& part) {
  static_assert(sizeof(Part) >= KEYS * TILE * sizeof(float), "numerators fit");
  float* all = &part[0][0];
  UNROLL for (int h = 0; h < 2; h++)
    UNROLL for (int s = 0; s < 4; s++)
      UNROLL for (int i = 0; i < 4; i++)
        all[(16 * s + 4 * own_quarter() + i) * TILE + own_row() + 8 * h] = rounded(p[h][4 * s + i]);
  __syncwarp();
  float c[TILE][2] = {};
  _Pragma("unroll 4") for (int key = 0; key < KEYS; key++) {
    float x[2];
    read2<FORMAT>(places[key], d + 2 * lane_id(), x);
    UNROLL for (int h = 0; h < TILE; h += 4) {
      const uint4 v = *(const uint4*)(all + key * TILE + h);
      UNROLL for (int n = 0; n < 2; n++) {
        c[h][n] += __uint_as_float(v.x) * x[n];
        c[h + 1][n] += __uint_as_float(v.y) * x[n];
        c[h + 2][n] += __uint_as_float(v.z) * x[n];
        c[h + 3][n] += __uint_as_float(v.w) * x[n];
      }
    }
  }
  __syncwarp();
  UNROLL for (int h = 0; h < TILE; h++)
    UNROLL for (int n = 0; n < 2; n++) part[h][2 * lane_id() + n] = c[h][n];
}
#endif

// A warp's keys.
D void find(Stored (&places)[KEYS], const Lists& lists, int row, int block, int blocks) {
  for (int key = lane_id(); key < KEYS; key += 32)
    places[key] = block < blocks ? key_at(lists, row, block, key) : Stored{nullptr, nullptr};
}

// scores and best as above, sink [HEADS] -> y [rows, HEADS, DIM].
extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    attend_values(const float* scores, const float* best, SOURCE(window), SOURCE(entry), const i64* window_index,
                  const i64* entry_index, int window_blocks, int entry_blocks, const float* sink, Out* y) {
  alignas(16) __shared__ Part parts[WARPS];
  __shared__ Stored places[WARPS][KEYS];
  __shared__ float top[WARPS][TILE], shrink[WARPS][TILE], sum[WARPS][TILE];
  __shared__ bool live[WARPS];
  const Lists lists = {GIVEN(window), GIVEN(entry), window_index, entry_index, window_blocks, entry_blocks};
  const int blocks = window_blocks + entry_blocks, row = blockIdx.y, w = warp_id();
  const int chunk = blockIdx.x % CHUNKS, first = blockIdx.x / CHUNKS * TILE;
  // Lists are older than the kernel before, and read past L1, which may be older still.
  find(places[w], lists, row, w, blocks);
  wait_for_previous();
  scores += (i64)row * HEADS * blocks * KEYS;
  best += (i64)row * HEADS * blocks;
  float total[OUTPUTS] = {}, below[OUTPUTS] = {}, so_far = LEAST;
  for (int base = 0; base < blocks; base += WARPS) {
    // The best key so far, of head threadIdx.x / 8 after block base + threadIdx.x % 8.
    if (threadIdx.x < WARPS * TILE) {
      const int h = threadIdx.x / WARPS, b = threadIdx.x % WARPS;
      float m = base + b < blocks ? best[(i64)head_of(first, h) * blocks + base + b] : none();
      UNROLL for (int step = 1; step < WARPS; step *= 2) {
        const float before = __shfl_sync(~0u, m, lane_id() - step);
        if (b >= step) m = fmaxf(m, before);
      }
      m = fmaxf(m, so_far);
      const float before = __shfl_sync(~0u, m, lane_id() - 1);
      top[b][h] = m;
      shrink[b][h] = expf((b ? before : so_far) - m);  // exactly 1 where the block has no better key
      so_far = __shfl_sync(~0u, m, lane_id() | WARPS - 1);
    }
    if (base) find(places[w], lists, row, base + w, blocks);
    __syncthreads();
    const bool some = some_key(places[w]);
    if (some) {
      Numerators p;
      float own[2];  // stored when all is loaded
      weigh(scores + (i64)(base + w) * KEYS, blocks, first, top[w], p, own);
      const int format = chunk_format(lists, base + w, chunk);
#define WEIGHTED(F) weighted<F>(p, places[w], chunk * CHUNK, parts[w])
      BY_FORMAT(format, WEIGHTED);
      UNROLL for (int h = 0; h < 2; h++)
        if (own_quarter() == 0) sum[w][own_row() + 8 * h] = own[h];
    }
    if (lane_id() == 0) live[w] = some;
    __syncthreads();
    UNROLL for (int o = 0; o < OUTPUTS; o++) {
      const int h = (threadIdx.x + o * 32 * WARPS) / CHUNK, d = threadIdx.x % CHUNK;
      for (int b = 0; b < WARPS; b++)
        if (live[b]) {
          total[o] = add(mul(total[o], shrink[b][h]), parts[b][h][d]);
          below[o] = add(mul(below[o], shrink[b][h]), sum[b][h]);
        }
    }
    __syncthreads();
  }
  if (threadIdx.x < WARPS * TILE && threadIdx.x % WARPS == 0) top[0][threadIdx.x / WARPS] = so_far;
  __syncthreads();
  UNROLL for (int o = 0; o < OUTPUTS; o++) {
    const int h = (threadIdx.x + o * 32 * WARPS) / CHUNK, d = threadIdx.x % CHUNK;
    if (first + h >= HEADS) continue;
    const float found = __fdiv_rn(total[o], add(below[o], expf(sink[first + h] - top[0][h])));
    put(y + ((i64)row * HEADS + first + h) * DIM + chunk * CHUNK + d, found);
  }
}
