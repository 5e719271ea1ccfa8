// Keys of a row of attention: which they are, in blocks of 64 at fixed places of its lists, and how they are stored. Knows no sum.
//
// Macros: HEADS, DIM, PLAIN (dims in front of the bf16 ones of a row), WINDOW_FORMAT, ENTRY_FORMAT (keys.cuh).
#pragma once
#include "keys.cuh"

constexpr int KEYS = 64, TILE = 16, CHUNK = 64;
constexpr int CHUNKS = DIM / CHUNK;
static_assert(DIM % CHUNK == 0 && PLAIN % CHUNK == 0 && CHUNKS <= 8, "a warp has 64 dims of one kind");

constexpr float LEAST = -3.4028234663852886e38f;         // what the best of no keys is
D float none() { return __uint_as_float(0xFF800000u); }  // the score of no key

struct Lists {
  Source window, entries;
  const i64 *window_index, *entry_index;  // [rows, blocks, KEYS]
  int window_blocks, entry_blocks;
};
D Stored key_at(const Lists& l, int row, int block, int key) {
  const int of_entries = block - l.window_blocks;
  if (of_entries < 0) return row_at(l.window, __ldcg(l.window_index + ((i64)row * l.window_blocks + block) * KEYS + key));
  return row_at(l.entries, __ldcg(l.entry_index + ((i64)row * l.entry_blocks + of_entries) * KEYS + key));
}
D int format_at(const Lists& l, int block) { return block < l.window_blocks ? WINDOW_FORMAT : ENTRY_FORMAT; }
D constexpr bool used(int format) {
  return format == WINDOW_FORMAT || format == ENTRY_FORMAT || (format == WIDE && PLAIN < DIM && used(FP8));
}
#define BY_FORMAT(format, call)                                   \
  if constexpr (used(FP8)) if (format == FP8) call(FP8);           \
  if constexpr (used(WIDE)) if (format == WIDE) call(WIDE);        \
  if constexpr (used(FP8_ALL)) if (format == FP8_ALL) call(FP8_ALL); \
  if constexpr (used(FP4_FINE)) if (format == FP4_FINE) call(FP4_FINE)

D bool some_key(const Stored (&places)[KEYS]) {
  return __ballot_sync(~0u, places[lane_id()].scale || places[lane_id() + 32].scale) != 0;
}
D int head_of(int first, int h) { return min(first + h, HEADS - 1); }  // what is no head repeats the last and is dropped
#if STEP_FORM == 80
D u32 rounded_pair(float a, float b) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
  return r;
}
#endif
