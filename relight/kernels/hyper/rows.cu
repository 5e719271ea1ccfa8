// How a sublayer reads and writes the four residual streams.
//
// The definition multiplies the HC * WIDTH values of a row with OUTPUTS rows of weights. Here they are cut into SPLITS slices of
// 128, a constant of the shape: a warp sums a slice for one output, four values a lane by fma and lanes by a tree, and slices are
// added in ascending order. No sum depends on the number of rows.
//
// Of given rows the matrix unit multiplies (PIECES): streams are bf16, and a float32 weight is the sum of PIECES that are.
//
// OUTPUTS: 24 for a sublayer (pre, post, comb), 4 for the head (pre).
#include "row.cuh"
#if PEERS
#include "peers.cuh"
#endif

constexpr int HC = 4, INNER = HC * WIDTH, SLICE = 128, SPLITS = INNER / SLICE, PARTS = 32;
constexpr int PART_WARPS = 8, OWN = (OUTPUTS + PART_WARPS - 1) / PART_WARPS;
static_assert(SPLITS % WARPS == 0 && OUTPUTS < PARTS, "warps share slices evenly; the sum of squares comes behind the outputs");

// Four sums over the lanes of a warp, each the tree of lanes_tree: lanes that a step makes idle go on with another sum, so there are
// six shuffles, not twenty. Eight neighbouring lanes end with one of them.
static_assert(OWN < 4, "sums of outputs, and that of squares");
D float four_trees(const float (&v)[4]) {
  const bool upper = lane_id() & 16, second = lane_id() & 8;
  float half[2];
  UNROLL for (int i = 0; i < 2; i++) {
    const float other = __shfl_xor_sync(~0u, upper ? v[2 * i] : v[2 * i + 1], 16);
    half[i] = add(upper ? v[2 * i + 1] : v[2 * i], other);
  }
  const float other = __shfl_xor_sync(~0u, second ? half[0] : half[1], 8);
  float sum = add(second ? half[1] : half[0], other);
  UNROLL for (int apart = 4; apart; apart >>= 1) sum = add(sum, __shfl_xor_sync(~0u, sum, apart));
  return sum;
}
D int its_tree() { return (lane_id() >> 2 & 2) | lane_id() >> 4; }

D void read_four(const float* p, float (&v)[4]) {
  const uint4 w = *(const uint4*)p;
  v[0] = __uint_as_float(w.x);
  v[1] = __uint_as_float(w.y);
  v[2] = __uint_as_float(w.z);
  v[3] = __uint_as_float(w.w);
}
D void read_four(const u16* p, float (&v)[4]) {
  const uint2 w = *(const uint2*)p;
  v[0] = __uint_as_float(w.x << 16);
  v[1] = __uint_as_float(w.x & 0xFFFF0000u);
  v[2] = __uint_as_float(w.y << 16);
  v[3] = __uint_as_float(w.y & 0xFFFF0000u);
}
// What a sublayer of experts gave, behind its shared expert's part: ((0 + slot 0) + slot 1) + ... + out, rounded. Some slots are on
// their way together: a loop of unknown length would wait for each.
template <int N, class Read> D void add_routed(const float* slot, int slots, float (&out)[N], Read read) {
  constexpr int SLOTS = N < 4 ? 8 : 32 / N;
  float sum[N] = {};
  for (int first = 0; first < slots; first += SLOTS) {
    float part[SLOTS][N];
    UNROLL for (int j = 0; j < SLOTS; j++)
      if (first + j < slots) read(slot + (first + j) * WIDTH, part[j]);
    UNROLL for (int j = 0; j < SLOTS; j++)
      if (first + j < slots)
        UNROLL for (int i = 0; i < N; i++) sum[i] = add(sum[i], part[j][i]);
  }
  UNROLL for (int i = 0; i < N; i++) out[i] = rounded(add(sum[i], out[i]));
}
D float four_products(const float (&v)[4], const float (&w)[4]) {
  float s = mul(v[0], w[0]);
  UNROLL for (int i = 1; i < 4; i++) s = fmaf(v[i], w[i], s);
  return s;
}

