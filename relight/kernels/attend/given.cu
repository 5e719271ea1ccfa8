// Attention of given rows, of which there are enough for all processors: a block of the grid has one row and all of its heads.
//
// It walks the row's blocks of 64 keys in order, as the definition does. Each is decoded once, to bf16 in shared memory, and serves as
// keys and as values:
//     top = best score so far;  total = total * exp(top before - top) + numerators * keys.
// Of the scores a warp has 16 heads and 32 keys, of the weighted sum all heads and 64 dims, which it keeps in registers to the end. A
// block without keys is passed over. Nothing hangs on how many rows there are, nor on where a key lies.
//
// Shared memory is read 16 bytes a lane, which eight lanes do at once: chunk c of row r lies at c ^ twist(r), so that neither eight
// lanes of two neighbouring rows and four chunks meet in a bank, nor those of four rows, each two apart, and two chunks.
//
// Macros: those of lists.cuh.
#include "lists.cuh"

constexpr int ROOM = 64, WARPS = 8, THREADS = 32 * WARPS, ROW_CHUNKS = DIM / 8, TILES = ROOM / TILE, STEPS = KEYS / 16;
static_assert(HEADS <= ROOM && CHUNKS <= WARPS, "a row has room");
static_assert(STEP_FORM == 80 && IN_BF16 && OUT_BF16, "the matrix unit multiplies bf16");

extern __shared__ uint4 room[];  // queries [ROOM][ROW_CHUNKS], keys [KEYS][ROW_CHUNKS], numerators [TILES][STEPS][32] as lanes own them

D int twist(int row) { return (row & 6) ^ (row & 1) << 2; }
D int spot(int row, int chunk) { return row * ROW_CHUNKS + (chunk ^ twist(row)); }

D constexpr int at_once(int turns) {
  int most = 8;
  while (turns % most) most--;
  return most;
}
// Chunks FROM to TO of a block of keys, all of one format. A thread loads several before it stores one: what is loaded may lie
// anywhere, so no load would pass a store.
template <int FORMAT, int FROM, int TO> D void decode_chunks(const Stored (&places)[KEYS], uint4* keys) {
  constexpr int WIDTH = TO - FROM, TURNS = KEYS * WIDTH / THREADS, AT_ONCE = at_once(TURNS);
  static_assert(KEYS * WIDTH == TURNS * THREADS, "threads share them evenly");
  _Pragma("unroll 1") for (int turn = 0; turn < TURNS; turn += AT_ONCE) {
    uint4 v[AT_ONCE];
    UNROLL for (int k = 0; k < AT_ONCE; k++) {
      const int i = (turn + k) * THREADS + threadIdx.x;
      float x[8];
      read8<FORMAT>(places[i / WIDTH], (FROM + i % WIDTH) * 8, x);
      v[k] = make_uint4(pair_of(x[0], x[1]), pair_of(x[2], x[3]), pair_of(x[4], x[5]), pair_of(x[6], x[7]));
    }
    UNROLL for (int k = 0; k < AT_ONCE; k++) {
      const int i = (turn + k) * THREADS + threadIdx.x;
      keys[spot(i / WIDTH, FROM + i % WIDTH)] = v[k];
    }
  }
}
template <int FORMAT> D void decode(const Stored (&places)[KEYS], uint4* keys) {
  constexpr int END = FORMAT == FP8 ? PLAIN / 8 : ROW_CHUNKS;
  if constexpr (END > 0) decode_chunks<FORMAT, 0, END>(places, keys);
  if constexpr (END < ROW_CHUNKS) decode_chunks<WIDE, END, ROW_CHUNKS>(places, keys);
}

