// A warp's walk along K: the sums of 16 * TILES rows of weights with up to TOKENS tokens. Knows no op.
//
// What is summed never depends on the number of tokens. K is cut into SLICES, a constant of the shape; one warp walks one slice
// in ascending units; a unit is summed by the matrix unit from zero and added in float32 with its scale,
//     total += sum * (scale of the weights * scale of the token);
// slices are added in ascending order. No atomics. A token's bits depend on the weights and on that token alone.
//
// BLOCK is the block of E4M3 scales: 128 x 128 or 32 x 32 weights, and as many values of a token. Where it is 32 a unit of E4M3
// weights has four scales. Form 70 sums 64 of K at a time: a quarter has 16 of them, and its sum is scaled as its own. Form 80
// sums 32 at a time (CROSSED): lanes swap halves of what they have read, so that four of them have eight values each of one block.
// Tokens that are not rounded (FOLDED) come as bf16, and the scale of the weights goes into the multiply by a power of two that
// decoding makes anyway: a bf16 holds E4M3 times a power of two exactly, so nothing is left to scale.
//
// Weights are the first operand and stay as the checkpoint has them: a lane reads 16 contiguous bytes of a row, four lanes read
// 64, eight rows are one load of a warp (WHOLE: a warp copies 128 of four rows, and lanes find theirs in shared memory). A lane
// without a token repeats another's, and that column is dropped.
//
// E2M1 has a scale for each 32 values of a row, which is one quarter. The quad-pairs of form 70 keep quarters apart by
// themselves; for other forms flow.cuh walks. Either way 32 values are summed by the matrix unit and scaled once.
//
// ROUNDS, of E4M3 weights: tokens come as bf16 and are rounded here as act_quant (small.cu) would.
//
// Macros that decide bits: FORMAT (8 E4M3, 16 bf16, 4 E2M1), K, SLICES, STEP_FORM and what of decode.cuh the form has. Macros
// that decide speed only: ROW_WARPS (warps of a block along the rows), TILES, TOKEN_TILES, AHEAD (units in flight), RING (they
// fly into shared memory), MIN_BLOCKS, PDL, PEERS (blocks that share the slices of their rows). PAIRED: the second 8 rows of a
// tile are those of a second matrix (gate and up).
#pragma once
#include "decode.cuh"
#if PEERS > 1
#include "peers.cuh"
#endif

#ifndef ROUNDS
#define ROUNDS 0
#endif
constexpr bool APART = FORMAT == 4 && STEP_FORM != 70;  // flow.cuh
constexpr bool FINE = FORMAT == 8 && BLOCK == 32;  // a unit has four scales
constexpr bool FOLDED = FINE && X_BF16, CROSSED = FINE && !FOLDED && STEP_FORM == 80;
constexpr bool OWN_GRID = ROUNDS && FORMAT == 8;
// Lanes pass on scales of tokens, one of a unit each, where few warps of a block have the same tokens.
constexpr bool PASSED = CROSSED && ROW_WARPS <= 2 && !OWN_GRID;
// A warp asks for whole lines of weights. With 16 tokens that pays only where it has 32 rows of bf16.
constexpr bool WHOLE = CROSSED || (RING && (TOKEN_TILES == 1 || (FORMAT == 16 && TILES == 2)));
constexpr int TOKENS = (APART ? 2 : 8) * TOKEN_TILES;  // of one pass
constexpr int SLICE = K / SLICES, UNITS = SLICE / UNIT, UNIT_BYTES = UNIT * FORMAT / 8, CHUNKS = UNIT_BYTES / 64;
constexpr int HERE = SLICES / PEERS;  // slices that a block walks
constexpr int WARPS = HERE * ROW_WARPS, THREADS = 32 * WARPS;
constexpr int MATRICES = PAIRED ? 2 : 1, ROW_BYTES = K / 8 * FORMAT, SCALE_ROW = K / 32;
constexpr int BLOCK_ROWS = ROW_WARPS * 16 * TILES / MATRICES;  // outputs of a block
// Distinct scales of tokens among a lane's results of a unit (for flow.cuh that of the token it stages), and of parts of a piece that
// are scaled one after the other. A piece is what is asked for of tokens at once: a unit, or a chunk of it.
constexpr int X_SCALES = STEP_FORM == 70 ? 4 : APART ? 1 : 2, SPANS = FINE && !FOLDED ? 2 : 1;
constexpr int PIECES = CROSSED ? CHUNKS : 1, PIECE = UNIT / PIECES, PIECE_CHUNKS = CHUNKS / PIECES;
constexpr int UNIT_SCALES = 128 / BLOCK, PIECE_SCALES = UNIT_SCALES / PIECES;  // of a token
static_assert(K % SLICES == 0 && SLICE % UNIT == 0, "a slice is whole units");
static_assert(SLICES % PEERS == 0 && 16 * TILES % PEERS == 0, "blocks of a cluster have as many slices and rows each");
static_assert(AHEAD <= UNITS, "there are as many units as are in flight");
static_assert((FORMAT == 8 ? BLOCK : 128) % (16 * TILES) == 0, "a warp's rows lie in one block of scales");
static_assert(BLOCK == 128 || BLOCK == 32, "scales are for 128 or for 32 values");
static_assert(!FINE || FOLDED || STEP_FORM != 75, "form 75 mixes quarters");
static_assert(!WHOLE || (RING && UNIT_BYTES == 128), "lanes swap through shared memory, where a unit of a row is a line");
static_assert(!OWN_GRID || (STEP_FORM == 80 && X_BYTES == 1), "neighbouring lanes hold what shares a scale");
static_assert(!PAIRED || FORMAT == 4, "only experts have two matrices of one input");

