// Turns the last values of vectors where they lie: what attention gives, of which seven eighths stay as they are.
//
// ROPE: values that are turned, a pair a lane. A warp has AT_ONCE vectors of one row, which share angles.
#include "values.cuh"

constexpr int WARPS = 8;
static_assert(ROPE == 64, "a pair a lane");

// x [rows, heads, width], positions [rows], frequencies [ROPE / 2]; against the clock with `sign` 1. Grid: rows by warps.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    turn(In* x, const i64* positions, const float* frequencies, float sign, int rows, int heads, int width) {
  const int shares = (heads + AT_ONCE - 1) / AT_ONCE;  // of a row
  const i64 at = (i64)blockIdx.x * WARPS + warp_id(), row = at / shares;
  const int first = at % shares * AT_ONCE;
  const float frequency = frequencies[lane_id()];
  wait_for_previous();
  if (row >= rows) return;
  In* mine = x + (row * heads + first) * width + width - ROPE + 2 * lane_id();
  float v[AT_ONCE][2];
  UNROLL for (int h = 0; h < AT_ONCE; h++)
    if (first + h < heads) read_pair(mine + (i64)h * width, v[h]);
  const float angle = mul((float)positions[row], frequency), c = cosf(angle), s = mul(sign, sinf(angle));
  UNROLL for (int h = 0; h < AT_ONCE; h++) {
    if (first + h >= heads) break;
    const float even = v[h][0], odd = v[h][1];
    v[h][0] = add(mul(even, c), -mul(odd, s));
    v[h][1] = add(mul(even, s), mul(odd, c));
    write_pair(mine + (i64)h * width, v[h]);
  }
}