// Sums of a warp's outputs and of squares, of a slice of which a lane has four values, into `part`.
D void put_parts(const float (&v)[4], const float (&w)[OWN][4], float* part) {
  float s[4] = {};
  UNROLL for (int o = 0; o < OWN; o++) s[o] = four_products(v, w[o]);
  if (warp_id() == 0) s[OWN] = four_products(v, v);
  const float sum = four_trees(s);
  const int output = its_tree() * PART_WARPS + warp_id();
  if ((lane_id() & 7) == 0) {
    if (its_tree() < OWN && output < OUTPUTS) part[output] = sum;
    if (its_tree() == OWN && warp_id() == 0) part[OUTPUTS] = sum;
  }
}
D void read_own(const float* fn, int from, float (&w)[OWN][4]) {
  UNROLL for (int o = 0; o < OWN; o++) read_four(fn + (i64)min(o * PART_WARPS + warp_id(), OUTPUTS - 1) * INNER + from, w[o]);
}

// streams [n, HC, WIDTH], fn [OUTPUTS, INNER] -> parts [n, SPLITS, PARTS]: of each slice the outputs, then the sum of squares.
// Grid: SPLITS, then blocks that take turns in rows, a few at once: what they read is on its way together.
// Weights are asked for before the kernel in front has ended. Not so if they were `__restrict__`: then compilers read them behind it.
constexpr int AT_ONCE = 4;
extern "C" __global__ void __launch_bounds__(32 * PART_WARPS)
    mix_parts(const In* streams, const float* fn, float* parts, int n) {
  const int from = blockIdx.x * SLICE + lane_id() * 4;
  float w[OWN][4];
  read_own(fn, from, w);
  wait_for_previous();
  for (int first = blockIdx.y * AT_ONCE; first < n; first += gridDim.y * AT_ONCE) {
    float v[AT_ONCE][4];
    UNROLL for (int i = 0; i < AT_ONCE; i++) read_four(streams + (i64)min(first + i, n - 1) * INNER + from, v[i]);
    UNROLL for (int i = 0; i < AT_ONCE; i++) {
      if (first + i >= n) break;
      put_parts(v[i], w, parts + ((i64)(first + i) * SPLITS + blockIdx.x) * PARTS);
    }
  }
}

D float read_one(const float* p) { return *p; }
D float read_one(const u16* p) { return from_bf16(*p); }
D void write_one(float* p, float v) { *p = v; }
D void write_one(u16* p, float v) { *p = to_bf16(v); }
// The same of streams that are spread as they are read, as by `spread` below, and come out as y: a thread a value, then all warps
// have the slice. Grid: SPLITS, n.
extern "C" __global__ void __launch_bounds__(32 * PART_WARPS)
    spread_parts(const In* out, const float* routed, int slots, const In* streams, const float* post, const float* comb, Out* y,
                 const float* fn, float* parts) {
  __shared__ uint4 slice[SLICE / 4];
  const int from = blockIdx.x * SLICE;
  const i64 row = blockIdx.y;
  float w[OWN][4], v[4];
  read_own(fn, from + lane_id() * 4, w);
  wait_for_previous();
  if (threadIdx.x < SLICE) {
    const int k = (from + threadIdx.x) / WIDTH, at = (from + threadIdx.x) % WIDTH;
    float o[1] = {read_one(out + row * WIDTH + at)}, x[HC], c[HC], all[HC];
    UNROLL for (int j = 0; j < HC; j++) {
      x[j] = read_one(streams + (row * HC + j) * WIDTH + at);
      c[j] = comb[(row * HC + j) * HC + k];
    }
    const float p = post[row * HC + k];
    if (routed) add_routed(routed + row * slots * WIDTH + at, slots, o, [](const float* from, float(&v)[1]) { v[0] = *from; });
    UNROLL for (int j = 0; j < HC; j++) all[j] = mul(c[j], x[j]);
    const float found = rounded(add(mul(p, o[0]), tree(all)));
    ((float*)slice)[threadIdx.x] = found;
    write_one(y + row * INNER + from + threadIdx.x, found);
  }
  __syncthreads();
  read_four((const float*)slice + lane_id() * 4, v);
  put_parts(v, w, parts + (row * SPLITS + blockIdx.x) * PARTS);
}