D int my_rank() { return PEERS > 1 ? blockIdx.x % PEERS : 0; }
D int my_slice() { return my_rank() * HERE + warp_id() % HERE; }
D int my_sums() { return PEERS > 1 ? warp_id() / HERE * SLICES + my_slice() : warp_id(); }
D int my_k() { return my_slice() * SLICE; }
D int my_row() { return warp_id() / HERE * 16 * TILES / MATRICES + (WHOLE ? lane_id() >> 3 : lane_row()); }
D int my_bytes() { return 16 * (WHOLE ? lane_id() & 7 : lane_quarter()); }  // of what is asked for of a row at once
D int my_x() { return LOADED * lane_quarter(); }
D int my_token(int n) { return APART ? n * 2 + (lane_row() & 1) : n * 8 + lane_row(); }
D int token_of(int n, int i) { return APART ? n * 2 + (acc_token(i) >> 2) : n * 8 + acc_token(i); }
D int scale_of(int i) { return STEP_FORM == 70 ? (i & 1) | (i & 4) >> 1 : i % X_SCALES; }
D int token_of_scale(int n, int j) { return APART || PASSED ? my_token(n) : token_of(n, STEP_FORM == 70 ? (j & 1) | (j & 2) << 1 : j); }
D int first_scale(int) {  // which of a unit's scales of a token is the first that a lane uses
  if (BLOCK == 128) return 0;
  if (CROSSED && !PASSED) return 0;
  return FORMAT == 8 && !PASSED ? lane_quarter() >> 1 : lane_quarter();
}

struct Operands {  // where this lane's values begin
  const u8* w[MATRICES];
  const u8* ws[MATRICES];  // E4M3: scales of the block of rows; E2M1: of the row
  const u8* x[TOKEN_TILES];
  const float* sx[TOKEN_TILES][X_SCALES];
};
constexpr int CAME_BYTES = OWN_GRID ? 2 : X_BYTES, CAME_WORDS = LOADED * CAME_BYTES / 16;  // of tokens in memory
struct Side {  // what a piece needs beside its weights
  uint4 x[TOKEN_TILES][PIECE_CHUNKS][CAME_WORDS];  // rounded ones are in the first word
  float sx[TOKEN_TILES][X_SCALES][SPANS];
  u32 sw;  // a byte, or two, or four
  float own[TOKEN_TILES];  // PASSED: the scale of token my_token() in quarter lane_quarter() of the unit
};
typedef uint4 Weights[TILES][2][CHUNKS];

