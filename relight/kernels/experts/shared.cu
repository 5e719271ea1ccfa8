// Between the shared expert's products: the gate.
#include "round.cuh"

// gate, up [n, width], width even -> y = silu(min(gate, limit)) * clamp(up, +-limit), with ROUNDS rounded, too, where width is a
// multiple of it. Grid: n, columns by 512.
extern "C" __global__ void __launch_bounds__(256)
    gated(const In* gate, const In* up, Out* y, int width, float limit, u8* codes, float* scales) {
  const int column = (blockIdx.y * 256 + threadIdx.x) * 2;
  const i64 at = (i64)blockIdx.x * width + column;
  const bool mine = column < width;
  wait_for_previous();
  float g[2] = {}, u[2] = {}, found[2];
  if (mine) read_pair(gate + at, g);
  if (mine) read_pair(up + at, u);
  UNROLL for (int b = 0; b < 2; b++) {  // a comparison that a NaN fails keeps the NaN, as torch's clamp does
    const float a = g[b] > limit ? limit : g[b], c = u[b] > limit ? limit : u[b] < -limit ? -limit : u[b];
    found[b] = rounded(mul(mul(a, sigmoid(a)), c));
  }
  if (mine) write_pair(y + at, found);
#if ROUNDS
  __shared__ u32 sizes[8];
  tell_size(found, sizes);
  if (ROUNDS > 32) __syncthreads();
  if (mine) put_rounded(found, sizes, at, codes, scales);
#endif
}
