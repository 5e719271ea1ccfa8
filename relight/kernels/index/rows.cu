// Scores of compressed entries; see index/__init__.py for what they are.
//
// A block of the grid has one row and `span` entries, a multiple of 128. The score of an entry hangs on its key, the
// row's queries and weights alone; products of values on FP4's grid are exact, and terms are summed over the heads by the
// definition's tree. With `candidates`, blocks of `size` entries in ascending order, a row's entries are those of its list, of which
// an entry that it does not see has the score -infinity.
//
// A row that sees `shortcut` entries at most is not scored: it gets all of them.
//
// MATRIX: products by the matrix unit in bf16, else float32 by multiply and add. Other macros: HEADS (16, 32 or 64).
#include "keys.cuh"
#include "choice.cuh"

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
#else
typedef float Queries[HEADS][DIM];
D void stage(Queries& queries, const float* q) {
  for (int i = threadIdx.x; i < HEADS * DIM; i += 32 * WARPS) queries[i / DIM][i % DIM] = q[i];
}
#endif

// q [rows, HEADS, 128], weights [rows, HEADS], places [sequences, entries] of keys, sequence [rows], visible [rows]
// -> scores [rows, width] of the first entries that it sees, or of its candidates [rows, blocks].
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    index_scores(const float* q, const float* weights, SOURCE(key), const i64* places, int entries, const i64* sequence,
                 const i64* visible, int shortcut, int span, const i64* candidates, int blocks, int size, int width, float* scores) {
  alignas(16) __shared__ Queries queries;
  const Source keys = GIVEN(key);
  const int row = blockIdx.y, first = blockIdx.x * span;
  wait_for_previous();
  const Choice from = {candidates ? candidates + (i64)row * blocks : nullptr, blocks, size, (int)min(visible[row], (i64)entries)};
  const int seen = from.count(), end = min(first + span, seen);
  places += sequence[row] * entries;
  if (from.visible <= shortcut || first >= seen) return;
  weights += row * HEADS;
  scores += (i64)row * width;
  stage(queries, q + (i64)row * HEADS * DIM);
  __syncthreads();
#if MATRIX
  float w[2 * TILES];  // of heads 8 i + lane_row()
  UNROLL for (int i = 0; i < 2 * TILES; i++) w[i] = weights[8 * i + lane_row()];
  for (int at = first + 16 * warp_id(); at < end; at += 16 * WARPS) {
    u32 pairs[2][16];
    int own[2];
    UNROLL for (int e = 0; e < 2; e++) {
      own[e] = from.entry(at + 8 * e + lane_row());
      Packed<32> key;
      load<FP4>(row_at(keys, own[e] < 0 ? -1 : places[own[e]]), 32 * lane_quarter(), key);
      unpack<FP4>(key, pairs[e]);
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
        const int among = 2 * lane_quarter() + column, i = at + 8 * e + among;
        const bool there = __shfl_sync(~0u, own[e], 4 * among) >= 0;
        if (lane_row() == 0 && i < seen) scores[i] = there ? sum : none();
      }
  }
#else
  // A warp has the heads 8 j + warp_id(), a lane two entries.
  __shared__ float sums[WARPS][64];
  for (int at = first; at < end; at += 64) {
    Stored own[2];
    UNROLL for (int e = 0; e < 2; e++) {
      const int entry = from.entry(at + 32 * e + lane_id());
      own[e] = row_at(keys, entry < 0 ? -1 : places[entry]);
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
      scores[at + threadIdx.x] = own[warp_id() & 1].scale ? tree(across) : none();
    }
    __syncthreads();
  }
#endif
}
