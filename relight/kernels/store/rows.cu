// Copies packed rows of the cache from one place to another.
#include "keys.cuh"

// Rows from[n] of a source -> rows to[n] of a target, data_words words of four bytes and scale_bytes bytes each. A warp has a row.
extern "C" __global__ void __launch_bounds__(128)
    copy_rows(const i64* from, const i64* to, int n, int data_words, int scale_bytes, SOURCE(row), u8* data, u8* scale,
              i64 data_outer, i64 scale_outer, int inner, int data_inner, int scale_inner) {
  const int i = blockIdx.x * 4 + warp_id();
  wait_for_previous();
  if (i >= n) return;
  const Stored own = row_at(GIVEN(row), from[i]);
  const i64 at = to[i], outer = at / inner, within = at % inner;
  u32* into = (u32*)(data + outer * data_outer + within * data_inner);
  for (int w = lane_id(); w < data_words; w += 32) into[w] = ((const u32*)own.data)[w];
  scale += outer * scale_outer + within * scale_inner;
  for (int b = lane_id(); b < scale_bytes; b += 32) scale[b] = own.scale[b];
}
