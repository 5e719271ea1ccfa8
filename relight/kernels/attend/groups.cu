// Attention of given rows by warp groups (groups.cuh): a block of the grid has one row and all of its heads. See given.cu for what is
// summed; only the matrix unit's own order differs.
//
// Two groups of four warps: of the scores each has 32 of a block's keys, of the weighted sum half of the dims, and all heads of both. A
// block of keys is decoded once, to bf16 in shared memory, and serves as keys (rows) and as values (columns). Codes of the next block are
// on their way while this one is scored, and are decoded while it is summed.
//
// Macros: those of lists.cuh.
#include "groups.cuh"
#include "lists.cuh"

constexpr int ROOM = 64, THREADS = 256, PARTS = DIM / 64, OWN = DIM / 16;  // OWN: of a group, dims in eights
constexpr int PART_BYTES = ROOM * GROUP_ROW;                               // of 64 rows and 64 dims
static_assert(HEADS <= ROOM && KEYS == ROOM && STEP_FORM == 80 && IN_BF16 && OUT_BF16, "a row has room");
static_assert(OWN == 8 || OWN == 16 || OWN == 32, "a group's dims are one instruction's");

extern __shared__ uint4 room[];  // queries [PARTS], keys [2][PARTS], numerators [1], each of PART_BYTES

D int lane_part() { return threadIdx.x & 3; }  // of a key, 16 dims of each 64
// One of four threads that share key threadIdx / 4.
typedef Packed<16> Codes[PARTS];
template <int FORMAT> D void ask_key(const Stored& p, Codes& codes) {
  constexpr int END = FORMAT == FP8 ? PLAIN / 64 : PARTS;
  UNROLL for (int g = 0; g < END; g++) ask<FORMAT>(p, 64 * g + 16 * lane_part(), codes[g]);
  if constexpr (END < PARTS)
    UNROLL for (int g = END; g < PARTS; g++) ask<WIDE>(p, 64 * g + 16 * lane_part(), codes[g]);
}
template <int FORMAT> D void put_part(bool there, Packed<16>& codes, u8* to) {
  u32 v[8];
  keep<FORMAT>(there, codes);
  unpack<FORMAT>(codes, v);
  const int key = threadIdx.x >> 2;
  UNROLL for (int i = 0; i < 2; i++)
    *(uint4*)(to + group_place(key, 2 * lane_part() + i)) = make_uint4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
}
template <int FORMAT> D void put_key(bool there, Codes& codes, u8* keys) {
  constexpr int END = FORMAT == FP8 ? PLAIN / 64 : PARTS;
  UNROLL for (int g = 0; g < END; g++) put_part<FORMAT>(there, codes[g], keys + g * PART_BYTES);
  if constexpr (END < PARTS)
    UNROLL for (int g = END; g < PARTS; g++) put_part<WIDE>(there, codes[g], keys + g * PART_BYTES);
}

// Of 64 heads and 32 keys.
typedef float Scores[4][ACC];
D void products(const u8* queries, const u8* keys, Scores& c) {
  const u64 a = group_rows(queries), b = group_rows(keys);
  group_begin();
  UNROLL for (int s = 0; s < DIM / 16; s++) {
    const int at = s / 4 * (PART_BYTES >> 4) + s % 4 * 2;
    group_multiply_bf16(c, a + at, b + at, s > 0);
  }
  group_send();
  group_wait(c);
}
D float over_quarters(float v, bool sum) {
  UNROLL for (int apart = 1; apart < 4; apart *= 2) {
    const float other = __shfl_xor_sync(~0u, v, apart);
    v = sum ? add(v, other) : fmaxf(v, other);
  }
  return v;
}
D u32 listed(const Stored (&places)[KEYS], int half) { return __ballot_sync(~0u, places[32 * half + lane_id()].scale != nullptr); }