// Units in flight: in registers, or past them into shared memory, where a lane reads back only what it asked for, so that no
// barrier is needed; or (WHOLE) a warp asks for whole lines, 128 bytes of four rows at once, and lanes read what others asked for.
// The eight words of a row then lie in an order of its own, by which neither copies nor loads meet in a bank.
#if RING
#if FORMAT == 8 && BLOCK == 128 && TOKEN_TILES > 1
#define L2_HALVES ".L2::128B"  // the other half of a line, asked for right behind, comes into L2 with this one
#else
#define L2_HALVES ""
#endif
extern __shared__ uint4 ring[];  // [AHEAD][TILES][WARPS][2 * CHUNKS][32]
struct Flight {
  D uint4* of_warp(int slot, int t) { return ring + ((slot * TILES + t) * WARPS + warp_id()) * 64 * CHUNKS; }
  D int place(int row, int word) { return row * 8 + (word ^ ((row & 1) * 4 | row & 2)); }
  D uint2 half(const uint4* from, int row, int block) {
    return ((const uint2*)(from + place(row, 2 * block + (lane_quarter() & 1))))[lane_quarter() >> 1];
  }
  D void ask(int slot, int t, int h, int c, const u8* p) {
    const int i = 2 * c + h, mine = WHOLE ? place(4 * i + (lane_id() >> 3), lane_id() & 7) : 32 * i + lane_id();
    const u32 to = (u32)__cvta_generic_to_shared(of_warp(slot, t) + mine);
    asm volatile("cp.async.cg.shared.global" L2_HALVES " [%0], [%1], 16;" ::"r"(to), "l"(p) : "memory");
  }
  D void sent() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  D void take(int slot, Weights& w) {
    asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
    if (WHOLE) __syncwarp();
    UNROLL for (int t = 0; t < TILES; t++)
      UNROLL for (int h = 0; h < 2; h++)
        UNROLL for (int c = 0; c < CHUNKS; c++) {
          const uint4* from = of_warp(slot, t);
          if (CROSSED) {
            const uint2 a = half(from, 8 * h + lane_row(), 2 * c), b = half(from, 8 * h + lane_row(), 2 * c + 1);
            w[t][h][c] = make_uint4(a.x, a.y, b.x, b.y);
          } else if (WHOLE) {
            w[t][h][c] = from[place(8 * h + lane_row(), 4 * c + lane_quarter())];
          } else {
            w[t][h][c] = from[32 * (2 * c + h) + lane_id()];
          }
        }
  }
};
#else
struct Flight {
  Weights held[AHEAD];
  D void ask(int slot, int t, int h, int c, const u8* p) { held[slot][t][h][c] = stream16(p); }
  D void sent() {}
  D void take(int slot, Weights& w) {
    UNROLL for (int t = 0; t < TILES; t++)
      UNROLL for (int h = 0; h < 2; h++)
        UNROLL for (int c = 0; c < CHUNKS; c++) w[t][h][c] = held[slot][t][h][c];
  }
};
#endif

D const u8* row_of(const u8* const (&base)[MATRICES], int t, int h, int bytes) {
  return PAIRED ? base[t] + h * 8 * bytes : base[0] + (t * 16 + h * 8) * bytes;
}
D const u8* asked(const Operands& o, int u, int t, int h, int c) {
  if (WHOLE) return o.w[0] + (t * 16 + (2 * c + h) * 4) * ROW_BYTES + u * UNIT_BYTES;
  return row_of(o.w, t, h, ROW_BYTES) + u * UNIT_BYTES + c * 64;
}
D void ask(Flight& flight, const Operands& o, int u) {
  if (WHOLE) __syncwarp();  // all have read what lay where this unit lands
  if (u < UNITS)
    UNROLL for (int t = 0; t < TILES; t++)
      UNROLL for (int c = 0; c < CHUNKS; c++)
        UNROLL for (int h = 0; h < 2; h++) flight.ask(u % AHEAD, t, h, c, asked(o, u, t, h, c));
  flight.sent();
}
template <int COUNT> D void read_scales(const float* p, float (&v)[COUNT]) {
  if constexpr (CROSSED) read_pair(p, v);
  else UNROLL for (int k = 0; k < COUNT; k++) v[k] = X_BYTES == 1 ? p[2 * k] : 1.f;
}
D void read_side(Side& s, const Operands& o, int p) {
  UNROLL for (int n = 0; n < TOKEN_TILES; n++) {
    UNROLL for (int c = 0; c < PIECE_CHUNKS; c++)
      UNROLL for (int i = 0; i < CAME_WORDS; i++) {
        const u8* from = o.x[n] + (p * PIECE + c * 4 * LOADED) * CAME_BYTES + i * 16;
        s.x[n][c][i] = load16(from);
      }
    if (OWN_GRID) continue;
    if (PASSED) {
      if (p % PIECES == 0) s.own[n] = o.sx[n][0][p / PIECES * UNIT_SCALES];
      continue;
    }
    UNROLL for (int j = 0; j < X_SCALES; j++) read_scales(o.sx[n][j] + p * PIECE_SCALES, s.sx[n][j]);
  }
  if (CROSSED) s.sw = __ldg((const u16*)o.ws[0] + p);
  else if (FINE) s.sw = __ldg((const u32*)o.ws[0] + p);
  else if (FORMAT == 8) s.sw = __ldg(o.ws[0] + p);
}
// OWN_GRID: the four lanes of a token hold a block of 128, two of them one of 32.
D void round_tokens(Side& s) {
  UNROLL for (int n = 0; n < TOKEN_TILES; n++) {
    u32 sizes = 0;
    UNROLL for (int c = 0; c < PIECE_CHUNKS; c++)
      UNROLL for (int i = 0; i < 8; i++) sizes = larger_two(sizes, word(s.x[n][c][i / 4], i & 3) & 0x7FFF7FFFu);
    const u32 e = scale_of(lanes_max(max(sizes << 16, sizes & 0x7FFF0000u), BLOCK == 128 ? 2 : 1), FP8_FLOOR, 1.f / 448);
    const float up = inverse(e), scale = __uint_as_float(e == 255 ? 0x7FC00000u : e << 23);
    UNROLL for (int c = 0; c < PIECE_CHUNKS; c++) {
      u32 codes[4];
      UNROLL for (int i = 0; i < 4; i++) {
        float v[4];
        UNROLL for (int j = 0; j < 2; j++) {
          const u32 two = word(s.x[n][c][i / 2], 2 * (i & 1) + j);
          v[2 * j] = __uint_as_float(two << 16) * up;
          v[2 * j + 1] = __uint_as_float(two & 0xFFFF0000u) * up;
        }
        codes[i] = two_e4m3(v[0], v[1]) | two_e4m3(v[2], v[3]) << 16;
      }
      s.x[n][c][0] = make_uint4(codes[0], codes[1], codes[2], codes[3]);
    }
    UNROLL for (int j = 0; j < X_SCALES; j++)
      UNROLL for (int k = 0; k < SPANS; k++) s.sx[n][j][k] = __shfl_sync(~0u, scale, 4 * acc_token(j) + 2 * k);
  }
}
// CROSSED: lanes q and q ^ 2 have 16 values of one block each, and need eight of both. `own` of the unit's first piece.
D void swap(Side& s, const float (&own)[TOKEN_TILES], int piece) {
  UNROLL for (int n = 0; n < TOKEN_TILES; n++) {
    const bool second = lane_quarter() & 2;
    uint4& v = s.x[n][0][0];
    const u32 a = __shfl_xor_sync(~0u, second ? v.x : v.z, 2), b = __shfl_xor_sync(~0u, second ? v.y : v.w, 2);
    v = second ? make_uint4(a, b, v.z, v.w) : make_uint4(v.x, v.y, a, b);
    if (PASSED)
      UNROLL for (int j = 0; j < X_SCALES; j++)
        UNROLL for (int k = 0; k < SPANS; k++)
          s.sx[n][j][k] = __shfl_sync(~0u, own[n], acc_token(j) * 4 + piece * PIECE_SCALES + k);
  }
}

