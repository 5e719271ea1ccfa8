// Attention of rows to the keys listed for them, with a sink; see attend/__init__.py for what it is.
//
// Keys come in blocks of 64, at fixed places of a row's lists. The definition walks them in order, and a numerator is rounded
// against the best key so far, so what a block adds hangs on all blocks in front of it. Hence two kernels: attend_scores takes
// the scores of each block and the best of them by itself; attend_values finds the running maxima first, which no order of
// reading can change, then takes the weighted sum of several blocks at once and adds them up in ascending order,
//     total = total * exp(top before - top) + sum of the block.
// A block without keys is passed over. Nothing hangs on how many rows there are, nor on where a key lies.
//
// A block of the grid has one row. Of attend_scores it has SCORE_HEADS heads and SCORE_KEYS keys, and its warps take 64 dims each; of
// attend_values 16 heads and VALUE_DIMS dims, and its warps take a block of keys each. No bit hangs on these three, nor on AHEAD:
// whether rows are asked for before the scores are there.
//
// MATRIX: products of bf16 by the matrix unit, where queries and numerators are bf16; else float32 by multiply and add. Other
// macros: those of lists.cuh, IN_BF16 (queries), OUT_BF16 (numerators and results).
#include "lists.cuh"

static_assert(!MATRIX || (STEP_FORM == 80 && IN_BF16 && OUT_BF16), "the matrix unit multiplies bf16");

D int own_row() { return lane_id() >> 2; }
D int own_quarter() { return lane_id() & 3; }
D float value_of(float v) { return v; }
D float value_of(u16 v) { return from_bf16(v); }
D void put(float* p, const float (&v)[4]) {
  *(uint4*)p = make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
}
D void put(u16* p, const float (&v)[4]) {
  uint2 x;
  x.x = to_bf16(v[0]) | (u32)to_bf16(v[1]) << 16;
  x.y = to_bf16(v[2]) | (u32)to_bf16(v[3]) << 16;
  *(uint2*)p = x;
}
D int chunk_format(const Lists& l, int block, int chunk) {
  const int format = format_at(l, block);
  return format == FP8 && chunk * CHUNK >= PLAIN ? WIDE : format;
}

constexpr int PARTS = KEYS / SCORE_KEYS;              // of a block of keys, each with a best of its own
typedef float Sums[SCORE_HEADS][SCORE_KEYS + 8];  // + 8: neighbouring heads in other banks

#if MATRIX
typedef u32 Queries[SCORE_HEADS / TILE][4][4];  // four dims each: of head own_row() in 0 and 2, of head own_row() + 8 in 1 and 3
D int own_dims() { return warp_id() * CHUNK + 16 * own_quarter(); }
D void read_queries(const In* q, int first, Queries& a) {
  UNROLL for (int t = 0; t < SCORE_HEADS / TILE; t++)
    UNROLL for (int h = 0; h < 2; h++)
      UNROLL for (int half = 0; half < 2; half++) {
        const uint4 v = *(const uint4*)(q + head_of(first, TILE * t + own_row() + 8 * h) * DIM + own_dims() + 8 * half);
        a[t][2 * half][h] = v.x;
        a[t][2 * half][2 + h] = v.y;
        a[t][2 * half + 1][h] = v.z;
        a[t][2 * half + 1][2 + h] = v.w;
      }
}
// This warp's dims of the products of all heads with all keys of the block.
template <int FORMAT> D void dots(const Queries& a, const Stored* places, Sums& sums) {
  Packed<16> x[SCORE_KEYS / 8];  // all before any is stored: what is loaded may lie anywhere, so no load would pass a store
  UNROLL for (int n = 0; n < SCORE_KEYS / 8; n++) ask<FORMAT>(places[8 * n + own_row()], own_dims(), x[n]);
  float c[SCORE_HEADS / TILE][SCORE_KEYS / 8][ACC] = {};
  UNROLL for (int n = 0; n < SCORE_KEYS / 8; n++) {
    u32 pairs[8];
    unpack<FORMAT>(x[n], pairs);
    UNROLL for (int t = 0; t < SCORE_HEADS / TILE; t++)
      UNROLL for (int i = 0; i < 4; i++) {
        const u32(&own)[4] = a[t][i];
        mma(c[t][n], own[0], own[1], own[2], own[3], pairs[2 * i], pairs[2 * i + 1]);
      }
  }
  UNROLL for (int t = 0; t < SCORE_HEADS / TILE; t++)
    UNROLL for (int n = 0; n < SCORE_KEYS / 8; n++)
      UNROLL for (int i = 0; i < ACC; i++) sums[TILE * t + acc_row(i)][8 * n + acc_token(i)] = c[t][n][i];
}
#else
static_assert(SCORE_KEYS == KEYS && SCORE_HEADS == TILE && VALUE_DIMS == CHUNK, "a lane has two keys, and two dims");
// `queries` [TILE][DIM] are in shared memory, where all lanes read the same.
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