// q [rows, HEADS, DIM], sink [HEADS] -> y [rows, HEADS, DIM].
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attend_groups(const In* q, SOURCE(window), SOURCE(entry), const i64* window_index, const i64* entry_index, int window_blocks,
                  int entry_blocks, float scale, const float* sink, Out* y) {
  __shared__ Stored places[3][KEYS];  // of three blocks in turn
  __shared__ float best[2][ROOM], sums[2][ROOM], shrinks[ROOM], tops[ROOM];
  const Lists lists = {GIVEN(window), GIVEN(entry), window_index, entry_index, window_blocks, entry_blocks};
  const int blocks = window_blocks + entry_blocks, row = blockIdx.x, thread = threadIdx.x;
  const int half = warp_id() / 4, head = warp_id() % 4 * TILE;  // this warp's heads
  u8 *queries = group_aligned(room), *keys = queries + PARTS * PART_BYTES, *numerators = keys + 2 * PARTS * PART_BYTES;
  wait_for_previous();
  q += (i64)row * HEADS * DIM;
  y += (i64)row * HEADS * DIM;
  if (thread < 2 * KEYS && thread / KEYS < blocks) places[thread / KEYS][thread % KEYS] = key_at(lists, row, thread / KEYS, thread % KEYS);
  UNROLL for (int i = 0; i < ROOM * DIM / 8 / THREADS; i++) {
    const int at = i * THREADS + thread, h = at / (DIM / 8), chunk = at % (DIM / 8);
    *(uint4*)(queries + chunk / 8 * PART_BYTES + group_place(h, chunk % 8)) = *(const uint4*)(q + head_of(0, h) * DIM + chunk * 8);
  }
  Codes codes;
  float total[OWN][ACC] = {};
  float top[2] = {LEAST, LEAST};  // of heads head + lane_row() + 8 h
  float below = 0.f;              // of head `thread`
#define ASK(F) ask_key<F>(its, codes)
#define PUT(F) put_key<F>(its.scale != nullptr, codes, to)
  __syncthreads();
  if (blocks && (listed(places[0], 0) | listed(places[0], 1))) {
    const Stored its = places[0][thread >> 2];
    u8* to = keys;
    BY_FORMAT(format_at(lists, 0), ASK);
    BY_FORMAT(format_at(lists, 0), PUT);
  }
  for (int block = 0; block < blocks; block++) {
    group_wrote();
    __syncthreads();  // keys are there, and places of the next block
    const Stored(&own)[KEYS] = places[block % 3], (&next)[KEYS] = places[(block + 1) % 3];
    const u32 mine = listed(own, half), others = listed(own, half ^ 1);
    const bool more = block + 1 < blocks && (listed(next, 0) | listed(next, 1));
    Stored its = {};
    if (more) its = next[thread >> 2];
    u8 *now = keys + (block & 1) * PARTS * PART_BYTES, *to = keys + (block + 1 & 1) * PARTS * PART_BYTES;
    Stored far;
    if (thread < KEYS && block + 2 < blocks) far = key_at(lists, row, block + 2, thread);
    if (more) {
      BY_FORMAT(format_at(lists, block + 1), ASK);
    }
    if (mine | others) {
      Scores c;
      products(queries, now + 32 * half * GROUP_ROW, c);
      float most[2] = {none(), none()}, shrink[2];
      UNROLL for (int n = 0; n < 4; n++)
        UNROLL for (int i = 0; i < ACC; i++) {
          c[n][i] = mine >> (8 * n + acc_token(i)) & 1 ? mul(c[n][i], scale) : none();
          most[i >> 1] = fmaxf(most[i >> 1], c[n][i]);
        }
      UNROLL for (int h = 0; h < 2; h++) {
        most[h] = over_quarters(most[h], false);
        if (lane_quarter() == 0) best[half][head + lane_row() + 8 * h] = most[h];
      }
      __syncthreads();
      UNROLL for (int h = 0; h < 2; h++) {
        const int at = head + lane_row() + 8 * h;
        const float before = top[h];
        top[h] = fmaxf(before, fmaxf(best[0][at], best[1][at]));
        shrink[h] = expf(before - top[h]);  // exactly 1 where the block has no better key
        float sum = 0.f;
        UNROLL for (int n = 0; n < 4; n++)
          UNROLL for (int b = 0; b < 2; b++) {
            c[n][2 * h + b] = expf(c[n][2 * h + b] - top[h]);
            sum = add(sum, c[n][2 * h + b]);
          }
        sum = over_quarters(sum, true);
        if (lane_quarter() == 0) {
          sums[half][at] = sum;
          if (half == 0) shrinks[at] = shrink[h];
        }
        UNROLL for (int n = 0; n < 4; n++)
          *(u32*)(numerators + group_place(at, 4 * half + n) + 4 * lane_quarter()) = rounded_pair(c[n][2 * h], c[n][2 * h + 1]);
      }
      group_wrote();
      __syncthreads();
      if (thread < ROOM) below = add(mul(below, shrinks[thread]), add(sums[0][thread], sums[1][thread]));
      if (__ballot_sync(~0u, shrink[0] != 1.f || shrink[1] != 1.f))
        UNROLL for (int n = 0; n < OWN; n++)
          UNROLL for (int i = 0; i < ACC; i++) total[n][i] *= shrink[i >> 1];
      const u64 a = group_rows(numerators), b = group_columns(now + half * (PARTS / 2) * PART_BYTES, PART_BYTES);
      group_begin();
      UNROLL for (int s = 0; s < KEYS / 16; s++) group_multiply_columns(total, a + 2 * s, b + s * (16 * GROUP_ROW >> 4), 1);
      group_send();
    }
    if (thread < KEYS && block + 2 < blocks) places[(block + 2) % 3][thread] = far;
    if (more) {
      BY_FORMAT(format_at(lists, block + 1), PUT);
    }
    group_wait(total);
  }
  if (half == 0 && lane_quarter() == 0)
    UNROLL for (int h = 0; h < 2; h++) tops[head + lane_row() + 8 * h] = top[h];
  __syncthreads();
  if (thread < HEADS) sums[0][thread] = __fdiv_rn(1.f, add(below, expf(sink[thread] - tops[thread])));
  __syncthreads();
  constexpr int LEFT = DIM * 2 + 16;  // bytes of a head among results: 16 more, so that banks differ
  UNROLL for (int h = 0; h < 2; h++) {
    const int at = head + lane_row() + 8 * h;
    const float by = sums[0][min(at, HEADS - 1)];
    UNROLL for (int n = 0; n < OWN; n++)
      *(u32*)(queries + at * LEFT + (half * DIM / 2 + 8 * n + 2 * lane_quarter()) * 2) =
          rounded_pair(total[n][2 * h] * by, total[n][2 * h + 1] * by);
  }
  __syncthreads();
  UNROLL for (int i = 0; i < ROOM * DIM / 8 / THREADS; i++) {
    const int at = i * THREADS + thread, h = at / (DIM / 8), chunk = at % (DIM / 8);
    if (h < HEADS) *(uint4*)(y + h * DIM + chunk * 8) = *(const uint4*)(queries + h * LEFT + chunk * 16);
  }
}
