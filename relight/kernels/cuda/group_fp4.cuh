// Tiles of E2M1 weights times bf16 tokens by warp groups (groups.cuh): the sums of ROWS rows of weights with up to TOKENS tokens.
// Knows no op.
//
// Tokens were rounded to E4M3 and come as values, scales and all, which bf16 holds exactly. So do weights: E2M1 in the place of a
// bf16 is value * 2^-126, which a multiply by 2^(scale - 1) puts right, for scales of up to 2^1. Nothing is left to
// scale, and one sum in float32 goes through all of K, ascending, in the matrix unit: no split, no atomics. A token is a column, and
// columns do not mix; one without a token repeats another's and is dropped. A tile with few tokens leaves columns out (N).
//
// A unit is 128 of K. A lane brings a quarter of a row of weights, which share a scale, as 16 bytes: nibbles i and i + 4 of a word
// become a pair by the same shifts, pair p of word i goes to step 2 i + p / 2 of eight. So tokens lie such that chunk 4 i + p of 16
// bytes has, for each quarter q, values 32 q + 8 i + p and 4 further (`laid`).
//
// A warp has 2 x 16 rows. Each quarter of its unit's products (a tile, four steps) is decoded while the one before is multiplied,
// also where units meet. Both sides come past the registers, two units ahead, in a ring of four: of the unit before the last
// products may still be under way where all threads meet.
#pragma once
#include "decode.cuh"
#include "groups.cuh"

constexpr int ROWS = 256, TOKENS = 128, WARPS = 8, THREADS = 32 * WARPS, TILES = 2, STAGES = 4, AHEAD = 2;
constexpr int X_HALF = TOKENS * GROUP_ROW, W_AT = 2 * X_HALF, SCALES_AT = W_AT + ROWS * 64, STAGE_BYTES = SCALES_AT + ROWS * 4;
static_assert(FORMAT == 4 && UNIT == 128 && X_BYTES == 2 && X_BF16 && STAGE_BYTES % GROUP_BYTES == 0, "E2M1 by bf16");

extern __shared__ uint4 stages[];
D u8* stage_of(int u) { return group_aligned(stages) + u % STAGES * STAGE_BYTES; }

D void copy16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
D void copy4(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}

// Where a thread copies from: of weights chunk threadIdx % 4 of rows threadIdx / 4 + 64 i of the tile, of scales those of row threadIdx,
// of tokens chunk threadIdx % 16 of tokens threadIdx / 16 + 16 i. Rows of the tile: by warp and 16.
D int copied_row(int i) { return (threadIdx.x >> 2) + 64 * i; }
D int copied_token(int i) { return (threadIdx.x >> 4) + 16 * i; }
template <int N> struct Copied {
  const u8 *w, *scales, *x;
  u32 w_step[4], x_at[N / 2];  // bytes
  D void ask(int u, int units) {
    if (u < units) {
      u8* to = stage_of(u);
      UNROLL for (int i = 0; i < 4; i++) copy16(to + W_AT + (threadIdx.x + i * THREADS) * 16, w + w_step[i]);
      copy4(to + SCALES_AT + threadIdx.x * 4, scales);
      u8* tokens = to + (threadIdx.x >> 3 & 1) * X_HALF + group_place(threadIdx.x >> 4, threadIdx.x & 7);
      UNROLL for (int i = 0; i < N / 2; i++) copy16(tokens + i * 16 * GROUP_ROW, x + x_at[i]);
      w += 64, scales += 4, x += 256;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
};

D u32 signed_pair(u32 signs, u32 sizes, u32 up) { return raise_bf16((signs & 0x80008000u) | (sizes & 0x01C001C0u), up); }
// Four pairs of a word: values i and i + 4.
D void pairs_of(u32 w, u32 up, u32 (&p)[4]) {
  p[0] = signed_pair(w << 12, w << 6, up);
  p[1] = signed_pair(w << 8, w << 2, up);
  p[2] = signed_pair(w << 4, w >> 2, up);
  p[3] = signed_pair(w, w >> 6, up);
}

template <int N> using Sums = float[TILES][N][4];

// All threads of a block call it; it ends with all done with the stages.
template <int N> D void product(Sums<N>& total, Copied<N>& from, int units) {
  UNROLL for (int u = 0; u < AHEAD; u++) from.ask(u, units);
  for (int u = 0; u < units; u++) {
    asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
    group_wrote();
    __syncthreads();
    from.ask(u + AHEAD, units);
    u8* stage = stage_of(u);
    const u64 tokens = group_rows(stage);
    UNROLL for (int t = 0; t < TILES; t++) {
      uint4 w[2];
      u32 up[2];
      UNROLL for (int h = 0; h < 2; h++) {
        const int row = (warp_id() * TILES + t) * 16 + lane_row() + 8 * h;
        w[h] = *(const uint4*)(stage + W_AT + row * 64 + lane_quarter() * 16);
        up[h] = (stage[SCALES_AT + row * 4 + lane_quarter()] + 126) * 0x00800080u;
      }
      UNROLL for (int half = 0; half < 2; half++) {
        group_wait_but_last();
        u32 a[4][4];
        UNROLL for (int i = 0; i < 2; i++)
          UNROLL for (int h = 0; h < 2; h++) {
            u32 p[4];
            pairs_of(word(w[h], 2 * half + i), up[h], p);
            UNROLL for (int j = 0; j < 4; j++) a[2 * i + j / 2][h + j % 2 * 2] = p[j];
          }
        group_begin();
        UNROLL for (int i = 0; i < 4; i++) group_multiply_bf16(total[t], a[i], tokens + half * (X_HALF >> 4) + 2 * i, u + half + i > 0);
        group_send();
      }
    }
  }
  UNROLL for (int t = 0; t < TILES; t++) group_wait(total[t]);
  __syncthreads();
}
