// A block's tile along K: the sums of TILE_ROWS rows of weights with TILE_TOKENS tokens, for many tokens. Knows no op.
//
// What is summed never depends on the tile, on the number of tokens or on their place. One block walks K in ascending units; a
// unit is summed by the matrix unit from zero and added in float32 with its scale,
//     total = fma(sum, scale of the token * scale of the weights, total).
// No split of K, no atomics: a token's bits depend on the weights and on that token alone. Columns of the matrix unit do not mix,
// so what is not a number stays with its token. Rows and tokens that there are not repeat the last one, and the op drops them.
//
// BLOCK is the block of E4M3 scales, 128 x 128 or 32 x 32 weights. Tokens that meet them are E4M3 with a scale for each BLOCK, or
// bf16 (FOLDED): then the scale of the weights goes into the bf16 multiply that decoding makes anyway, as in walk.cuh, and
// nothing is left to scale. From SM80 on blocks of 32 are folded; before, form 70, whose lanes walk 16 values at a time, scales
// and adds each 32. Decoding without an instruction for it costs seven operations for four values. Where tokens are bf16 only
// weights are decoded, with ten: an A100, which multiplies for 2,048 clocks, decodes for 1,280 of them and not for 2,688.
//
// A unit of both sides lies in shared memory as memory has it, STAGES of them in a ring (COPIES: filled past the registers), and
// is decoded by the warps that read it. With 32 rows x 64 tokens a warp, eight warps read 96 KiB of E4M3 in a unit, 768 clocks of
// a processor's shared memory, and decode as long at the same time; an H200 multiplies for 1,024 clocks at its best, and by these
// instructions for about 1,600. Lanes read 16 contiguous bytes of a row; `place` spreads what is read at once over all banks.
//
// Lanes hold 16 rows x COLUMNS tokens as columns.cuh has them.
//
// WARP_GROUPS: the matrix unit reads shared memory by itself (groups.cuh), 32 bytes of each row at a time. It multiplies E4M3 as it
// is, and bf16; of FOLDED weights a warp decodes its rows for it, two values each from two places. A warp has 16 rows of each 64 of
// its group's, and all tokens. Of FOLDED weights nothing is left to scale: one sum goes through all of K (THROUGH), and four
// products are always under way, also where units meet, so of the unit before the stage may still be read. Each instruction's
// addition is cut off, not rounded, which is far below the bf16 that comes out; what comes out as float32 is added by units.
//
// Macros that decide bits: WARP_GROUPS, FORMAT (8 E4M3, 16 bf16), BLOCK, STEP_FORM and what of decode.cuh the form has. Macros that decide
// speed only: ROW_WARPS, TOKEN_WARPS, TILES (of 16 rows, a warp), TOKEN_TILES (of 8), STAGES, TURN (units between two barriers),
// COPIES, MIN_BLOCKS, PDL.
#pragma once
#include "columns.cuh"
#include "decode.cuh"
#if WARP_GROUPS
#include "groups.cuh"
#endif

constexpr int COLUMN_TILES = 8 * TOKEN_TILES / COLUMNS, JOINT = COLUMN_TILES % 2 ? 1 : 2;
constexpr int WARPS = ROW_WARPS * TOKEN_WARPS, THREADS = 32 * WARPS, WARP_ROWS = 16 * TILES, WARP_TOKENS = 8 * TOKEN_TILES;
constexpr int TILE_ROWS = ROW_WARPS * WARP_ROWS, TILE_TOKENS = TOKEN_WARPS * WARP_TOKENS;