// Lane 4 i + j of sixteen holds the logit of stream i to stream j; the others repeat them. Softmax of rows, then rows and columns
// in turn, ending with columns. Thirty-nine divisions wait for each other, so they are products with an inverse, whose last bit is
// the device's.
D float sum_apart(float v, int first, int second) {
  v = add(v, __shfl_xor_sync(~0u, v, first));
  return add(v, __shfl_xor_sync(~0u, v, second));
}
D float sinkhorn(float c, int iterations, float eps) {
  float largest = fmaxf(c, __shfl_xor_sync(~0u, c, 2));
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
  const float power = expf(add(c, -largest));
  c = add(__fdiv_rn(power, sum_apart(power, 2, 1)), eps);
  c = __fdividef(c, add(sum_apart(c, 8, 4), eps));
  for (int i = 1; i < iterations; i++) {
    c = __fdividef(c, add(sum_apart(c, 2, 1), eps));
    c = __fdividef(c, add(sum_apart(c, 8, 4), eps));
  }
  return c;
}

// The streams of a row [HC, WIDTH], pairs as they lie, and their sum by weights.
#if IN_BF16
typedef u32 Lying;
#else
typedef uint2 Lying;
#endif
typedef Lying Streams[HC][PAIRS];
D void read_all(const In* p, Streams& streams) {
  UNROLL for (int k = 0; k < HC; k++)
    UNROLL for (int j = 0; j < PAIRS; j++) streams[k][j] = *(const Lying*)(p + k * WIDTH + place(j));
}
D void collapse(const Streams& streams, const float (&by)[HC], Pairs& v) {
  UNROLL for (int j = 0; j < PAIRS; j++) {
    float read[HC][2];
    UNROLL for (int k = 0; k < HC; k++) read_pair((const In*)&streams[k][j], read[k]);
    UNROLL for (int b = 0; b < 2; b++) {
      float all[HC];
      UNROLL for (int k = 0; k < HC; k++) all[k] = mul(read[k][b], by[k]);
      v[j][b] = rounded(tree(all));
    }
  }
}

// streams [n, HC, WIDTH] by `reading` [n, HC], or their mean where that is null -> plain [n, WIDTH], and x, the same normed. Either may
// be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    read_streams(const In* streams, const float* reading, const float* weight, float norm_eps, Out* x, Out* plain) {
  __shared__ Room room;
  const i64 row = blockIdx.x;
  Streams read;
  Pairs w, v;
  if (x) read_row(weight, w);
  wait_for_previous();
  read_all(streams + row * HC * WIDTH, read);
  float by[HC];
  UNROLL for (int k = 0; k < HC; k++) by[k] = reading ? reading[row * HC + k] : 1.f / HC;  // exact, before or behind the sum
  collapse(read, by, v);
  if (plain) write_row(plain + row * WIDTH, v);
  if (!x) return;
  norm(v, w, norm_eps, room);
  write_row(x + row * WIDTH, v);
}

#if PIECES
constexpr int CUTS = 8, CUT = INNER / CUTS, CUT_ROWS = 128;  // kernels/hyper/cuda.py
static_assert(PIECES * OUTPUTS <= CUT_ROWS, "a cut is a tile");
// fn [OUTPUTS, INNER] -> to [CUTS, CUT_ROWS, CUT]: of a weight what is left of it, rounded to bf16, PIECES times; zeros behind. Grid:
// columns by 512, CUT_ROWS.
extern "C" __global__ void __launch_bounds__(256) split_weights(const float* fn, u16* to) {
  const int at = (blockIdx.x * 256 + threadIdx.x) * 2, piece = blockIdx.y / OUTPUTS;
  wait_for_previous();
  if (at >= INNER) return;
  float v[2] = {};
  if (piece < PIECES) read_pair(fn + (i64)(blockIdx.y % OUTPUTS) * INNER + at, v);
  for (int k = 0; k < piece; k++)
    UNROLL for (int b = 0; b < 2; b++) v[b] = add(v[b], -from_bf16(to_bf16(v[b])));  // exact
  write_pair(to + ((i64)(at / CUT) * CUT_ROWS + blockIdx.y) * CUT + at % CUT, v);
}
#endif

