// What compressors remember of rows: values, and gates with what hangs on the place in a group.
#include "values.cuh"

// values, gates [.., CHANNELS], ape [RATIO, CHANNELS], positions [..]: rows kept[n] of them, all where that is null, go into rows
// places[n] of the ring: values, then gates + ape. Ring row i is [i / ring, i % ring], `slot_floats` from one slot to the next.
// Grid: n, channels by 256.
extern "C" __global__ void __launch_bounds__(256)
    put_raw(const float* values, const float* gates, const float* ape, const i64* positions, const i64* kept, const i64* places,
            float* rows, i64 slot_floats, int ring) {
  const int at = blockIdx.y * 256 + threadIdx.x;
  wait_for_previous();
  if (at >= CHANNELS) return;
  const i64 place = places[blockIdx.x], row = kept ? kept[blockIdx.x] : blockIdx.x;
  float* to = rows + place / ring * slot_floats + place % ring * (2 * CHANNELS);
  to[at] = values[row * CHANNELS + at];
  to[CHANNELS + at] = add(gates[row * CHANNELS + at], ape[positions[row] % RATIO * CHANNELS + at]);
}
