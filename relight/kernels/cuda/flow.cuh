// A warp's walk through several tiles of E2M1 weights, one behind the other. Knows no op. See walk.cuh for what is summed.
//
// Memory should never wait for a warp. So AHEAD units are asked for before anything else, and a unit's registers are asked for
// again as soon as it is summed, past the end of a tile, too: while sums of a tile are added, weights of the next are under way.
//
// Quarters of a unit have their own scales. Form 70 keeps them apart by itself and, since its registers are full, walks tile by
// tile. Else the narrow operand does: its 8 columns are 2 tokens x 4 quarters, with zeros for a lane of another quarter. Tokens
// are the same for all tiles: they are unpacked once and lie in shared memory as the matrix unit takes them. Of more than two tokens
// a unit of weights is decoded once and meets each pair in turn, with sums of its own, as if it were alone; their codes lie there.
#pragma once
#include "walk.cuh"

#if STEP_FORM == 70
typedef u8 Staged;
struct Flow {
  Operands next;
  D void begin(const Operands& o, int) { next = o; }
  template <int> D void stage(const Operands&, Staged&) {}
  template <int> D void sum(const Staged&, Sums* sums) {
    walk(next, false, sums);
    UNROLL for (int m = 0; m < MATRICES; m++) {
      next.w[m] += BLOCK_ROWS * ROW_BYTES;
      next.ws[m] += BLOCK_ROWS * SCALE_ROW;
    }
  }
};
#else
constexpr int GROUPS = UNITS / AHEAD, GROUP_BYTES = AHEAD * UNIT_BYTES, GROUP_SCALES = AHEAD * 4;
static_assert(UNITS % AHEAD == 0, "a unit's registers are the same in each tile");

struct Staged {  // tokens of a warp; the last place: 4 * token + quarter
  union {
    uint4 x[UNITS][LOADED / 8][8];                   // of two tokens
    uint2 codes[UNITS][LOADED / 8][TOKEN_TILES][8];  // of more, half as many bytes
  };
  float sx[UNITS][TOKEN_TILES][8];
};
constexpr int SX = BLOCK == 128 ? 1 : 2;  // scales of tokens among a lane's results of a unit

D uint4 flow16(const void* p) { LOAD16(".nc.L1::no_allocate" L2_FETCH); }  // with the half of its line that is asked for next

#if ROUNDS
D void round_quarter(const u8* from, uint4 (&codes)[X_WORDS], float& sx) {
  float v[LOADED];
  u32 largest = 0;
  UNROLL for (int i = 0; i < LOADED; i += 4) {
    const uint4 four = load16(from + i * 4);
    UNROLL for (int j = 0; j < 4; j++) {
      v[i + j] = __uint_as_float(word(four, j));
      largest = max(largest, size_bits(v[i + j]));
    }
  }
  if (BLOCK == 128) {  // four lanes
    largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
  }
  const u32 e = scale_of(largest, FP8_FLOOR, 1.f / 448);
  const bool sick = e == 255;
  u32 words[LOADED / 4];
  UNROLL for (int i = 0; i < LOADED / 4; i++) {
    const float* q = v + 4 * i;
    words[i] = sick ? 0 : two_e4m3(q[0] * inverse(e), q[1] * inverse(e)) | two_e4m3(q[2] * inverse(e), q[3] * inverse(e)) << 16;
  }
  UNROLL for (int i = 0; i < X_WORDS; i++) codes[i] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
  sx = __uint_as_float(sick ? 0x7FC00000u : e << 23);
}
#endif

struct Flow {
  const u8* w[MATRICES];   // of the group of units that is under way
  const u8* ws[MATRICES];
  int group, left;  // which of its tile that is, and how many are behind it
  uint4 held[AHEAD][TILES][2];
  u32 coming[TILES][2][AHEAD];  // scales
  uint4 x[LOADED / 8];  // zeros but for a lane that has the quarter of its column
  uint2 codes[TOKEN_TILES];

