// Compressors: an entry for each group that closes, out of raw rows in a ring. A segment may have more rows than a ring, so members
// that are rows of the segment itself are read as they were projected, if it says where.
//
// MEMBERS rows are pooled, channel by channel, by the softmax of their gates. With OVERLAP the first half of the members
// are the A halves of the group before, the others the B halves of the group itself. The entry is rounded, normed, rotated by the
// position of the group's first token and stored: END 2 a row of format "fp8", 3, after Hadamard, one of format "fp4". END 0: the
// normed entry comes out, and zeros of a group that does not close.
//
// SPLIT times THREADS threads pool, each a pair of channels of some of the members; THREADS go on with the entry. Where members are
// few, a thread has all it reads of them at once.
#include "row.cuh"

constexpr int HALVES = OVERLAP ? 2 : 1, CHANNELS = HALVES * WIDTH, RATIO = MEMBERS / HALVES;

// The tree of halves over `MEMBERS` as one over STRIDE residues, each of them one over the members of that residue.
constexpr int STRIDE = MEMBERS > 16 ? MEMBERS / 16 : 1, RUN = MEMBERS / STRIDE;
static_assert(MEMBERS == STRIDE * RUN && (MEMBERS & MEMBERS - 1) == 0, "a power of two");
static_assert(STRIDE % SPLIT == 0 && (SPLIT == 1 || PAIRS == 1), "threads share residues evenly");

struct Group {
  const float* slot;  // of the ring
  i64 first;          // position of the first member, below zero before the sequence
  int start, ring;    // its ring row
  int own;            // from this member on they are rows of the segment; MEMBERS where none is
  const float *values, *gates, *ape;  // of member m at m * CHANNELS; of the last m % RATIO
  D bool absent(int m) const { return first + m < 0; }
  D static int half(int m) { return OVERLAP && m >= RATIO ? WIDTH : 0; }
  D const float* kept(int m) const {
    return slot + (start + m < ring ? start + m : start + m - ring) * (2 * CHANNELS) + half(m);
  }
  D void value(int m, int channel, float (&v)[2]) const {
    v[0] = v[1] = 0.f;
    if (!absent(m)) read_pair((m < own ? kept(m) : values + m * CHANNELS + half(m)) + channel, v);
  }
  D void gate(int m, int channel, float (&g)[2]) const {
    g[0] = g[1] = __uint_as_float(0xFF800000u);  // -infinity
    if (absent(m)) return;
    read_pair((m < own ? kept(m) + CHANNELS : gates + m * CHANNELS + half(m)) + channel, g);
    if (m >= own)  // weights may begin anywhere
      UNROLL for (int b = 0; b < 2; b++) g[b] = add(g[b], ape[m % RATIO * CHANNELS + half(m) + channel + b]);
  }
  D void gates_of(int o, int channel, float (&g)[RUN][2]) const {
    UNROLL for (int i = 0; i < RUN; i++) gate(i * STRIDE + o, channel, g[i]);
  }
  D void values_of(int o, int channel, float (&v)[RUN][2]) const {
    UNROLL for (int i = 0; i < RUN; i++) value(i * STRIDE + o, channel, v[i]);
  }
};

// What the parts of a pair of channels have, as one: of the bits of a member those of a part are the lowest.
typedef float Meeting[2][SPLIT][THREADS];
template <class F> D void meet(Meeting& room, float (&v)[2], F join) {
  if constexpr (SPLIT > 1) {
    const int pair = threadIdx.x % THREADS;
    UNROLL for (int b = 0; b < 2; b++) room[b][threadIdx.x / THREADS][pair] = v[b];
    __syncthreads();
    UNROLL for (int b = 0; b < 2; b++) {
      float all[SPLIT];
      UNROLL for (int p = 0; p < SPLIT; p++) all[p] = room[b][p][pair];
      UNROLL for (int half = SPLIT / 2; half; half /= 2)
        UNROLL for (int p = 0; p < half; p++) all[p] = join(all[p], all[p + half]);
      v[b] = all[0];
    }
  }
}
// The definition's sum over all members of terms(o, ..), those of residue o.
template <class F> D void sums(int part, Meeting& room, float (&found)[2], F terms) {
  float all[2][STRIDE / SPLIT], of_one[2][RUN];
  _Pragma("unroll 1") for (int o = 0; o < STRIDE / SPLIT; o++) {
    terms(o * SPLIT + part, of_one);
    UNROLL for (int b = 0; b < 2; b++) {
      const float sum = tree(of_one[b]);
      UNROLL for (int k = 0; k < STRIDE / SPLIT; k++)
        if (k == o) all[b][k] = sum;
    }
  }
  UNROLL for (int b = 0; b < 2; b++) found[b] = tree(all[b]);
  meet(room, found, [](float a, float b) { return add(a, b); });
}