// q [rows, HEADS, DIM] -> scores [rows, HEADS, blocks, KEYS] of blocks with keys, best [rows, HEADS, blocks, PARTS].
extern "C" __global__ void __launch_bounds__(32 * CHUNKS)
    attend_scores(const In* q, SOURCE(window), SOURCE(entry), const i64* window_index, const i64* entry_index, int window_blocks,
                  int entry_blocks, float scale, float* scores, float* best) {
  __shared__ Stored places[KEYS];
  alignas(16) __shared__ Sums sums[CHUNKS];  // of each warp; without matrix unit the queries before
  static_assert(sizeof(Sums) >= TILE * CHUNK * sizeof(float), "queries fit");
  const Lists lists = {GIVEN(window), GIVEN(entry), window_index, entry_index, window_blocks, entry_blocks};
  constexpr int GROUPS = (HEADS + SCORE_HEADS - 1) / SCORE_HEADS;
  const int blocks = window_blocks + entry_blocks, at = blockIdx.x / GROUPS, block = at / PARTS, row = blockIdx.y;
  const int first = blockIdx.x % GROUPS * SCORE_HEADS, heads = min(SCORE_HEADS, HEADS - first);
  wait_for_previous();
  q += (i64)row * HEADS * DIM;
  best += ((i64)row * HEADS + first) * blocks * PARTS + at;
  for (int i = threadIdx.x; i < KEYS; i += 32 * CHUNKS) places[i] = key_at(lists, row, block, i);
#if MATRIX
  Queries a;  // on their way while places are found
  read_queries(q, first, a);
#else
  float* queries = &sums[0][0][0];
  for (int i = threadIdx.x; i < TILE * DIM; i += 32 * CHUNKS) queries[i] = value_of(q[head_of(first, i / DIM) * DIM + i % DIM]);
#endif
  __syncthreads();
  if (!some_key(places)) {
    for (int h = threadIdx.x; h < heads; h += 32 * CHUNKS) best[h * blocks * PARTS] = none();
    return;
  }
  const int format = chunk_format(lists, block, warp_id());
#if MATRIX
#define DOTS(F) dots<F>(a, places + at % PARTS * SCORE_KEYS, sums[warp_id()])
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
  _Pragma("unroll 4") for (int h = warp_id(); h < heads; h += CHUNKS) {
    float most = none();
    UNROLL for (int key = lane_id(); key < SCORE_KEYS; key += 32) {
      float s = sums[0][h][key];
      UNROLL for (int c = 1; c < CHUNKS; c++) s = add(s, sums[c][h][key]);
      const int place = at % PARTS * SCORE_KEYS + key;
      s = places[place].scale ? mul(s, scale) : none();
      scores[(((i64)row * HEADS + first + h) * blocks + block) * KEYS + place] = s;
      most = fmaxf(most, s);
    }
    for (int apart = 16; apart; apart >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, apart));
    if (lane_id() == 0) best[h * blocks * PARTS] = most;
  }
}

constexpr int PIECE = VALUE_DIMS < CHUNK ? VALUE_DIMS : CHUNK;  // dims that a warp takes at a time: they are of one format
constexpr int GROUPS = (HEADS + TILE - 1) / TILE, SPANS = DIM / VALUE_DIMS, PIECES = VALUE_DIMS / PIECE, OWN = PIECE / 8;
typedef float Part[TILE][VALUE_DIMS + 4];