constexpr int W_ROW = UNIT * FORMAT / 8, X_ROW = UNIT * X_BYTES, W_CHUNKS = W_ROW / 16, X_CHUNKS = X_ROW / 16;  // of a unit
constexpr int W_EACH = TILE_ROWS * W_CHUNKS / THREADS, X_EACH = TILE_TOKENS * X_CHUNKS / THREADS;              // a thread's
constexpr int PASS_CHUNKS = STEP_FORM == 70 ? 1 : 4, PASSES = W_CHUNKS / PASS_CHUNKS, STEPS = LOADED / 4;
constexpr bool SCALED = X_BYTES == 1, FOLDED = FORMAT == 8 && X_BYTES == 2, FINE = FORMAT == 8 && BLOCK == 32;
constexpr int SCALES = !SCALED ? 0 : FINE ? 4 : 1, SPAN = SCALED && FINE ? 2 : PASSES;  // of a token; passes that share one
constexpr int X_AT = TILE_ROWS * W_ROW, SCALES_AT = X_AT + TILE_TOKENS * X_ROW;
constexpr bool THROUGH = WARP_GROUPS && FOLDED;
constexpr int AHEAD = THROUGH ? STAGES - 2 : STAGES - TURN;  // units on their way
constexpr int STAGE_ALIGNED = WARP_GROUPS ? 1024 : 16;
constexpr int STAGE_BYTES = (SCALES_AT + 4 * SCALES * TILE_TOKENS + STAGE_ALIGNED - 1) / STAGE_ALIGNED * STAGE_ALIGNED;
static_assert(FORMAT == 8 || FORMAT == 16, "E2M1 has a scale for each 32 values");
static_assert(!FOLDED || X_BF16, "scales go into the decoding of bf16");
static_assert(SCALES < 4 || (STEP_FORM == 70 && !COPIES), "only form 70 walks less than a scale's values at a time");
static_assert(COLUMN_TILES * COLUMNS == WARP_TOKENS, "form 70 has 16 tokens in a tile");
static_assert(W_EACH * THREADS == TILE_ROWS * W_CHUNKS && X_EACH * THREADS == TILE_TOKENS * X_CHUNKS, "threads copy alike");
static_assert(TILE_TOKENS <= THREADS, "a thread copies the scale of one token");
static_assert(128 % TILE_ROWS == 0 || THROUGH, "a tile lies in one block of scales");
static_assert(!FINE || 32 % WARP_ROWS == 0, "a warp's rows lie in one block of scales");
static_assert(!WARP_GROUPS || (COPIES && (TILES == 1 || THROUGH) && TOKEN_WARPS == 1 && ROW_WARPS % 4 == 0), "four warps are a group");
static_assert(STAGES >= 2 * TURN && AHEAD >= TURN, "a turn is read and one is on its way");

extern __shared__ uint4 stages[];  // [STAGES][STAGE_BYTES]
#if WARP_GROUPS
D u8* first_stage() { return group_aligned(stages); }
#else
D u8* first_stage() { return (u8*)stages; }
#endif
D u8* stage_of(int u) { return first_stage() + u % STAGES * STAGE_BYTES; }

// Where a chunk of 16 bytes lies. Eight lanes read at once: of rows 2j and 2j + 1 four chunks each, every second one where a lane
// reads two (words); in form 70 one chunk of rows 0-3 and 8-11. Each time these are eight different 16 bytes of 128.
D int place(int row, int chunk, int chunks, int words) {
#if WARP_GROUPS  // tokens of 256 bytes as two halves, one behind the other
  return chunk / 8 * TILE_TOKENS * GROUP_ROW + group_place(row, chunk & 7);
#endif
  const int a = row & 1, b = row >> 1 & 1, c = row >> 3 & 1;
  return 16 * (row * chunks + (chunk ^ (words == 2 ? a | b << 1 | c << 2 : a << 2 | b << 1 | c)));
}
D int w_place(int row, int chunk) { return place(row, chunk, W_CHUNKS, 1); }
D int x_place(int token, int chunk) { return X_AT + place(token, chunk, X_CHUNKS, X_WORDS); }

D int warp_row() { return warp_id() % ROW_WARPS * WARP_ROWS; }
// Where 16 rows of this warp begin.
D int tile_row(int t) { return WARP_GROUPS ? (warp_id() / 4 * TILES + t) * 64 + warp_id() % 4 * 16 : warp_row() + 16 * t; }
D int warp_token() { return warp_id() / ROW_WARPS * WARP_TOKENS; }
#if STEP_FORM == 70
D int my_chunk(int pass) { return pass; }
#else
D int my_chunk(int pass) { return 4 * pass + lane_quarter(); }
#endif