// Of 16 heads and 32 keys: of head acc_row(i) and key 8 n + acc_token(i) in [n][i].
typedef float Scores[4][ACC];
D void products(const uint4* queries, const uint4* keys, int head, int key, Scores& c) {
  _Pragma("unroll 4") for (int step = 0; step < ROW_CHUNKS; step += 4) {
    const int chunk = step + lane_quarter();
    const uint4 a = queries[spot(head + lane_row(), chunk)], b = queries[spot(head + 8 + lane_row(), chunk)];
    UNROLL for (int n = 0; n < 4; n++) {
      const uint4 k = keys[spot(key + 8 * n + lane_row(), chunk)];
      mma(c[n], a.x, b.x, a.y, b.y, k.x, k.y);
      mma(c[n], a.z, b.z, a.w, b.w, k.z, k.w);
    }
  }
}

D float over_quarters(float v, bool sum) {
  UNROLL for (int apart = 1; apart < 4; apart *= 2) {
    const float other = __shfl_xor_sync(~0u, v, apart);
    v = sum ? add(v, other) : fmaxf(v, other);
  }
  return v;
}

// Adds, for all heads and this warp's 64 dims, numerators times keys: of head 16 t + acc_row(i) and dim 8 acc_token(i) + j in
// [t][j][i].
typedef float Totals[TILES][8][ACC];
D void weighted(const uint4* numerators, const uint4* keys, Totals& total) {
  _Pragma("unroll 1") for (int s = 0; s < STEPS; s++) {
    uint4 v[4];  // of four keys, the dims 8 lane_row() to + 7
    UNROLL for (int i = 0; i < 4; i++)
      v[i] = keys[spot(16 * s + 2 * lane_quarter() + (i & 1) + 8 * (i >> 1), 8 * warp_id() + lane_row())];
    u32 b[8][2];
    UNROLL for (int i = 0; i < 2; i++) {
      const uint4 &first = v[2 * i], &second = v[2 * i + 1];
      UNROLL for (int j = 0; j < 8; j++) {
        const u32 one = j < 2 ? first.x : j < 4 ? first.y : j < 6 ? first.z : first.w;
        const u32 two = j < 2 ? second.x : j < 4 ? second.y : j < 6 ? second.z : second.w;
        b[j][i] = __byte_perm(one, two, j & 1 ? 0x7632 : 0x5410);
      }
    }
    UNROLL for (int t = 0; t < TILES; t++) {
      const uint4 a = numerators[(t * STEPS + s) * 32 + lane_id()];
      UNROLL for (int j = 0; j < 8; j++) mma(total[t][j], a.x, a.y, a.z, a.w, b[j][0], b[j][1]);
    }
  }
}

