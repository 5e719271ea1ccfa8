// Scores of compressed entries, and the k best of each row; see index/__init__.py for what they are.
//
// index_scores: a block of the grid has one row and `span` entries, a multiple of 128. The score of an entry hangs on its key, the
// row's queries and weights alone; products of values on FP4's grid are exact, and terms are summed over the heads by the
// definition's tree.
//
// index_topk: one block a row. The k-th best score is found digit by digit from the top, by counting; counts do not depend on who
// counts first. Then all above it are listed, and of its equals the first ones, in ascending order.
//
// A row that sees `shortcut` entries at most is not scored: it gets all of them.
//
// MATRIX: products by the matrix unit in bf16, else float32 by multiply and add. Other macros: HEADS (16, 32 or 64).
#include "keys.cuh"

constexpr int DIM = 128, WARPS = 8, TILES = HEADS / 16;
static_assert(HEADS == 16 * TILES && (TILES & TILES - 1) == 0, "the sum over heads is a whole tree");
static_assert(!MATRIX || STEP_FORM == 80, "the matrix unit multiplies bf16");

D float positive(float v) { return v < 0.f ? 0.f : v; }  // keeps a NaN

#if MATRIX
typedef uint4 Queries[TILES][8][32];  // as lanes of the matrix unit own them, for each 16 heads and step along the dims

// A lane's quarter of K is 32 dims, the group of a scale.
D void stage(Queries& queries, const float* q) {
  for (int i = threadIdx.x; i < TILES * 8 * 32; i += 32 * WARPS) {
    const int lane = i % 32, s = i / 32 % 8, t = i / 256;
    const float* p = q + (16 * t + (lane >> 2)) * DIM + 32 * (lane & 3) + 4 * s;
    const uint4 a = *(const uint4*)p, b = *(const uint4*)(p + 8 * DIM);
    queries[t][s][lane] = make_uint4(__byte_perm(a.x, a.y, 0x7632), __byte_perm(b.x, b.y, 0x7632),
                                     __byte_perm(a.z, a.w, 0x7632), __byte_perm(b.z, b.w, 0x7632));
  }
}
D void key_pairs(const Stored& p, u32 (&pairs)[16]) {
  const uint4 v = *(const uint4*)(p.data + 16 * lane_quarter());
  const float scale = from_e8m0(scale_at(p, lane_quarter()));
  UNROLL for (int i = 0; i < 4; i++) {
    float x[8];
    eight_e2m1(kept(p, i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w), scale, x);
    UNROLL for (int j = 0; j < 4; j++) pairs[4 * i + j] = pair_of(x[2 * j], x[2 * j + 1]);
  }
}
#else
typedef float Queries[HEADS][DIM];
D void stage(Queries& queries, const float* q) {
  for (int i = threadIdx.x; i < HEADS * DIM; i += 32 * WARPS) queries[i / DIM][i % DIM] = q[i];
}
#endif