typedef float Totals[TILES][TOKEN_TILES][ACC];
template <int SPAN> D void add_span(Totals& total, const Weights& w, const Side& s, const u32 (&scales)[TILES][2], int piece) {
  Totals part = {};
  constexpr int COUNT = CROSSED ? 1 : PIECE_CHUNKS / SPANS, STEPS = LOADED / 4 / (CROSSED ? SPANS : 1);
  UNROLL for (int k = 0; k < COUNT; k++) {
    const int own = CROSSED ? 0 : SPAN * COUNT + k, c = piece * PIECE_CHUNKS + own;
    u32 x[TOKEN_TILES][LOADED / 2];
    UNROLL for (int n = 0; n < TOKEN_TILES; n++) unpack_x((const uint4(&)[X_WORDS])s.x[n][own], x[n]);
    const u32 fine = s.sw >> (2 * c + (lane_quarter() >> 1)) * 8 & 255;
    const u32 up = FOLDED ? up_by(fine) : UP;
    UNROLL for (int t = 0; t < TILES; t++)
      UNROLL for (int j = 0; j < STEPS; j++) {
        const int i = CROSSED ? SPAN * STEPS + j : j;
        u32 a0, a1, a2, a3;
        step(w[t][0][c], i, a0, a2, up);
        step(w[t][1][c], i, a1, a3, up);
        UNROLL for (int n = 0; n < TOKEN_TILES; n++) mma(part[t][n], a0, a1, a2, a3, x[n][2 * i], x[n][2 * i + 1]);
      }
  }
  const u32 sw = FINE ? s.sw >> (CROSSED ? SPAN : 2 * SPAN + (lane_quarter() >> 1)) * 8 & 255 : s.sw;
  const float raise = RAISE * X_RAISE * (FORMAT == 8 && !FOLDED ? e8m0(sw) : 1.f);
  UNROLL for (int t = 0; t < TILES; t++) {
#if FORMAT == 4 && STEP_FORM == 70  // scales of the rows of this lane's results, from the lanes that have read them
    float g[2][2];
    UNROLL for (int j = 0; j < 4; j++)
      g[j >> 1][j & 1] =
          e8m0(__shfl_sync(~0u, scales[t][j >> 1] >> lane_quarter() * 8 & 255, (lane_id() & ~2) | (j & 1) << 1));
#endif
    UNROLL for (int n = 0; n < TOKEN_TILES; n++)
      UNROLL for (int i = 0; i < ACC; i++) {
        float f = s.sx[n][scale_of(i)][SPAN] * raise;
#if FORMAT == 4 && STEP_FORM == 70
        f *= g[i >> 3][i >> 1 & 1];
#endif
        total[t][n][i] += part[t][n][i] * f;
      }
  }
}
D void add_piece(Totals& total, const Weights& w, const Side& s, const u32 (&scales)[TILES][2], int piece) {
  add_span<0>(total, w, s, scales, piece);
  if constexpr (SPANS == 2) add_span<1>(total, w, s, scales, piece);
}

