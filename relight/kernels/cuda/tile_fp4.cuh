// Tiles of E2M1 weights times E4M3 tokens, for many tokens: the sums of ROWS rows of weights with up to TOKENS tokens. Knows no op.
//
// What is summed never depends on other tokens. K goes in units of 128, ascending; the values of a token that share a scale (BLOCK
// of them, all or a quarter of a unit) are summed by the matrix unit from zero and added in float32,
//     total += sum * scale of the token;
// the scale of the row comes last. K is not split, there are no atomics. A token is a column of the matrix unit, and columns do not
// mix; one without a token repeats another's and is dropped. A tile with few tokens leaves columns out (N), which changes no bit.
//
// A row has a scale for each 32 values. It goes into the decoded halves, relative to the largest of the row: E2M1 times 2^(1 - d),
// which an fp16 is exactly for d <= 24. The launcher takes weights with larger d only where they are zero. So the matrix unit needs
// not keep quarters apart, as it does in walk.cuh, and all that it multiplies counts.
//
// All is decoded once a block. A warp has 32 rows for itself, which it reads from memory as the checkpoint has them. Tokens go
// decoded into shared memory, by thread 4 t + q quarter q of token t, in the order in which lanes take them up again, two steps of
// the matrix unit in 16 bytes.
//
// Form 70: a lane walks all of K (columns.cuh). Else four lanes share a unit: each walks a quarter of it or, where quarters have
// scales (SHARED), all four walk each quarter, a fourth of it each.
#pragma once
#include "columns.cuh"
#include "decode.cuh"

constexpr int ROWS = 256, TOKENS = 64, WARPS = 8, THREADS = 32 * WARPS;
constexpr int TILES = 2;  // of 16 rows, of a warp
constexpr int SCALES = UNIT / BLOCK;  // of a token and unit
static_assert(FORMAT == 4 && X_BYTES == 1 && UNIT == 128 && (SCALES == 1 || SCALES == 4), "E2M1 by E4M3");

#if STEP_FORM == 70
constexpr int QUARTERS = 4;  // of a unit that a lane walks
D int quarter(int q) { return q; }
#else
constexpr int QUARTERS = 1;
D int quarter(int) { return lane_quarter(); }
#endif

constexpr bool SHARED = SCALES == 4 && QUARTERS == 1;
constexpr bool MIDWAY = SCALES == 1 && QUARTERS == 1;  // tokens are decoded while the matrix unit has half a unit to do
constexpr int STAGED = 4 * TOKENS * 4;  // words of 16 bytes of a unit of tokens: [two steps][token][lane that walks them]
constexpr int LEFT_ROW = 528;           // bytes of a token among results: 128 floats or 256 bf16, and 16 so that banks differ
struct Room {
  uint4 x[TOKENS * LEFT_ROW / 16];  // two units of tokens; in the end the results
  float sx[2][SCALES][TOKENS];
  float factor[ROWS];  // by warp, tile and row
};
static_assert(sizeof(Room::x) >= 2 * STAGED * 16, "results take the place of tokens");

struct Rows {  // where those that this lane brings begin, by tile
  const u8* w[TILES];
  const u8* scale[TILES];
  int bias[TILES][HALVES];  // 30 less the largest scale
};
// What a lane walks at once: of a unit its quarter, or a fourth of each quarter (a word each), in form 70 all quarters in turn.
struct Quarter {
  uint4 w[TILES][HALVES];
  u32 scales[TILES][HALVES];  // of all four
};
D void ask(Quarter& to, const Rows& rows, int q, int units) {
  UNROLL for (int t = 0; t < TILES; t++)
    UNROLL for (int h = 0; h < HALVES; h++) {
      const u8* row = rows.w[t] + h * 8 * units * 64;
      const u32* mine = (const u32*)row + lane_quarter();
      to.w[t][h] = SHARED ? make_uint4(__ldg(mine), __ldg(mine + 4), __ldg(mine + 8), __ldg(mine + 12))
                          : stream16(row + quarter(q) * 16);
      to.scales[t][h] = __ldg((const u32*)(rows.scale[t] + h * 8 * units * 4));
    }
}
D void advance(Rows& rows, int by) {
  UNROLL for (int t = 0; t < TILES; t++) {
    rows.w[t] += by * 64;
    rows.scale[t] += by * 4;
  }
}