// q [rows, HEADS, 128], weights [rows, HEADS], places [sequences, entries] of keys, sequence [rows], visible [rows]
// -> scores [rows, entries], where a row sees an entry.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    index_scores(const float* q, const float* weights, SOURCE(key), const i64* places, int entries, const i64* sequence,
                 const i64* visible, int shortcut, int span, float* scores) {
  alignas(16) __shared__ Queries queries;
  const Source keys = GIVEN(key);
  const int row = blockIdx.y, first = blockIdx.x * span;
  wait_for_previous();
  const int seen = min(visible[row], (i64)entries), end = min(first + span, seen);
  places += sequence[row] * entries;
  if (seen <= shortcut || first >= seen) return;
  weights += row * HEADS;
  scores += (i64)row * entries;
  stage(queries, q + (i64)row * HEADS * DIM);
  __syncthreads();
#if MATRIX
  float w[2 * TILES];  // of heads 8 i + lane_row()
  UNROLL for (int i = 0; i < 2 * TILES; i++) w[i] = weights[8 * i + lane_row()];
  for (int at = first + 16 * warp_id(); at < end; at += 16 * WARPS) {
    u32 pairs[2][16];
    UNROLL for (int e = 0; e < 2; e++) {
      const int entry = at + 8 * e + lane_row();
      key_pairs(row_at(keys, entry < seen ? places[entry] : -1), pairs[e]);
    }
    float c[2][TILES][ACC] = {};
    UNROLL for (int s = 0; s < 8; s++)
      UNROLL for (int t = 0; t < TILES; t++) {
        const uint4 a = queries[t][s][lane_id()];
        UNROLL for (int e = 0; e < 2; e++) mma(c[e][t], a.x, a.y, a.z, a.w, pairs[e][2 * s], pairs[e][2 * s + 1]);
      }
    // Of the bits of a head, t and h are the top ones and lane_row() the others.
    UNROLL for (int e = 0; e < 2; e++)
      UNROLL for (int column = 0; column < 2; column++) {
        float terms[2 * TILES];
        UNROLL for (int t = 0; t < TILES; t++)
          UNROLL for (int h = 0; h < 2; h++) terms[2 * t + h] = mul(positive(c[e][t][2 * h + column]), w[2 * t + h]);
        float sum = tree(terms);
        for (int apart = 16; apart >= 4; apart >>= 1) sum = add(sum, __shfl_xor_sync(~0u, sum, apart));
        const int entry = at + 8 * e + 2 * lane_quarter() + column;
        if (lane_row() == 0 && entry < seen) scores[entry] = sum;
      }
  }
#else
  // A warp has the heads 8 j + warp_id(), a lane two entries.
  __shared__ float sums[WARPS][64];
  for (int at = first; at < end; at += 64) {
    Stored own[2];
    UNROLL for (int e = 0; e < 2; e++) {
      const int entry = at + 32 * e + lane_id();
      own[e] = row_at(keys, entry < seen ? places[entry] : -1);
    }
    float c[2][2 * TILES] = {};
    _Pragma("unroll 2") for (int d = 0; d < DIM; d += 8) {
      float x[2][8];
      UNROLL for (int e = 0; e < 2; e++) read8<FP4>(own[e], d, x[e]);
      UNROLL for (int j = 0; j < 2 * TILES; j++)
        UNROLL for (int i = 0; i < 8; i += 4) {
          const uint4 v = *(const uint4*)&queries[8 * j + warp_id()][d + i];
          UNROLL for (int e = 0; e < 2; e++) {
            c[e][j] += __uint_as_float(v.x) * x[e][i];
            c[e][j] += __uint_as_float(v.y) * x[e][i + 1];
            c[e][j] += __uint_as_float(v.z) * x[e][i + 2];
            c[e][j] += __uint_as_float(v.w) * x[e][i + 3];
          }
        }
    }
    UNROLL for (int e = 0; e < 2; e++) {
      UNROLL for (int j = 0; j < 2 * TILES; j++) c[e][j] = mul(positive(c[e][j]), weights[8 * j + warp_id()]);
      sums[warp_id()][32 * e + lane_id()] = tree(c[e]);
    }
    __syncthreads();
    if (threadIdx.x < 64 && at + threadIdx.x < seen) {
      float across[WARPS];
      UNROLL for (int i = 0; i < WARPS; i++) across[i] = sums[i][threadIdx.x];
      scores[at + threadIdx.x] = tree(across);
    }
    __syncthreads();
  }
#endif
}

constexpr int TOP_WARPS = 32, TOP_THREADS = 32 * TOP_WARPS, BINS = 2048, COPIES = 4, OWN = BINS / TOP_THREADS;

// Unsigned numbers in the order of floats; both zeros are one.
D u32 ordered(float v) {
  const u32 b = __float_as_uint(v + 0.f);
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}
// What the threads in front of this one own together.
D int in_front(int own, int (&room)[TOP_WARPS]) {
  int v = own;
  for (int step = 1; step < 32; step *= 2) {
    const int before = __shfl_sync(~0u, v, lane_id() - step);
    if (lane_id() >= step) v += before;
  }
  if (lane_id() == 31) room[warp_id()] = v;
  __syncthreads();
  v -= own;
  for (int w = 0; w < warp_id(); w++) v += room[w];
  __syncthreads();
  return v;
}