// Scores of a block for one head: of key 16 s + 4 own_quarter() + i in [4 s + i].
D void read_scores(const float* scores, float (&p)[16]) {
  UNROLL for (int s = 0; s < 4; s++) {
    const uint4 v = *(const uint4*)(scores + 16 * s + 4 * own_quarter());
    p[4 * s] = __uint_as_float(v.x);
    p[4 * s + 1] = __uint_as_float(v.y);
    p[4 * s + 2] = __uint_as_float(v.z);
    p[4 * s + 3] = __uint_as_float(v.w);
  }
}
// Makes numerators of them. Returns their sum, the definition's tree, whose top bits of a key are s.
D float weigh(float top, float (&p)[16]) {
  UNROLL for (int i = 0; i < 16; i++) p[i] = expf(p[i] - top);
  float t[4];
  UNROLL for (int i = 0; i < 4; i++) {
    t[i] = add(add(p[i], p[8 + i]), add(p[4 + i], p[12 + i]));
    t[i] = add(t[i], __shfl_xor_sync(~0u, t[i], 2));
    t[i] = add(t[i], __shfl_xor_sync(~0u, t[i], 1));
  }
  return add(add(t[0], t[2]), add(t[1], t[3]));
}

#if MATRIX
typedef Packed<OWN> Four[4];  // of key 16 s + 4 own_quarter() + i, the dims OWN * own_row() on, in [i]
template <int FORMAT> D void ask(const Stored (&places)[KEYS], int d, int s, Four& x) {
  UNROLL for (int i = 0; i < 4; i++) load<FORMAT>(places[16 * s + 4 * own_quarter() + i], d + OWN * own_row(), x[i]);
}
// Of dims `d` on, which are `to` on of the part; their keys are in x if they are ASKED for.
template <int FORMAT, bool ASKED> D void weighted(const u32 (&p)[2][8], const Stored (&places)[KEYS], int d, int to, Four (&x)[4], Part& part) {
  float c[OWN][ACC] = {};
  UNROLL for (int s = 0; s < 4; s++) {
    if (!ASKED) ask<FORMAT>(places, d, s, x[s]);
    u32 own[4][OWN / 2];
    UNROLL for (int i = 0; i < 4; i++) unpack<FORMAT>(x[s][i], own[i]);
    UNROLL for (int j = 0; j < OWN; j++) {
      const u32 half = j % 2 ? 0x7632 : 0x5410;
      mma(c[j], p[0][2 * s], p[1][2 * s], p[0][2 * s + 1], p[1][2 * s + 1], __byte_perm(own[0][j / 2], own[1][j / 2], half),
          __byte_perm(own[2][j / 2], own[3][j / 2], half));
    }
  }
  UNROLL for (int i = 0; i < ACC; i++)
    UNROLL for (int j = 0; j < OWN; j += 4)
      *(uint4*)&part[acc_row(i)][to + OWN * acc_token(i) + j] =
          make_uint4(__float_as_uint(c[j][i]), __float_as_uint(c[j + 1][i]), __float_as_uint(c[j + 2][i]), __float_as_uint(c[j + 3][i]));
}
#else
// A lane has two dims. Numerators lie in shared memory, [KEYS][TILE] where the part will be.
template <int FORMAT> D void weighted(const Stored (&places)[KEYS], int d, Part& part) {
  static_assert(sizeof(Part) >= KEYS * TILE * sizeof(float), "numerators fit");
  const float* all = &part[0][0];
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
D void find(Stored (&places)[KEYS], const Lists& l, int row, int block, int blocks) {
  const bool near = block < l.window_blocks, some = block < blocks;
  const i64* from = near ? l.window_index + ((i64)row * l.window_blocks + block) * KEYS
                         : l.entry_index + ((i64)row * l.entry_blocks + block - l.window_blocks) * KEYS;
  i64 its[2];  // both on their way before a place is computed
  UNROLL for (int i = 0; i < 2; i++) its[i] = some ? __ldcg(from + lane_id() + 32 * i) : -1;
  const Source source = near ? l.window : l.entries;
  UNROLL for (int i = 0; i < 2; i++) places[lane_id() + 32 * i] = some ? row_at(source, its[i]) : Stored{nullptr, nullptr};
  __syncwarp();
}

extern __shared__ uint4 room[];  // a Part of each warp

// The cosine and sine of this thread's pairs of dims; without positions [rows] all is left as it is.
struct Turns {
  float c[2], s[2];
  bool some;
  D void find(const i64* positions, const float* frequencies, int rope, int row, int dim) {
    some = positions && dim >= DIM - rope;
    if (!some) return;
    UNROLL for (int i = 0; i < 2; i++) {
      const float angle = mul((float)__ldcg(positions + row), frequencies[(dim - (DIM - rope)) / 2 + i]);
      c[i] = cosf(angle);
      s[i] = -sinf(angle);
    }
  }
  D void turn(float (&v)[4]) const {
    if (!some) return;
    UNROLL for (int i = 0; i < 2; i++) {
      const float even = v[2 * i], odd = v[2 * i + 1];
      v[2 * i] = add(mul(even, c[i]), -mul(odd, s[i]));
      v[2 * i + 1] = add(mul(even, s[i]), mul(odd, c[i]));
    }
  }
};

// scores and best as above, sink [HEADS] -> y [rows, HEADS, DIM], the last `rope` dims turned back by positions [rows], if they are
// given.
extern "C" __global__ void __launch_bounds__(32 * VALUE_WARPS, VALUE_BLOCKS)
    attend_values(const float* scores, const float* best, SOURCE(window), SOURCE(entry), const i64* window_index,
                  const i64* entry_index, int window_blocks, int entry_blocks, const float* sink, const i64* positions,
                  const float* frequencies, int rope, Out* y) {
  constexpr int WARPS = VALUE_WARPS, QUADS = PIECE / 4;
  static_assert(QUADS * TILE <= 32 * WARPS && DIM % VALUE_DIMS == 0, "a thread adds four results of each piece");
  static_assert(!AHEAD || PIECES == 1, "angles that are found ahead are those of one piece");
  __shared__ Stored places[WARPS][KEYS];
  __shared__ float shrink[WARPS][TILE], sum[WARPS][TILE], last[TILE];
  Part* parts = (Part*)room;
  const Lists lists = {GIVEN(window), GIVEN(entry), window_index, entry_index, window_blocks, entry_blocks};
  const int blocks = window_blocks + entry_blocks, row = blockIdx.y, w = warp_id();
  const int from = blockIdx.x % SPANS * VALUE_DIMS, first = blockIdx.x / SPANS * TILE;
  scores += (i64)row * HEADS * blocks * KEYS;
  best += (i64)row * HEADS * blocks * PARTS;
  const float* own_best = best + (i64)head_of(first, lane_id() / 2) * blocks * PARTS;  // two lanes a head
  float total[PIECES][4] = {}, below = 0.f, so_far = LEAST;
  const int h = threadIdx.x / QUADS, d = threadIdx.x % QUADS * 4;
  const float own_sink = sink[head_of(first, h)];  // asked for early
  Turns turns;
  for (int base = 0; base < blocks; base += WARPS) {
    // Lists and rows are older than the kernel before, and read past L1, which may be older still.
    find(places[w], lists, row, base + w, blocks);
    const bool some = some_key(places[w]);
    const int format = chunk_format(lists, base + w, from / CHUNK);  // of the first piece
#if MATRIX
    Four x[4];
#define ASK(F) UNROLL for (int s = 0; s < 4; s++) ask<F>(places[w], from, s, x[s])
    if (AHEAD && some) {
      BY_FORMAT(format, ASK);
    }
#endif
    if (base == 0) {
      if (AHEAD) turns.find(positions, frequencies, rope, row, from + d);  // behind rows that are asked for, in front of the wait
      wait_for_previous();
    }
    float v[2][16];  // asked for together with the best
    if (some)
      UNROLL for (int i = 0; i < 2; i++)
        read_scores(scores + ((i64)head_of(first, own_row() + 8 * i) * blocks + base + w) * KEYS, v[i]);
    // The best key so far: in front of this warp's block, with it, and with all of this turn.
    float before = so_far, with = none(), all = none();
    UNROLL for (int i = 0; i < WARPS * PARTS; i += 2) {
      const int at = i + lane_id() % 2, b = at / PARTS;
      const float m = b < WARPS && base + b < blocks ? own_best[base * PARTS + at] : none();
      all = fmaxf(all, m);
      if (b <= w) with = fmaxf(with, m);
      if (b < w) before = fmaxf(before, m);
    }
    before = fmaxf(before, __shfl_xor_sync(~0u, before, 1));
    with = fmaxf(before, fmaxf(with, __shfl_xor_sync(~0u, with, 1)));
    so_far = fmaxf(so_far, fmaxf(all, __shfl_xor_sync(~0u, all, 1)));
    if (some) {
      float own[2];  // stored when all is loaded
#if MATRIX
      u32 p[2][8];
#endif
      UNROLL for (int i = 0; i < 2; i++) {
        const int head = own_row() + 8 * i;
        own[i] = weigh(__shfl_sync(~0u, with, 2 * head), v[i]);
#if MATRIX
        UNROLL for (int k = 0; k < 8; k++) p[i][k] = rounded_pair(v[i][2 * k], v[i][2 * k + 1]);
#else
        UNROLL for (int s = 0; s < 4; s++)
          UNROLL for (int k = 0; k < 4; k++) parts[w][0][(16 * s + 4 * own_quarter() + k) * TILE + head] = rounded(v[i][4 * s + k]);
#endif
      }
#if MATRIX
#define WEIGHTED(F) weighted<F, AHEAD>(p, places[w], from, 0, x, parts[w])
#define NEXT(F) weighted<F, false>(p, places[w], from + to, to, x, parts[w])
      BY_FORMAT(format, WEIGHTED);
      UNROLL for (int to = PIECE; to < VALUE_DIMS; to += PIECE) {
        const int its = chunk_format(lists, base + w, (from + to) / CHUNK);
        BY_FORMAT(its, NEXT);
      }
#else
      __syncwarp();
#define WEIGHTED(F) weighted<F>(places[w], from, parts[w])
      BY_FORMAT(format, WEIGHTED);
#endif
      if (own_quarter() == 0)
        UNROLL for (int i = 0; i < 2; i++) sum[w][own_row() + 8 * i] = own[i];
    } else {  // -0, which changes no sum: a branch where parts are added would let their loads wait for each other
      constexpr u32 ZERO = 0x80000000u;
      uint4* to = (uint4*)parts[w];
      for (int i = lane_id(); i < (int)(sizeof(Part) / 16); i += 32) to[i] = make_uint4(ZERO, ZERO, ZERO, ZERO);
      if (lane_id() < TILE) sum[w][lane_id()] = -0.f;
    }
    if (lane_id() % 2 == 0) {
      shrink[w][lane_id() / 2] = expf(before - with);  // exactly 1 where the block has no better key
      if (w == 0) last[lane_id() / 2] = so_far;
    }
    __syncthreads();
    if (h < TILE)
      UNROLL for (int b = 0; b < WARPS; b++) {
        const float by = shrink[b][h];
        UNROLL for (int n = 0; n < PIECES; n++) {
          const uint4 v = *(const uint4*)&parts[b][h][n * PIECE + d];
          total[n][0] = add(mul(total[n][0], by), __uint_as_float(v.x));
          total[n][1] = add(mul(total[n][1], by), __uint_as_float(v.y));
          total[n][2] = add(mul(total[n][2], by), __uint_as_float(v.z));
          total[n][3] = add(mul(total[n][3], by), __uint_as_float(v.w));
        }
        below = add(mul(below, by), sum[b][h]);
      }
    if (base + WARPS < blocks) __syncthreads();
  }
  if (blocks == 0) wait_for_previous();
  if (h >= TILE || first + h >= HEADS) return;
  below = add(below, expf(own_sink - (blocks ? last[h] : LEAST)));
  UNROLL for (int n = 0; n < PIECES; n++) {
    const int dim = from + n * PIECE + d;
    UNROLL for (int i = 0; i < 4; i++) total[n][i] = rounded(__fdiv_rn(total[n][i], below));
    if (!AHEAD || blocks == 0) turns.find(positions, frequencies, rope, row, dim);
    turns.turn(total[n]);
    put(y + ((i64)row * HEADS + first + h) * DIM + dim, total[n]);
  }
}