// comb [n, HC, HC], as mix_end leaves it, in place. Two rows a warp.
extern "C" __global__ void __launch_bounds__(256) balance(float* comb, int n, float eps, int iterations) {
  const i64 at = (i64)blockIdx.x * 256 + threadIdx.x;
  wait_for_previous();
  const bool is = at < (i64)n * HC * HC;
  const float c = sinkhorn(is ? comb[at] : 0.f, iterations, eps);
  if (is) comb[at] = c;
}

// A block a row, with one warp more than hold it. pre, post [n, HC], logits [n, HC, HC] of comb, and x [n, WIDTH], the streams by
// `reading` [n, HC], or by this row's own pre where that is null, normed, and as `plain`, if that is wanted, before. Of a head only
// these two come out. With ROUNDS x comes out rounded, too.
// With PIECES parts are [n, CUTS, CUT_ROWS], and squares are summed here. Then several share a processor.
extern "C" __global__ void __launch_bounds__(THREADS + 32, !PIECES ? 0 : PAIRS <= 8 ? 3 : 2)
    mix_end(const float* parts, const float* base, const float* scale, const In* streams, const float* reading,
            const float* weight, float eps, float norm_eps, float* pre, float* post, float* logits, Out* x, Out* plain,
            u8* codes, float* scales) {
  __shared__ float sums[WARPS][PARTS];
  __shared__ Room room;
  const i64 row = blockIdx.x;
  const int lane = lane_id(), warp = warp_id();
  const bool last = warp == WARPS;
  const int output = min(lane, OUTPUTS - 1);
  const float own_scale = scale[output < 4 ? 0 : output < 8 ? 1 : 2], own_base = base[output];
  Streams read;
  Pairs w, v;
  float by[HC] = {};
  if (!last) read_row(weight, w);
  wait_for_previous();
  if (!last) {  // all that is read is asked for at once
    read_all(streams + row * HC * WIDTH, read);
    if (reading)
      UNROLL for (int k = 0; k < HC; k++) by[k] = reading[row * HC + k];
#if PIECES
    float own[HC][2] = {};
    UNROLL for (int k = 0; k < HC; k++)
      UNROLL for (int j = 0; j < PAIRS; j++) {
        float pair[2];
        read_pair((const In*)&read[k][j], pair);
        UNROLL for (int b = 0; b < 2; b++) own[k][b] = fmaf(pair[b], pair[b], own[k][b]);
      }
    float squares[2];
    UNROLL for (int b = 0; b < 2; b++) squares[b] = add(add(own[0][b], own[1][b]), add(own[2][b], own[3][b]));
    sums[warp][lane] = lanes_tree(add(squares[0], squares[1]));
#else
    const float* part = parts + (row * SPLITS + warp * (SPLITS / WARPS)) * PARTS + min(lane, OUTPUTS);
    float s = part[0];
    UNROLL for (int k = 1; k < SPLITS / WARPS; k++) s = add(s, part[k * PARTS]);
    sums[warp][lane] = s;
#endif
  }
#if PIECES
  const float* part = parts + row * CUTS * CUT_ROWS + output;
  float all[CUTS], s = 0.f;
  UNROLL for (int k = 0; k < PIECES; k++) {
    UNROLL for (int c = 0; c < CUTS; c++) all[c] = part[c * CUT_ROWS + k * OUTPUTS];
    s = add(s, tree(all));
  }
  __syncthreads();
  float square = sums[0][lane];
  UNROLL for (int w = 1; w < WARPS; w++) square = add(square, sums[w][lane]);
  const float mean = mul(square, 1.f / INNER);
#else
  __syncthreads();
  float s = sums[0][lane];
  UNROLL for (int w = 1; w < WARPS; w++) s = add(s, sums[w][lane]);
  const float mean = mul(__shfl_sync(~0u, s, OUTPUTS), 1.f / INNER);
#endif
  const float logit = add(mul(mul(s, rsqrtf(add(mean, norm_eps))), own_scale), own_base);
  const float own = add(sigmoid(logit), eps);
  if (!last) {
    if (!reading)
      UNROLL for (int k = 0; k < HC; k++) by[k] = __shfl_sync(~0u, own, k);
    collapse(read, by, v);
    if (plain) write_row(plain + row * WIDTH, v);
    give_squares(v, room);
  }
  __syncthreads();
  if (!last) {
    norm_end(v, w, norm_eps, room);
    write_row(x + row * WIDTH, v);
  }
#if ROUNDS
  __shared__ Sizes sizes;
  if (!last) tell_sizes(v, sizes);
#endif
#if OUTPUTS > 4
  if (last) {
    if (lane < 4) pre[row * HC + lane] = own;
    else if (lane < 8) post[row * HC + lane - 4] = mul(2.f, sigmoid(logit));
    else if (lane < OUTPUTS) logits[row * HC * HC + lane - 8] = logit;
  }
#endif
#if ROUNDS
  if (ROUNDS > 32) __syncthreads();
  if (!last) put_rounded(v, sizes, row, codes, scales);
#endif
}