  D void ask(int u) {
    UNROLL for (int t = 0; t < TILES; t++)
      UNROLL for (int h = 0; h < 2; h++) held[u][t][h] = flow16(row_of(w, t, h, ROW_BYTES) + u * UNIT_BYTES);
  }
  D void ask_scales() {
    UNROLL for (int t = 0; t < TILES; t++)
      UNROLL for (int h = 0; h < 2; h++) {
        const u8* from = row_of(ws, t, h, SCALE_ROW);
#if AHEAD % 2 == 0 && K % 256 == 0 && K / SLICES % 256 == 0
        UNROLL for (int u = 0; u < AHEAD; u += 2) {
          const uint2 v = __ldg((const uint2*)(from + u * 4));
          coming[t][h][u] = v.x;
          coming[t][h][u + 1] = v.y;
        }
#else
        UNROLL for (int u = 0; u < AHEAD; u++) coming[t][h][u] = __ldg((const u32*)(from + u * 4));
#endif
      }
  }
  D void go_on() {
    const bool end = ++group == GROUPS;
    UNROLL for (int m = 0; m < MATRICES; m++) {
      w[m] += end ? BLOCK_ROWS * ROW_BYTES - (GROUPS - 1) * GROUP_BYTES : GROUP_BYTES;
      ws[m] += end ? BLOCK_ROWS * SCALE_ROW - (GROUPS - 1) * GROUP_SCALES : GROUP_SCALES;
    }
    if (end) group = 0;
    left--;
  }
  D void begin(const Operands& o, int tiles) {
    UNROLL for (int m = 0; m < MATRICES; m++) {
      w[m] = o.w[m];
      ws[m] = o.ws[m];
    }
    group = 0;
    left = tiles * GROUPS - 1;
    ask_scales();
    UNROLL for (int u = 0; u < AHEAD; u++) ask(u);
    UNROLL for (int j = 0; j < LOADED / 8; j++) x[j] = make_uint4(0, 0, 0, 0);
    UNROLL for (int n = 0; n < TOKEN_TILES; n++) codes[n] = make_uint2(0, 0);
  }
  // Eight lanes a unit, each a token's quarter. With ROUNDS tokens are float32 and get their grid here, as act_quant gives it.
  template <int N> D void stage(const Operands& o, Staged& staged) {
    const int place = lane_id() & 7;
    __syncwarp();
    for (int first = 0; first < UNITS; first += 4) {
      const int u = first + (lane_id() >> 3), known = min(u, UNITS - 1);
      UNROLL for (int n = 0; n < N; n++) {
        uint4 v[X_WORDS];
        float sx;
#if ROUNDS
        round_quarter(o.x[n] + known * UNIT * 4, v, sx);
#else
        UNROLL for (int i = 0; i < X_WORDS; i++) v[i] = load16(o.x[n] + known * UNIT + i * 16);
        sx = o.sx[n][0][known * UNIT_SCALES];
#endif
        u32 pairs[LOADED / 2];
        if (N == 1) unpack_x(v, pairs);
        if (u >= UNITS) continue;
        UNROLL for (int j = 0; j < LOADED / 8; j++)
          if (N == 1) staged.x[u][j][place] = make_uint4(pairs[4 * j], pairs[4 * j + 1], pairs[4 * j + 2], pairs[4 * j + 3]);
          else staged.codes[u][j][n][place] = make_uint2(every_second(v, 2 * j), every_second(v, 2 * j + 1));
        staged.sx[u][n][place] = sx;
      }
    }
    __syncwarp();
  }
  // What meets words j of weights: of N pairs of tokens the n-th, two calls of step().
  template <int N> D void tokens(const Staged& staged, int u, int j, int n, u32 (&found)[4]) {
    const bool mine = (lane_row() & 3) == lane_quarter();
    if (N > 1) {
      if (mine) codes[n] = staged.codes[u][j][n][lane_row()];
      e4m3(codes[n].x, found[0], found[1]);
      e4m3(codes[n].y, found[2], found[3]);
    } else {
      if (mine) x[j] = staged.x[u][j][lane_row()];
      UNROLL for (int i = 0; i < 4; i++) found[i] = word(x[j], i);
    }
  }
  // `scales` are one too large, twice the scale: so a stored 0, 2^-127, is no special case. The binder holds that none is 2^127.
  // Of more than one pair of tokens gate and up are taken at once, as tokens are unpacked for each; tiles of down, which gains
  // nothing by that, one after the other.
  template <int N>
  D void add(float (&total)[TILES][N][ACC], const uint4 (&unit)[TILES][2], const Staged& staged, int u, const u32 (&scales)[TILES][2]) {
    constexpr int JOINT = N > 1 && !PAIRED ? 1 : TILES;
    UNROLL for (int first = 0; first < TILES; first += JOINT) {
      float part[JOINT][N][ACC] = {}, sx[N][SX];
      UNROLL for (int n = 0; n < N; n++)
        UNROLL for (int j = 0; j < SX; j++) sx[n][j] = staged.sx[u][n][acc_token(j)];
      UNROLL for (int j = 0; j < LOADED / 8; j++) {
        u32 with[N][4];
        UNROLL for (int n = 0; n < N; n++) tokens<N>(staged, u, j, n, with[n]);
        UNROLL for (int i = 0; i < 2; i++)
          UNROLL for (int t = 0; t < JOINT; t++) {
            u32 a0, a1, a2, a3;
            step(unit[first + t][0], 2 * j + i, a0, a2, 0);
            step(unit[first + t][1], 2 * j + i, a1, a3, 0);
            UNROLL for (int n = 0; n < N; n++) mma(part[t][n], a0, a1, a2, a3, with[n][2 * i], with[n][2 * i + 1]);
          }
      }
      UNROLL for (int t = 0; t < JOINT; t++)
        UNROLL for (int i = 0; i < ACC; i++) {  // column 2t or 2t + 1: quarter 2 (t & 1) + (i & 1)
          const u32 of_row = scales[first + t][i >> 1] >> (lane_id() & 1) * 16;
          const float twice = __uint_as_float(of_row << (i & 1 ? 15 : 23) & 0x7F800000u);
          UNROLL for (int n = 0; n < N; n++) total[first + t][n][i] += part[t][n][i] * (sx[n][i % SX] * (RAISE * X_RAISE / 2) * twice);
        }
    }
  }
  // Leaves each warp's sums of a tile with N pairs of tokens in sums[warp].
  template <int N> D void sum(const Staged& staged, Sums* sums) {
    float total[TILES][N][ACC] = {};
#pragma unroll 1
    for (int g = 0; g < GROUPS; g++) {
      u32 scales[AHEAD][TILES][2];
      UNROLL for (int t = 0; t < TILES; t++)
        UNROLL for (int h = 0; h < 2; h++)
          UNROLL for (int u = 0; u < AHEAD; u++) scales[u][t][h] = coming[t][h][u] + 0x01010101u;
      const bool more = left > 0;
      if (more) {
        go_on();
        ask_scales();
      }
      UNROLL for (int u = 0; u < AHEAD; u++) {
        add(total, held[u], staged, g * AHEAD + u, scales[u]);
        if (more) ask(u);
      }
    }
    UNROLL for (int t = 0; t < TILES; t++)
      UNROLL for (int n = 0; n < N; n++)
        UNROLL for (int i = 0; i < ACC; i += 2) {
          float v = total[t][n][i] + total[t][n][i + 1];
          v += __shfl_xor_sync(~0u, v, 1);
          if (!(lane_id() & 1)) sums[warp_id()][t * 16 + acc_row(i)][token_of(n, i)] = v;
        }
    __syncthreads();
  }
};
#endif