// The largest scale of each row, as the row's factor and as what others are lifted by. All lanes of a warp call it.
D void weigh(Rows& rows, int units, Room& room) {
  const int sharing = HALVES == 2 ? 4 : 1;  // lanes that bring a row
  u32 most[TILES][HALVES] = {};             // in the top byte
#pragma unroll 4
  for (int u = HALVES == 2 ? lane_quarter() : 0; u < units; u += sharing)
    UNROLL for (int t = 0; t < TILES; t++)
      UNROLL for (int h = 0; h < HALVES; h++) {
        const u32 four = __ldg((const u32*)(rows.scale[t] + (h * 8 * units + u) * 4));
        most[t][h] = max(max(most[t][h], max(four, four << 8)), max(four << 16, four << 24));
      }
  UNROLL for (int t = 0; t < TILES; t++)
    UNROLL for (int h = 0; h < HALVES; h++) {
      const u32 scale = lanes_max(most[t][h], sharing / 2) >> 24;
      rows.bias[t][h] = 30 - (int)scale;
      room.factor[(warp_id() * TILES + t) * 16 + brought_row(h)] = e8m0(scale) * (0.5f * X_RAISE);
    }
}
// A pair of 2^(15 - d) in fp16, which with 2^-14, where E2M1 lies in fp16, makes 2^(1 - d).
D u32 lift_of(u32 scales, int q, int bias) { return (u32)max((int)(scales >> 8 * q & 255) + bias, 0) * 0x04000400u; }
D u32 lifted(u32 pair, u32 lift) {
  u32 r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(pair), "r"(lift));
  return r;
}

struct Coming {  // what a thread decodes of a unit of tokens
  uint4 codes[2];
  float scale;
};
D void ask(Coming& coming, const u8* x, const float* sx) {
  UNROLL for (int i = 0; i < 2; i++) coming.codes[i] = load16(x + i * 16);
  coming.scale = *sx;
}
D void stage(const Coming& coming, int u, Room& room) {
  const int token = threadIdx.x >> 2, q = threadIdx.x & 3;
  u32 pairs[LOADED / 2];
  unpack_x(coming.codes, pairs);
  uint4* to = room.x + (u & 1) * STAGED;
  UNROLL for (int j = 0; j < 4; j++)  // ^: neighbours in other banks
    to[SHARED ? (q * TOKENS + token) * 4 + (j ^ q) : (j * TOKENS + token) * 4 + q] =
        make_uint4(pairs[4 * j], pairs[4 * j + 1], pairs[4 * j + 2], pairs[4 * j + 3]);
  if (q < SCALES) room.sx[u & 1][q][token] = coming.scale;
}