#if PEERS
// The same by a cluster of blocks a row, each of which has every PEERS-th 128 columns, a pair a thread: what one block has in front of
// it takes a processor longer than asking others. All read all parts. Squares are folded as `take` folds them: a block folds the
// top bits of its columns' numbers, then all have the next three, which are the number of the block, and the rest.
// Grid: PEERS, n.
constexpr int CHUNKS = WIDTH / (128 * PEERS), END_THREADS = 64 * CHUNKS;
static_assert(PEERS == 8 && WIDTH % (128 * PEERS) == 0, "three bits are the number of a block");
struct alignas(8) Squares {
  float own[CHUNKS][128], of_all[PEERS][128];
};
template <int N> D void tree_of_pairs(float (&v)[N][2]) {  // into the first
  UNROLL for (int b = 0; b < 2; b++) {
    float all[N];
    UNROLL for (int i = 0; i < N; i++) all[i] = v[i][b];
    v[0][b] = tree(all);
  }
}
extern "C" __global__ void __cluster_dims__(PEERS, 1, 1) __launch_bounds__(END_THREADS, 1)
    mix_end_by_peers(const float* parts, const float* base, const float* scale, const In* streams, const float* reading,
                     const float* weight, float eps, float norm_eps, float* pre, float* post, float* logits, Out* x, Out* plain,
                     u8* codes, float* scales) {
  __shared__ float sums[WARPS][PARTS];
  __shared__ Squares squares;
  __shared__ u64 told;
  const i64 row = blockIdx.y;
  const int lane = lane_id(), chunk = threadIdx.x / 64, inside = threadIdx.x % 64 * 2, at = (chunk * PEERS + blockIdx.x) * 128 + inside;
  const int output = min(lane, OUTPUTS - 1);
  const float own_scale = scale[output < 4 ? 0 : output < 8 ? 1 : 2], own_base = base[output];
  float w[2], read[HC][2], by[HC], v[2], square[2];
  read_pair(weight + at, w);
  greet_peers(&told, sizeof squares.of_all);
  wait_for_previous();
  UNROLL for (int k = 0; k < HC; k++) {
    read_pair(streams + (row * HC + k) * WIDTH + at, read[k]);
    by[k] = reading ? reading[row * HC + k] : 0.f;
  }
  for (int group = warp_id(); group < WARPS; group += END_THREADS / 32) {  // as warps of `mix_end` have them
    const float* part = parts + (row * SPLITS + group * (SPLITS / WARPS)) * PARTS + min(lane, OUTPUTS);
    float all[SPLITS / WARPS];
    UNROLL for (int k = 0; k < SPLITS / WARPS; k++) all[k] = part[k * PARTS];
    UNROLL for (int k = 1; k < SPLITS / WARPS; k++) all[0] = add(all[0], all[k]);
    sums[group][lane] = all[0];
  }
  __syncthreads();
  float s = sums[0][lane];
  UNROLL for (int g = 1; g < WARPS; g++) s = add(s, sums[g][lane]);
  const float mean = mul(__shfl_sync(~0u, s, OUTPUTS), 1.f / INNER);
  const float logit = add(mul(mul(s, rsqrtf(add(mean, norm_eps))), own_scale), own_base);
  const float gate = sigmoid(logit), own = add(gate, eps);
  if (!reading)
    UNROLL for (int k = 0; k < HC; k++) by[k] = __shfl_sync(~0u, own, k);
  UNROLL for (int b = 0; b < 2; b++) {
    float all[HC];
    UNROLL for (int k = 0; k < HC; k++) all[k] = mul(read[k][b], by[k]);
    v[b] = rounded(tree(all));
    square[b] = mul(v[b], v[b]);
  }
  write_pair(&squares.own[chunk][inside], square);
  __syncthreads();
  float folded[CHUNKS][2];
  UNROLL for (int c = 0; c < CHUNKS; c++) read_pair(&squares.own[c][inside], folded[c]);
  tree_of_pairs(folded);
  meet_peers();
  UNROLL for (int i = 0; i < PEERS; i += CHUNKS)
    if (i + chunk < PEERS) tell_peer(&squares.of_all[blockIdx.x][inside], &told, i + chunk, folded[0][0], folded[0][1]);
  hear_peers(&told);
  float halves[2][2];
  UNROLL for (int h = 0; h < 2; h++) {
    float all[PEERS][2];
    UNROLL for (int p = 0; p < PEERS; p++) read_pair(&squares.of_all[p][h * 64 + lane * 2], all[p]);
    tree_of_pairs(all);
    UNROLL for (int b = 0; b < 2; b++) halves[h][b] = all[0][b];
  }
  float ends[2];
  UNROLL for (int b = 0; b < 2; b++) ends[b] = lanes_tree(add(halves[0][b], halves[1][b]));
  const float factor = rsqrtf(add(mean_of(add(ends[0], ends[1])), norm_eps));
  if (plain) write_pair(plain + row * WIDTH + at, v);
  UNROLL for (int b = 0; b < 2; b++) v[b] = rounded(mul(mul(v[b], factor), w[b]));
  write_pair(x + row * WIDTH + at, v);
#if ROUNDS
  __shared__ u32 sizes[END_THREADS / 32];
  tell_size(v, sizes);
  if (ROUNDS > 32) __syncthreads();
  put_rounded(v, sizes, row * WIDTH + at, codes, scales);
#endif
#if OUTPUTS > 4
  if (blockIdx.x == 0 && warp_id() == 0) {
    if (lane < 4) pre[row * HC + lane] = own;
    else if (lane < 8) post[row * HC + lane - 4] = mul(2.f, gate);
    else if (lane < OUTPUTS) logits[row * HC * HC + lane - 8] = logit;
  }
#endif
}
#endif

