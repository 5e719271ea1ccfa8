// Scores of compressed entries; see index/__init__.py for what they are.
//
// A block of the grid has one row and `span` entries, 64 or a multiple of 128. The score of an entry hangs on its key, the
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
// As lanes of the matrix unit own them, for each 16 heads and step along the dims, four values of two heads a lane. Lanes of a
// step change places (`slot`), so that a head's values, which follow each other, are stored into other banks.
typedef uint4 Queries[TILES][8][32];
D int slot(int lane, int s) { return lane ^ 4 * s; }

// A lane's quarter of K is 32 dims, the group of a scale.
D void stage(Queries& queries, const float* q) {
  constexpr int OWN = HEADS / WARPS;
  uint4 v[OWN];  // a warp has a head
  UNROLL for (int i = 0; i < OWN; i++) v[i] = ((const uint4*)q)[(WARPS * i + warp_id()) * (DIM / 4) + lane_id()];
  UNROLL for (int i = 0; i < OWN; i++) {
    const int head = WARPS * i + warp_id(), s = lane_id() % 8, lane = head % 8 * 4 + lane_id() / 8;
    uint2 pairs;
    pairs.x = __byte_perm(v[i].x, v[i].y, 0x7632);
    pairs.y = __byte_perm(v[i].z, v[i].w, 0x7632);
    ((uint2*)&queries[head / 16][s][slot(lane, s)])[head / 8 % 2] = pairs;
  }
}

// What a warp asks for at once: 8 E entries, a lane a quarter of those at lane_row().
template <int E> struct Turn {
  int own[E];
  i64 lies[E];
  Packed<32> keys[E];
  D void find(const Choice& from, const i64* places, int at) {
    UNROLL for (int e = 0; e < E; e++) {
      own[e] = from.entry(at + 8 * e + lane_row());
      lies[e] = own[e] < 0 ? -1 : __ldcg(places + own[e]);
    }
  }
  D void ask(const Source& source) {
    UNROLL for (int e = 0; e < E; e++) load<FP4>(row_at(source, lies[e]), 32 * lane_quarter(), keys[e]);
  }
};
#else
typedef float Queries[HEADS][DIM];
D void stage(Queries& queries, const float* q) {
  for (int i = threadIdx.x; i < HEADS * DIM; i += 32 * WARPS) queries[i / DIM][i % DIM] = q[i];
}
#endif

struct Row {
  const float *q, *weights;
  const i64* places;
  Source keys;
  Choice from;
  float* scores;
  bool scored;
};

#if MATRIX
// The entries from `first` to `end`, whose places are asked for before the kernel in front has ended, if no candidates name them.
// Not their keys: a branch that a recording joins may have made the newest, and such a join is waited for with the kernel in front.
template <int E> D void score(Queries& queries, const Row& of, int first, int end) {
  constexpr int STEP = 8 * E * WARPS;
  int at = first + 8 * E * warp_id();
  Turn<E> next;
  const bool early = !of.from.candidates;
  if (early && of.scored && at < end) next.find(of.from, of.places, at);
  wait_for_previous();
  if (!of.scored) return;
  if (at < end) {
    if (!early) next.find(of.from, of.places, at);
    next.ask(of.keys);
  }
  float w[2 * TILES];  // of heads 8 i + lane_row()
  UNROLL for (int i = 0; i < 2 * TILES; i++) w[i] = of.weights[8 * i + lane_row()];
  stage(queries, of.q);
  __syncthreads();
  for (; at < end; at += STEP) {
    u32 pairs[E][16];
    int own[E];
    UNROLL for (int e = 0; e < E; e++) {
      own[e] = next.own[e];
      unpack<FP4>(next.keys[e], pairs[e]);
    }
    if (at + STEP < end) {
      next.find(of.from, of.places, at + STEP);
      next.ask(of.keys);
    }
    float c[E][TILES][ACC] = {};
    UNROLL for (int s = 0; s < 8; s++)
      UNROLL for (int t = 0; t < TILES; t++) {
        const uint4 a = queries[t][s][slot(lane_id(), s)];
        UNROLL for (int e = 0; e < E; e++) mma(c[e][t], a.x, a.z, a.y, a.w, pairs[e][2 * s], pairs[e][2 * s + 1]);
      }
    // Of the bits of a head, t and h are the top ones and lane_row() the others.
    UNROLL for (int e = 0; e < E; e++)
      UNROLL for (int column = 0; column < 2; column++) {
        float terms[2 * TILES];
        UNROLL for (int t = 0; t < TILES; t++)
          UNROLL for (int h = 0; h < 2; h++) terms[2 * t + h] = mul(positive(c[e][t][2 * h + column]), w[2 * t + h]);
        float sum = tree(terms);
        for (int apart = 16; apart >= 4; apart >>= 1) sum = add(sum, __shfl_xor_sync(~0u, sum, apart));
        const int among = 2 * lane_quarter() + column, i = at + 8 * e + among;
        const bool there = __shfl_sync(~0u, own[e], 4 * among) >= 0;
        if (lane_row() == 0 && i < end) of.scores[i] = there ? sum : none();
      }
  }
}
#endif

// q [rows, HEADS, 128], weights [rows, HEADS], places [sequences, entries] of keys, sequence [rows], visible [rows]
// -> scores [rows, width] of the first entries that it sees, or of its candidates [rows, blocks]. All but queries, weights and
// candidates is older than the kernel in front.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    index_scores(const float* q, const float* weights, SOURCE(key), const i64* places, int entries, const i64* sequence,
                 const i64* visible, int shortcut, int span, const i64* candidates, int blocks, int size, int width, float* scores) {
  alignas(16) __shared__ Queries queries;
  const Source keys = GIVEN(key);
  const int row = blockIdx.y, first = blockIdx.x * span;
  const Choice from = {candidates ? candidates + (i64)row * blocks : nullptr, blocks, size, (int)min((i64)__ldcg(visible + row), (i64)entries)};
  const int seen = from.count(), end = min(first + span, seen);
  const bool scored = from.visible > shortcut && first < seen;
  places += __ldcg(sequence + row) * entries;
  q += (i64)row * HEADS * DIM;
  weights += row * HEADS;
  scores += (i64)row * width;
#if MATRIX
  const Row own = {q, weights, places, keys, from, scores, scored};
  span <= 8 * WARPS ? score<1>(queries, own, first, end) : score<2>(queries, own, first, end);
#else
  // A warp has the heads 8 j + warp_id(), a lane two entries.
  wait_for_previous();
  if (!scored) return;
  stage(queries, q);
  __syncthreads();
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