// Of a cluster each block has some slices of all rows, and in the end the sums of all slices of some rows: its share.
constexpr int SHARE = 16 * TILES / PEERS;  // of a warp's rows
#if PEERS == 1
D void begin_peers() {}
D void meet_peers() {}
D void give_peer(float* place, int, float v) { *place = v; }
D void all_have_given() { __syncthreads(); }
#endif

typedef float Sums[SHARE][TOKENS + 1];  // + 1: neighbouring rows in other banks
D float over_slices(const Sums* sums, int tile, int row, int token) {
  float s = sums[tile * SLICES][row][token];
  UNROLL for (int k = 1; k < SLICES; k++) s += sums[tile * SLICES + k][row][token];
  return s;
}

// Walks and leaves each warp's sums in sums[my_sums()] of the blocks that have a share of its rows. `early`: weights may be asked
// for before the previous kernel has ended.
D void walk(const Operands& o, bool early, Sums* sums) {
  begin_peers();
  Flight flight;
  Side side[2];
  float own[TOKEN_TILES];
  u32 scales[UNITS][TILES][2] = {};  // E2M1: the four scales of a unit
  if (!PDL || !early) read_side(side[0], o, 0);
#if FORMAT == 4
  UNROLL for (int t = 0; t < TILES; t++)
    UNROLL for (int h = 0; h < 2; h++) {
      const u8* from = row_of(o.ws, t, h, SCALE_ROW);
#if K / SLICES % 256 == 0  // two units at once
      UNROLL for (int u = 0; u < UNITS; u += 2) {
        const uint2 v = __ldg((const uint2*)(from + u * 4));
        scales[u][t][h] = v.x;
        scales[u + 1][t][h] = v.y;
      }
#else
      UNROLL for (int u = 0; u < UNITS; u++) scales[u][t][h] = __ldg((const u32*)(from + u * 4));
#endif
    }
#endif
  if (PASSED) bring(o.ws[0]);
  UNROLL for (int u = 0; u < AHEAD; u++) ask(flight, o, u);
  if (PDL && early) {
    wait_for_previous();
    read_side(side[0], o, 0);
  }
  Totals total = {};
  UNROLL for (int u = 0; u < UNITS; u++) {
    Weights w;
    UNROLL for (int p = u * PIECES; p < (u + 1) * PIECES; p++) {
      if constexpr (OWN_GRID) round_tokens(side[p & 1]);  // in front of the next ones, for which there are no registers yet
      if (p + 1 < UNITS * PIECES) read_side(side[p + 1 & 1], o, p + 1);
      if (p == u * PIECES) flight.take(u % AHEAD, w);
      if (PASSED && p == u * PIECES)
        UNROLL for (int n = 0; n < TOKEN_TILES; n++) own[n] = side[p & 1].own[n];
      if (CROSSED) swap(side[p & 1], own, p % PIECES);
      add_piece(total, w, side[p & 1], scales[u], p % PIECES);
    }
    ask(flight, o, u + AHEAD);
  }
  meet_peers();
  UNROLL for (int t = 0; t < TILES; t++)
    UNROLL for (int n = 0; n < TOKEN_TILES; n++)
      UNROLL for (int i = 0; i < ACC; i++) {
        float v = total[t][n][i];
        bool keeps = true;
#if STEP_FORM == 70  // the four quarters: (0 + 1) + (2 + 3)
        v += __shfl_xor_sync(~0u, v, 4);
        v += __shfl_xor_sync(~0u, v, 8);
        keeps = lane_quarter() == 0;
#endif
        const int row = t * 16 + acc_row(i);
        if (keeps) give_peer(&sums[my_sums()][row % SHARE][token_of(n, i)], row / SHARE, v);
      }
  all_have_given();
}