// Where a tile's rows begin in memory; there may be fewer than it has room for, or more behind it.
struct Tile {
  const u8 *w, *x;  // 16 bytes aligned, as their steps
  const u8* ws;     // E4M3: of the tile's first block of rows; of 32 x 32, 4 bytes aligned
  const float* sx;  // where tokens are E4M3
  int rows, tokens, w_step, x_step, ws_step, sx_step;  // steps from one row to the next: bytes, of sx floats
};
// What a thread copies of each unit: the same chunk of every row that is a multiple of so many away, at most the last.
struct Copied {
  const u8 *w, *x;
  const float* sx;
  u32 w_at, w_last, x_at, x_last;  // bytes from the tile's begin: of the first copy, and of a copy of the last row
  u32 w_step, x_step;              // from a copy to the next
};
D int nth(int i) { return threadIdx.x + i * THREADS; }
static_assert(THREADS % W_CHUNKS == 0 && THREADS % X_CHUNKS == 0, "a thread keeps to a chunk");
D void aim(Copied& from, const Tile& tile) {
  const int w = nth(0) / W_CHUNKS, x = nth(0) / X_CHUNKS, w_chunk = 16 * (nth(0) % W_CHUNKS), x_chunk = 16 * (nth(0) % X_CHUNKS);
  from.w = tile.w;
  from.x = tile.x;
  from.sx = SCALED ? tile.sx + min(nth(0), tile.tokens - 1) * tile.sx_step : nullptr;
  from.w_at = w * tile.w_step + w_chunk;
  from.x_at = x * tile.x_step + x_chunk;
  from.w_last = (min(tile.rows, TILE_ROWS) - 1) * tile.w_step + w_chunk;
  from.x_last = (min(tile.tokens, TILE_TOKENS) - 1) * tile.x_step + x_chunk;
  from.w_step = THREADS / W_CHUNKS * tile.w_step;
  from.x_step = THREADS / X_CHUNKS * tile.x_step;
}
D const u8* w_from(const Copied& from, int i) { return from.w + min(from.w_at + i * from.w_step, from.w_last); }
D const u8* x_from(const Copied& from, int i) { return from.x + min(from.x_at + i * from.x_step, from.x_last); }
D void next_unit(Copied& from) {
  from.w_at += W_ROW;
  from.w_last += W_ROW;
  from.x_at += X_ROW;
  from.x_last += X_ROW;
  if (SCALED) from.sx += SCALES;
}
D int w_to(int i) { return w_place(nth(i) / W_CHUNKS, nth(i) % W_CHUNKS); }
D int x_to(int i) { return x_place(nth(i) / X_CHUNKS, nth(i) % X_CHUNKS); }
D float* scales_at(u8* stage, int token) { return (float*)(stage + SCALES_AT) + token * SCALES; }