// out [n, WIDTH], streams [n, HC, WIDTH] -> y [n, HC, WIDTH]: y_k = post_k * out + sum_j comb[j, k] * stream_j. `routed` [n,
// slots, WIDTH] or null: what is added first. Grid: n, columns by 512, of which a thread has eight.
extern "C" __global__ void __launch_bounds__(64)
    spread(const In* out, const float* routed, int slots, const In* streams, const float* post, const float* comb, Out* y) {
  const i64 row = blockIdx.x;
  const int at = (blockIdx.y * 64 + threadIdx.x) * 8;
  wait_for_previous();
  if (at >= WIDTH) return;
  float o[8], x[HC][8], by[HC][HC], own[HC];
  read_eight(out + row * WIDTH + at, o);
  UNROLL for (int j = 0; j < HC; j++) {
    read_eight(streams + (row * HC + j) * WIDTH + at, x[j]);
    own[j] = post[row * HC + j];
    UNROLL for (int k = 0; k < HC; k++) by[j][k] = comb[(row * HC + j) * HC + k];
  }
  if (routed) add_routed(routed + row * slots * WIDTH + at, slots, o, [](const float* from, float(&v)[8]) { read_eight(from, v); });
  UNROLL for (int k = 0; k < HC; k++) {
    float found[8];
    UNROLL for (int b = 0; b < 8; b++) {
      float all[HC];
      UNROLL for (int j = 0; j < HC; j++) all[j] = mul(by[j][k], x[j][b]);
      found[b] = add(mul(own[k], o[b]), tree(all));
    }
    write_eight(y + (row * HC + k) * WIDTH + at, found);
  }
}