// Groups g: entry, sequence and place of each; place 0 is the null page's, of groups that do not close. slots by sequence. Where
// `values` is not null, row first_rows[sequence] of it and of the gates is at position starts[sequence], and so on. Of END 0 `data` is
// y [groups, WIDTH] of Out.
extern "C" __global__ void __launch_bounds__(THREADS * SPLIT)
    pool(const i64* entries, const i64* sequences, const i64* slots, const i64* places, const float* values, const float* gates,
         const float* ape, const i64* starts, const i64* first_rows, const float* rows, i64 slot_floats, int ring,
         const float* weight, float eps, const float* frequencies, u8* data, u8* scale, i64 data_outer, i64 scale_outer, int inner,
         int data_inner, int scale_inner) {
  __shared__ Room room;
  __shared__ Meeting meetings[3];
  const i64 g = blockIdx.x;
  const int part = threadIdx.x / THREADS;
  wait_for_previous();
  const i64 to = places[g], entry = entries[g], sequence = sequences[g];
  if (to == 0) {
#if END == 0
    const Pairs nothing = {};
    if (part == 0) write_row((Out*)data + g * WIDTH, nothing);
#endif
    return;
  }
  const i64 first = entry * RATIO - (MEMBERS - RATIO);
  const int start = (int)((first + MEMBERS) % ring) - MEMBERS;  // the ring has MEMBERS rows at least, and first + MEMBERS > 0
  Group group = {rows + slots[sequence] * slot_floats, first, start < 0 ? start + ring : start, ring, MEMBERS};
  if (values) {
    const i64 before = starts[sequence] - first, from = first_rows[sequence] - before;  // row of member 0
    group.own = (int)min(max(before, (i64)0), (i64)MEMBERS);
    group.values = values + from * CHANNELS;
    group.gates = gates + from * CHANNELS;
    group.ape = ape;
  }
  Pairs w, v;
  if (part == 0) read_row(weight, w);
#pragma unroll 1
  for (int j = 0; j < PAIRS; j++) {
    const int channel = (j * THREADS + threadIdx.x % THREADS) * 2;
    float gates[RUN][2], values[RUN][2];  // of residue o; of the only one from the start
    if (STRIDE == 1) {
      group.gates_of(0, channel, gates);
      group.values_of(0, channel, values);
    }
    float largest[2];
    UNROLL for (int b = 0; b < 2; b++) largest[b] = __uint_as_float(0xFF800000u);
    _Pragma("unroll 1") for (int o = part; o < STRIDE; o += SPLIT) {
      if (STRIDE > 1) group.gates_of(o, channel, gates);
      UNROLL for (int i = 0; i < RUN; i++)
        UNROLL for (int b = 0; b < 2; b++) largest[b] = fmaxf(largest[b], gates[i][b]);
    }
    meet(meetings[0], largest, [](float a, float b) { return fmaxf(a, b); });
    float total[2], found[2];
    sums(part, meetings[1], total, [&](int o, float(&terms)[2][RUN]) {
      if (STRIDE > 1) group.gates_of(o, channel, gates);
      UNROLL for (int i = 0; i < RUN; i++)
        UNROLL for (int b = 0; b < 2; b++) terms[b][i] = expf(add(gates[i][b], -largest[b]));
    });
    sums(part, meetings[2], found, [&](int o, float(&terms)[2][RUN]) {
      if (STRIDE > 1) group.gates_of(o, channel, gates);
      if (STRIDE > 1) group.values_of(o, channel, values);
      UNROLL for (int i = 0; i < RUN; i++)
        UNROLL for (int b = 0; b < 2; b++) {
          const bool here = gates[i][b] != __uint_as_float(0xFF800000u);
          terms[b][i] = mul(__fdiv_rn(expf(add(gates[i][b], -largest[b])), total[b]), here ? values[i][b] : 0.f);
        }
    });
    UNROLL for (int b = 0; b < 2; b++)
      UNROLL for (int k = 0; k < PAIRS; k++)
        if (k == j) v[k][b] = rounded(found[b]);
  }
  if (part == 0) give_squares(v, room);
  __syncthreads();
  if (part) return;
  norm_end(v, w, eps, room);
#if END == 0
  write_row((Out*)data + g * WIDTH, v);
#else
  rotate(v, entry * RATIO, frequencies);
  const Store store = {data, scale, data_outer, scale_outer, inner, data_inner, scale_inner};
#if END == 2
  put_fp8(v, data_of(store, to), scale_of_row(store, to));
#else
  hadamard(v);
  put_fp4(v, data_of(store, to), scale_of_row(store, to));
#endif
#endif
}