template <int N> using Sums = float[TILES][N][RESULTS];
template <int N> D void settle(Sums<N>& total, const Sums<N>& sum, const float* sx) {
  UNROLL for (int n = 0; n < N; n++)
    UNROLL for (int i = 0; i < RESULTS; i++) {
      const float scale = sx[n * COLUMNS + found_token(i)];
      UNROLL for (int t = 0; t < TILES; t++) total[t][n][i] += sum[t][n][i] * scale;
    }
}
// Weights of two steps of a tile, which share the scale of a group.
typedef u32 Decoded[2][HALVES][2];
D void decode(Decoded& a, const Quarter& of, int t, int j, int group, const Rows& rows) {
  UNROLL for (int h = 0; h < HALVES; h++) {
    const u32 lift = lift_of(of.scales[t][h], group, rows.bias[t][h]);
    UNROLL for (int i = 0; i < 2; i++) {
      step(of.w[t][h], 2 * j + i, a[i][h][0], a[i][h][1], 0);
      UNROLL for (int p = 0; p < 2; p++) a[i][h][p] = lifted(a[i][h][p], lift);
    }
  }
}
D void add_steps(float (&sum)[RESULTS], const Decoded& a, const uint4& b) {
  UNROLL for (int i = 0; i < 2; i++) multiply(sum, a[i], word(b, 2 * i), word(b, 2 * i + 1));
}
// Two of four words of a lane's quarter, whose sums go on. x: where its first token lies.
template <int N> D void add_half(Sums<N>& sum, const Quarter& of, int half, int q, const Rows& rows, const uint4* x) {
  UNROLL for (int j = 2 * half; j < 2 * half + 2; j++) {
    uint4 b[N];
    UNROLL for (int n = 0; n < N; n++) b[n] = x[(j * TOKENS + n * COLUMNS) * 4 + quarter(q)];
    UNROLL for (int t = 0; t < TILES; t++) {
      Decoded a;
      decode(a, of, t, j, quarter(q), rows);
      UNROLL for (int n = 0; n < N; n++) add_steps(sum[t][n], a, b[n]);
    }
  }
}
// Quarters with scales, each summed and settled by itself: all four where lanes share them, else quarter q.
template <int N>
D void add_settled(Sums<N>& total, const Quarter& of, int q, const Rows& rows, const uint4* x, const float (*sx)[TOKENS]) {
  constexpr int TOGETHER = SHARED ? 1 : 4;  // pairs of steps that share a token's scale
  UNROLL for (int first = 0; first < 4; first += TOGETHER) {
    const int group = SHARED ? first : q;
    Decoded a[TOGETHER][TILES];
    UNROLL for (int j = 0; j < TOGETHER; j++)
      UNROLL for (int t = 0; t < TILES; t++) decode(a[j][t], of, t, first + j, group, rows);
    UNROLL for (int n = 0; n < N; n++) {
      float sum[TILES][RESULTS] = {};
      UNROLL for (int j = 0; j < TOGETHER; j++) {
        const uint4 b = x[((first + j) * TOKENS + n * COLUMNS) * 4 + (SHARED ? lane_quarter() ^ first : q)];
        UNROLL for (int t = 0; t < TILES; t++) add_steps(sum[t], a[j][t], b);
      }
      UNROLL for (int i = 0; i < RESULTS; i++)
        UNROLL for (int t = 0; t < TILES; t++) total[t][n][i] += sum[t][i] * sx[group][n * COLUMNS + found_token(i)];
    }
  }
}

// All threads of a block call it. `now`: what was asked for first of the rows. x, sx: of this thread's quarter of its token. In the
// end nobody uses room.x any more.
template <int N>
D void product(Sums<N>& total, Rows& rows, Quarter now, const u8* x, const float* sx, int units, Room& room) {
  const bool stages = N * COLUMNS == TOKENS || threadIdx.x < 4 * N * COLUMNS;
  Coming coming;
  if (stages) ask(coming, x, sx);
  weigh(rows, units, room);
  if (stages) stage(coming, 0, room);
  __syncthreads();
  for (int u = 0; u < units; u++) {
    const int more = u + 1 < units;  // else the last unit is asked for again
    const uint4* first = room.x + (u & 1) * STAGED + brought_token() * 4;
    const float(*scales)[TOKENS] = room.sx[u & 1];
    Sums<N> sum = {};
#pragma unroll 1  // of form 70: four times the code needs more registers
    for (int q = 0; q < QUARTERS; q++) {
      Quarter next;
      if (q + 1 == QUARTERS) {
        advance(rows, more);
        x += more * 128, sx += more * SCALES;
        if (stages) ask(coming, x, sx);
      }
      ask(next, rows, (q + 1) % QUARTERS, units);
      if (SCALES == 1) {
        add_half<N>(sum, now, 0, q, rows, first);
        if (MIDWAY && stages) stage(coming, u + 1, room);
        add_half<N>(sum, now, 1, q, rows, first);
      } else {
        add_settled<N>(total, now, q, rows, first, scales);
      }
      now = next;
    }
    if (SCALES == 1) settle<N>(total, sum, scales[0]);
    if (!MIDWAY && stages) stage(coming, u + 1, room);
    __syncthreads();
  }
}
