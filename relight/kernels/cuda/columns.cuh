// Which of 16 rows of weights and COLUMNS tokens a lane brings and finds where tiles of given rows are multiplied. Knows no format.
//
// Form 70 differs from lanes.cuh: its quad-pairs are four tiles of 8 x 8 that all walk the same K, where those of a step are four
// quarters of K, which would take four times the sums.
#pragma once
#include "lanes.cuh"

#if STEP_FORM == 70
constexpr int COLUMNS = 16, RESULTS = 8, HALVES = 1;  // tokens, sums of a lane, and rows that it brings
D int pair_row() { return 8 * (lane_quarter() & 1); }
D int pair_token() { return 8 * (lane_quarter() >> 1); }
D int brought_row(int) { return lane_row() + pair_row(); }
D int brought_token() { return lane_row() + pair_token(); }
D int found_row(int i) { return acc_row(i) + pair_row(); }
D int found_token(int i) { return acc_token(i) + pair_token(); }
D void multiply(float (&sum)[RESULTS], const u32 (&a)[HALVES][2], u32 b0, u32 b1) { mma_8(sum, a[0][0], a[0][1], b0, b1); }
#else
constexpr int COLUMNS = 8, RESULTS = 4, HALVES = 2;
D int brought_row(int half) { return lane_row() + 8 * half; }
D int brought_token() { return lane_row(); }
D int found_row(int i) { return acc_row(i); }
D int found_token(int i) { return acc_token(i); }
D void multiply(float (&sum)[RESULTS], const u32 (&a)[HALVES][2], u32 b0, u32 b1) {
  mma(sum, a[0][0], a[1][0], a[0][1], a[1][1], b0, b1);
}
#endif