// scores [rows, entries], visible [rows] -> best [rows, k], ascending, -1 behind.
extern "C" __global__ void __launch_bounds__(TOP_THREADS, 1)
    index_topk(const float* scores, const i64* visible, int entries, int k, i64* best) {
  __shared__ int counts[BINS * COPIES];  // of a digit's values; copies, since many scores share a digit
  __shared__ int room[TOP_WARPS], rooms[2][TOP_WARPS], found[2];
  const int row = blockIdx.x;
  wait_for_previous();
  const int seen = min(visible[row], (i64)entries);
  best += (i64)row * k;
  scores += (i64)row * entries;
  for (int i = threadIdx.x; i < k; i += TOP_THREADS) best[i] = seen <= k && i < seen ? i : -1;
  if (seen <= k) return;

  u32 least = 0;   // the digits of the k-th best so far
  int wanted = k;  // of those that have them
  for (int digit = 0; digit < 3; digit++) {
    const int shift = digit == 0 ? 21 : digit == 1 ? 10 : 0, bins = digit == 2 ? 1024 : 2048;
    for (int i = threadIdx.x; i < BINS * COPIES; i += TOP_THREADS) counts[i] = 0;
    __syncthreads();
    _Pragma("unroll 4") for (int i = threadIdx.x; i < seen; i += TOP_THREADS) {
      const u32 v = ordered(scores[i]);
      const int own = (v >> shift & bins - 1) * COPIES + (lane_id() & COPIES - 1);
      if (digit == 0 || (v ^ least) >> shift < bins) atomicAdd(&counts[own], 1);
    }
    __syncthreads();
    // Threads own bins from the top one down.
    int own[OWN], all = 0;
    UNROLL for (int j = 0; j < OWN; j++) {
      const int bin = BINS - 1 - (threadIdx.x * OWN + j);
      own[j] = 0;
      UNROLL for (int c = 0; c < COPIES; c++) own[j] += counts[bin * COPIES + c];
      all += own[j];
    }
    int before = in_front(all, room);
    UNROLL for (int j = 0; j < OWN; j++) {
      if (before < wanted && wanted <= before + own[j]) {
        found[0] = BINS - 1 - (threadIdx.x * OWN + j);
        found[1] = wanted - before;
      }
      before += own[j];
    }
    __syncthreads();
    least |= (u32)found[0] << shift;
    wanted = found[1];
  }
  if (least == ordered(__uint_as_float(0xFF800000u))) wanted = 0;  // an entry without a score is none

  // Each warp has a stretch of entries: it counts what it will list, and lists it behind what those in front list.
  const int stretch = (seen + TOP_THREADS - 1) / TOP_THREADS * 32, from = warp_id() * stretch, to = min(from + stretch, seen);
  int above = 0, equal = 0;
  _Pragma("unroll 4") for (int i = from; i < to; i += 32) {
    const u32 v = i + lane_id() < to ? ordered(scores[i + lane_id()]) : 0;
    above += __popc(__ballot_sync(~0u, v > least));
    equal += __popc(__ballot_sync(~0u, v == least));
  }
  if (lane_id() == 0) {
    rooms[0][warp_id()] = above;
    rooms[1][warp_id()] = equal;
  }
  __syncthreads();
  above = equal = 0;
  for (int w = 0; w < warp_id(); w++) {
    above += rooms[0][w];
    equal += rooms[1][w];
  }
  for (int i = from; i < to; i += 32) {
    const u32 v = i + lane_id() < to ? ordered(scores[i + lane_id()]) : 0, lower = (1u << lane_id()) - 1;
    const u32 better = __ballot_sync(~0u, v > least), same = __ballot_sync(~0u, v == least);
    const int a = above + __popc(better & lower), e = equal + __popc(same & lower);
    if (v > least || (v == least && e < wanted)) best[a + min(e, wanted)] = i + lane_id();
    above += __popc(better);
    equal += __popc(same);
  }
}