// q [rows, HEADS, DIM], sink [HEADS] -> y [rows, HEADS, DIM].
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attend_given(const In* q, SOURCE(window), SOURCE(entry), const i64* window_index, const i64* entry_index, int window_blocks,
                 int entry_blocks, float scale, const float* sink, Out* y) {
  __shared__ Stored places[2][KEYS];  // of two blocks in turn
  __shared__ float best[2][ROOM], sums[2][ROOM], shrink[ROOM], tops[ROOM];
  const Lists lists = {GIVEN(window), GIVEN(entry), window_index, entry_index, window_blocks, entry_blocks};
  const int blocks = window_blocks + entry_blocks, row = blockIdx.x, thread = threadIdx.x;
  const int head = warp_id() % TILES * TILE, half = warp_id() / TILES;  // of the scores: 16 heads, 32 keys
  uint4 *queries = room, *keys = room + ROOM * ROW_CHUNKS, *numerators = keys + KEYS * ROW_CHUNKS;
  wait_for_previous();
  q += (i64)row * HEADS * DIM;
  y += (i64)row * HEADS * DIM;
  for (int i = thread; i < ROOM * ROW_CHUNKS; i += THREADS)
    queries[spot(i / ROW_CHUNKS, i % ROW_CHUNKS)] = *(const uint4*)(q + head_of(0, i / ROW_CHUNKS) * DIM + i % ROW_CHUNKS * 8);
  if (thread < KEYS && blocks) places[0][thread] = key_at(lists, row, 0, thread);
  Totals total = {};
  float top[2] = {LEAST, LEAST};  // of heads head + lane_row() + 8 h
  float below = 0.f;              // of head `thread`
  for (int block = 0; block < blocks; block++) {
    __syncthreads();  // places are there, and nobody reads keys and numerators of the block before
    const Stored(&own)[KEYS] = places[block & 1];
    if (thread < KEYS && block + 1 < blocks) places[(block + 1) & 1][thread] = key_at(lists, row, block + 1, thread);
    if (!some_key(own)) continue;
#define DECODE(F) decode<F>(own, keys)
    BY_FORMAT(format_at(lists, block), DECODE);
    __syncthreads();
    Scores c = {};
    products(queries, keys, head, 32 * half, c);
    float most[2] = {none(), none()};
    UNROLL for (int n = 0; n < 4; n++)
      UNROLL for (int i = 0; i < ACC; i++) {
        c[n][i] = own[32 * half + 8 * n + acc_token(i)].scale ? mul(c[n][i], scale) : none();
        most[i >> 1] = fmaxf(most[i >> 1], c[n][i]);
      }
    UNROLL for (int h = 0; h < 2; h++) {
      most[h] = over_quarters(most[h], false);
      if (lane_quarter() == 0) best[half][head + lane_row() + 8 * h] = most[h];
    }
    __syncthreads();
    UNROLL for (int h = 0; h < 2; h++) {
      const int mine = head + lane_row() + 8 * h;
      const float before = top[h];
      top[h] = fmaxf(before, fmaxf(best[0][mine], best[1][mine]));
      float sum = 0.f;
      UNROLL for (int n = 0; n < 4; n++)
        UNROLL for (int b = 0; b < 2; b++) {
          c[n][2 * h + b] = expf(c[n][2 * h + b] - top[h]);
          sum = add(sum, c[n][2 * h + b]);
        }
      sum = over_quarters(sum, true);
      if (lane_quarter() == 0) {
        sums[half][mine] = sum;
        if (half == 0) shrink[mine] = expf(before - top[h]);  // exactly 1 where the block has no better key
      }
    }
    UNROLL for (int s = 0; s < 2; s++)
      numerators[(head / TILE * STEPS + 2 * half + s) * 32 + lane_id()] =
          make_uint4(rounded_pair(c[2 * s][0], c[2 * s][1]), rounded_pair(c[2 * s][2], c[2 * s][3]),
                     rounded_pair(c[2 * s + 1][0], c[2 * s + 1][1]), rounded_pair(c[2 * s + 1][2], c[2 * s + 1][3]));
    __syncthreads();
    if (thread < ROOM) below = add(mul(below, shrink[thread]), add(sums[0][thread], sums[1][thread]));
    if (warp_id() >= CHUNKS) continue;
    UNROLL for (int t = 0; t < TILES; t++)
      UNROLL for (int i = 0; i < ACC; i++) {
        const float by = shrink[TILE * t + acc_row(i)];
        UNROLL for (int j = 0; j < 8; j++) total[t][j][i] *= by;
      }
    weighted(numerators, keys, total);
  }
  if (half == 0 && lane_quarter() == 0)
    UNROLL for (int h = 0; h < 2; h++) tops[head + lane_row() + 8 * h] = top[h];
  __syncthreads();
  if (thread < HEADS) sums[0][thread] = __fdiv_rn(1.f, add(below, expf(sink[thread] - tops[thread])));
  __syncthreads();
  if (warp_id() >= CHUNKS) return;
  UNROLL for (int t = 0; t < TILES; t++)
    UNROLL for (int i = 0; i < ACC; i++) {
      const int mine = TILE * t + acc_row(i);
      if (mine >= HEADS) continue;
      u32 out[4];
      UNROLL for (int j = 0; j < 8; j += 2)
        out[j / 2] = rounded_pair(total[t][j][i] * sums[0][mine], total[t][j + 1][i] * sums[0][mine]);
      *(uint4*)(y + mine * DIM + CHUNK * warp_id() + 8 * acc_token(i)) = make_uint4(out[0], out[1], out[2], out[3]);
    }
}