#if COPIES
D void copy16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
D void copy4(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
struct Flight {
  D void ask(Copied& from, int u, int units) {
    if (u < units) {
      u8* to = stage_of(u);
      UNROLL for (int i = 0; i < W_EACH; i++) copy16(to + w_to(i), w_from(from, i));
      UNROLL for (int i = 0; i < X_EACH; i++) copy16(to + x_to(i), x_from(from, i));
      if (SCALED && threadIdx.x < TILE_TOKENS) copy4(scales_at(to, threadIdx.x), from.sx);
      next_unit(from);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  D void begin(Copied& from, int units) {
    UNROLL for (int u = 0; u < AHEAD; u++) ask(from, u, units);
  }
  D void enter() {
    asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - TURN) : "memory");
#if WARP_GROUPS
    group_wrote();
#endif
    __syncthreads();
  }
  D void leave(int, int) {}
};
#else
static_assert(STAGES == 2 && TURN == 1, "one that is read and one that is written");
struct Flight {  // a unit in registers
  uint4 w[W_EACH], x[X_EACH];
  float sx[SCALES + 1];  // + 1: there may be none
  D void ask(Copied& from, int u, int units) {
    if (u >= units) return;
    UNROLL for (int i = 0; i < W_EACH; i++) w[i] = load16(w_from(from, i));
    UNROLL for (int i = 0; i < X_EACH; i++) x[i] = load16(x_from(from, i));
    UNROLL for (int i = 0; i < SCALES; i++) sx[i] = from.sx[i];
    next_unit(from);
  }
  D void begin(Copied& from, int units) {
    ask(from, 0, units);
    leave(-1, units);
  }
  D void enter() { __syncthreads(); }
  D void leave(int u, int units) {  // since all are done with unit u - 1, whose stage unit u + 1 takes
    if (u + 1 >= units) return;
    u8* to = stage_of(u + 1);
    UNROLL for (int i = 0; i < W_EACH; i++) *(uint4*)(to + w_to(i)) = w[i];
    UNROLL for (int i = 0; i < X_EACH; i++) *(uint4*)(to + x_to(i)) = x[i];
    UNROLL for (int i = 0; i < SCALES; i++)
      if (threadIdx.x < TILE_TOKENS) scales_at(to, threadIdx.x)[i] = sx[i];
  }
};
#endif

typedef float Totals[TILES][COLUMN_TILES][RESULTS];
// Decoding E4M3 to bf16 pairs values (0,2) (1,3), and tokens lie as (0,1) (2,3): bytes change places in the weights, of which a
// warp has half as many values. `up`: what decoding multiplies by.
D void decode(const uint4& w, int i, u32& p, u32& q, u32 up) {
#if FORMAT == 8 && X_BYTES == 2
  e4m3(__byte_perm(word(w, i), 0, 0x3120), p, q, up);
#else
  step(w, i, p, q, up);
#endif
}
D void tokens_of(const uint4 (&v)[X_WORDS], u32 (&pairs)[LOADED / 2]) {
#if FORMAT == 8 && X_BYTES == 2
  UNROLL for (int i = 0; i < LOADED / 2; i++) pairs[i] = word(v[i / 4], i & 3);
#else
  unpack_x(v, pairs);
#endif
}
D void sum_pass(Totals& sum, const u8* stage, int pass, u32 up) {
  u32 a[TILES][STEPS][HALVES][2];
  UNROLL for (int t = 0; t < TILES; t++)
    UNROLL for (int h = 0; h < HALVES; h++) {
      const uint4 w = *(const uint4*)(stage + w_place(warp_row() + 16 * t + brought_row(h), my_chunk(pass)));
      UNROLL for (int i = 0; i < STEPS; i++) decode(w, i, a[t][i][h][0], a[t][i][h][1], up);
    }
  UNROLL for (int n = 0; n < COLUMN_TILES; n += JOINT) {  // two at once: sums that do not wait for each other
    u32 x[JOINT][LOADED / 2];
    UNROLL for (int j = 0; j < JOINT; j++) {
      const int token = warp_token() + COLUMNS * (n + j) + brought_token();
      uint4 v[X_WORDS];
      UNROLL for (int i = 0; i < X_WORDS; i++) v[i] = *(const uint4*)(stage + x_place(token, my_chunk(pass) * X_WORDS + i));
      tokens_of(v, x[j]);
    }
    UNROLL for (int i = 0; i < STEPS; i++)
      UNROLL for (int j = 0; j < JOINT; j++)
        UNROLL for (int t = 0; t < TILES; t++) multiply(sum[t][n + j], a[t][i], x[j][2 * i], x[j][2 * i + 1]);
  }
}
#if WARP_GROUPS
D u32 at_half(const u8* p) { return *(const u16*)p; }
constexpr int SENT = 4;  // steps that are decoded at once
// Adds a unit, or begins with it. `ws`: scales of the unit for each tile, a byte for each 32 of K if FINE.
D void send_unit(Totals& sum, const u8* stage, const u32 (&ws)[TILES], bool begins) {
  const u64 tokens = group_rows(stage + X_AT);
#if FORMAT == 8 && X_BYTES == 2
  UNROLL for (int t = 0; t < TILES; t++)
    UNROLL for (int first = 0; first < X_ROW / 32; first += SENT) {
      group_wait_but_last();
      u32 a[SENT][4];
      UNROLL for (int i = 0; i < SENT; i++) {
        const u32 up = up_by(FINE ? ws[t] >> (first + i) / 2 * 8 & 255 : ws[t]);
        UNROLL for (int h = 0; h < HALVES; h++) {
          const u8* from = stage + w_place(tile_row(t) + brought_row(h), first + i) + 2 * lane_quarter();
          e4m3(__byte_perm(at_half(from), at_half(from + 8), 0x5140), a[i][h], a[i][2 + h], up);
        }
      }
      group_begin();
      UNROLL for (int i = 0; i < SENT; i++) {
        const int step = first + i;
        group_multiply_bf16(sum[t], a[i], tokens + step / 4 * (TILE_TOKENS * GROUP_ROW >> 4) + step % 4 * 2, !begins || step > 0);
      }
      group_send();
    }
#else
  group_begin();
  UNROLL for (int t = 0; t < TILES; t++) {
    const u64 rows = group_rows(stage + tile_row(t) / 64 * 64 * W_ROW);
    UNROLL for (int step = 0; step < 4; step++) {
#if FORMAT == 16
      group_multiply_bf16(sum[t], rows + 2 * step, tokens + 2 * step, !begins || step > 0);
#else
      group_multiply(sum[t], rows + 2 * step, tokens + 2 * step, !begins || step > 0);
#endif
    }
  }
  group_send();
#endif
}
#endif
D void add(Totals& total, const Totals& sum, u8* stage, int part, float raise) {
  UNROLL for (int n = 0; n < COLUMN_TILES; n++)
    UNROLL for (int i = 0; i < RESULTS; i++) {
      const int token = warp_token() + COLUMNS * n + found_token(i);
      const float f = SCALED ? scales_at(stage, token)[part] * raise : raise;
      UNROLL for (int t = 0; t < TILES; t++) total[t][n][i] = __fmaf_rn(sum[t][n][i], f, total[t][n][i]);
    }
}

#if STEP_FORM == 70
#define PASS_BY_PASS _Pragma("unroll 1")  // eight times the code would not stay in the cache
#else
#define PASS_BY_PASS UNROLL
#endif

#if WARP_GROUPS
// A unit's scales: of each tile of 16 rows a byte, four if FINE.
D void scales_of(u32 (&ws)[TILES], const Tile& tile, int u) {
  UNROLL for (int t = 0; t < TILES; t++) {
    const u8* its = tile.ws + min(tile_row(t), tile.rows - 1) / BLOCK * tile.ws_step;
    ws[t] = FORMAT == 16 ? 0 : FINE ? __ldg((const u32*)its + u) : __ldg(its + u);
  }
}
#endif

// All `units` of K. Ends with all threads done with the stages, so that the op may use their memory.
D void sum_tile(Totals& total, const Tile& tile, int units) {
  Copied from;
  aim(from, tile);
  Flight flight;
  flight.begin(from, units);
#if WARP_GROUPS
  u32 ws[TILES], next[TILES];
  scales_of(ws, tile, 0);
  for (int u = 0; u < units; u++) {
    flight.enter();
    u8* stage = stage_of(u);
    if (THROUGH) flight.ask(from, u + AHEAD, units);  // of the unit before the last one nobody reads any more
    scales_of(next, tile, min(u + 1, units - 1));
#if FORMAT == 16 || X_BYTES == 1
    Totals sum;
    send_unit(sum, stage, ws, true);
    flight.ask(from, u + AHEAD, units);  // while the matrix unit has work
    UNROLL for (int t = 0; t < TILES; t++) group_wait(sum[t]);
    add(total, sum, stage, 0, FORMAT == 8 ? e8m0(ws[0]) : 1.f);
#else
    send_unit(total, stage, ws, u == 0);
#endif
    UNROLL for (int t = 0; t < TILES; t++) ws[t] = next[t];
  }
  if (THROUGH) UNROLL for (int t = 0; t < TILES; t++) group_wait(total[t]);
#else
  const u8* scales = tile.ws + (FINE ? min(warp_row(), tile.rows - 1) / BLOCK * tile.ws_step : 0);
  for (int u = 0; u < units; u++) {
    // Units of this turn are there for all threads, and all are done with the turn before, whose stages the next ones take.
    if (u % TURN == 0) flight.enter();
    u8* stage = stage_of(u);
    const u32 ws = FORMAT == 16 ? 0 : FINE ? __ldg((const u32*)scales + u) : __ldg(scales + u);
    PASS_BY_PASS for (int first = 0; first < PASSES; first += SPAN) {
      Totals sum = {};
      PASS_BY_PASS for (int pass = first; pass < first + SPAN; pass++) {
        sum_pass(sum, stage, pass, !FOLDED ? UP : up_by(FINE ? ws >> 4 * (my_chunk(pass) & 6) & 255 : ws));
        if (pass == 0) flight.ask(from, u + AHEAD, units);  // while the matrix unit has work
      }
      const u32 scale = SCALES == 4 ? ws >> 4 * first & 255 : ws;
      add(total, sum, stage, first / SPAN, RAISE * X_RAISE * (FORMAT == 8 && !FOLDED ? e8m0(scale) : 1.f));
    }
    flight.leave(u, units);
  }
#endif
  __syncthreads();
}

// Calls with each sum of this lane: result(row, token, sum), both in the tile.
template <class Result> D void each(const Totals& total, Result result) {
  UNROLL for (int t = 0; t < TILES; t++)
    UNROLL for (int n = 0; n < COLUMN_TILES; n++)
      UNROLL for (int i = 0; i < RESULTS; i++)
        result(tile_row(t) + found_row(i), warp_token() + COLUMNS * n + found_token(i), total[t][n][i]);
}
