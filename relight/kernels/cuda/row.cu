// What attention does with its vectors between products, a block a vector, several in turn where there are many: norm, rotation,
// Hadamard, and then values, values on the FP4 grid, or a row of the cache. Which stages there are is decided by macros.
//
// NORM: 0 none, 1 with a weight, 2 without. ROPE: values that are rotated. HADAMARD. END: 0 values, 1 FP4 grid, 2 a row of format
// "fp8", 3 one of "fp8-all", 4 of "fp4", 5 of "fp4-fine". ROUNDS: values come out rounded, too, as codes and float32 scales, which
// then are `data` and `scale`.
#include "row.cuh"

// x [rows * heads, WIDTH], positions [rows]. y, where values come out: Out, of END 1 float32. Else row places[row] of a store.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    row_op(const In* x, void* y, const float* weight, float eps, const i64* positions, const float* frequencies, int heads,
           const i64* places, u8* data, u8* scale, i64 data_outer, i64 scale_outer, int inner, int data_inner,
           int scale_inner, int vectors) {
  __shared__ Room rooms[2];  // in turn, so that threads need not meet again before the next vector
  Pairs w, next;
  Frequencies f;
  i64 next_position = 0, next_place = 0;
  const auto ask = [&](int at) {  // for all that a vector reads, at once
    if (ROPE) next_position = positions[at / heads];
    if (END > 1) next_place = places[at / heads];
    read_row(x + (i64)at * WIDTH, next);
  };
  if (NORM == 1) read_row(weight, w);
  if (ROPE) read_frequencies(frequencies, f);
  wait_for_previous();
  ask(blockIdx.x);
  for (int at = blockIdx.x, turn = 0; at < vectors; at += gridDim.x, turn ^= 1) {
    Pairs v;
    UNROLL for (int j = 0; j < PAIRS; j++)
      UNROLL for (int b = 0; b < 2; b++) v[j][b] = next[j][b];
    const i64 position = next_position, to = next_place;
    if (at + (int)gridDim.x < vectors) ask(at + (int)gridDim.x);
    Room& room = rooms[turn];
#if NORM == 1
    norm(v, w, eps, room);
#elif NORM == 2
    norm_plain(v, eps, room);
#else
    UNROLL for (int j = 0; j < PAIRS; j++)
      UNROLL for (int b = 0; b < 2; b++) v[j][b] = rounded(v[j][b]);
#endif
#if ROPE
    rotate(v, position, f);
#endif
#if HADAMARD
    hadamard(v);
#endif
#if END == 0
    write_row((Out*)y + (i64)at * WIDTH, v);
#if ROUNDS
    __shared__ Sizes sizes[2];
    tell_sizes(v, sizes[turn]);
    __syncthreads();
    put_rounded(v, sizes[turn], at, data, (float*)scale);
#endif
#elif END == 1
    UNROLL for (int j = 0; j < PAIRS; j++) {
      const u32 e = fp4_scale(v[j]);
      UNROLL for (int b = 0; b < 2; b++) v[j][b] = fp4_value(v[j][b], e);
    }
    write_row((float*)y + (i64)at * WIDTH, v);
#else
    const Store store = {data, scale, data_outer, scale_outer, inner, data_inner, scale_inner};
#if END == 2
    put_fp8(v, data_of(store, to), scale_of_row(store, to));
#elif END == 3
    put_fp8_all(v, data_of(store, to), scale_of_row(store, to));
#elif END == 4
    put_fp4(v, data_of(store, to), scale_of_row(store, to));
#else
    put_fp4_fine(v, data_of(store, to), scale_of_row(store, to));
#endif
#endif
  }
}
