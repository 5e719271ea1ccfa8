// n-grams: which rows of a table they are, the values of those rows, and how much of them each stream takes.
//
// The macros of `row.cuh`; WIDTH is that of a stream.
#include "row.cuh"

// classes [n, N], factors [N], primes [N - 1, heads] -> rows [n, (N - 1) * heads]. Grid: n.
extern "C" __global__ void __launch_bounds__(32)
    table_rows(const i64* classes, const i64* factors, const i64* primes, i64* rows, int N, int heads) {
  const int columns = (N - 1) * heads;
  wait_for_previous();
  classes += (i64)blockIdx.x * N;
  for (int column = threadIdx.x; column < columns; column += 32) {
    i64 mixed = classes[0] * factors[0], before = 0;
    for (int i = 1; i <= column / heads + 1; i++) mixed ^= classes[i] * factors[i];
    for (int i = 0; i < column; i++) before += primes[i];
    rows[(i64)blockIdx.x * columns + column] = mixed % primes[column] + before;
  }
}

// table [R, width] E4M3 with scale [R, width / 32] UE8M0, rows [n, columns] -> y [n, columns * width]. Four values a thread. Grid:
// n, values by 1024. A table that was mapped may begin at any byte.
D float from_e4m3(u32 b) {
  const bool sick = (b & 0x7F) == 0x7F;
  return sick ? __uint_as_float(0x7FC00000u) : __uint_as_float((b & 0x80) << 24 | (b & 0x7F) << 20) * 0x1p120f;
}
extern "C" __global__ void __launch_bounds__(256)
    gather(const u8* table, const u8* scale, const i64* rows, Out* y, int columns, int width) {
  const int at = (blockIdx.y * 256 + threadIdx.x) * 4, column = at / width, within = at % width;
  wait_for_previous();
  if (column >= columns) return;
  const i64 row = rows[(i64)blockIdx.x * columns + column];
  const u8* from = table + row * width + within;
  const u32 e = scale[row * (width / 32) + within / 32];
  const float up = __uint_as_float(e == 255 ? 0x7FC00000u : e ? e << 23 : 0x400000u);
  Out* to = y + (i64)blockIdx.x * columns * width + at;
  UNROLL for (int i = 0; i < 4; i += 2) {
    const float both[2] = {mul(from_e4m3(from[i]), up), mul(from_e4m3(from[i + 1]), up)};
    write_pair(to + i, both);
  }
}

// streams [n, hc, WIDTH], mapped [n, hc + 1, WIDTH], keys and then a value, gain [hc, WIDTH] -> y [n, hc, WIDTH], the streams and of
// the value what agrees. Grid: n, hc.
extern "C" __global__ void __launch_bounds__(THREADS)
    gate(const In* streams, const In* mapped, const float* gain, float eps, float scale, Out* y) {
  __shared__ Room dots, squares, keys;
  const int stream = blockIdx.y, hc = gridDim.y;
  const i64 row = blockIdx.x, own = (row * hc + stream) * WIDTH;
  Pairs x, key, both, value;
  read_row(gain + (i64)stream * WIDTH, both);
  wait_for_previous();
  read_row(streams + own, x);
  read_row(mapped + (row * (hc + 1) + stream) * WIDTH, key);
  read_row(mapped + (row * (hc + 1) + hc) * WIDTH, value);
  UNROLL for (int j = 0; j < PAIRS; j++)
    UNROLL for (int b = 0; b < 2; b++) both[j][b] = mul(mul(x[j][b], both[j][b]), key[j][b]);
  give(both, dots);
  give_squares(x, squares);
  give_squares(key, keys);
  __syncthreads();
  float dot = take(dots);
  dot = mul(dot, rsqrtf(add(mean_of(take(squares)), eps)));
  dot = mul(mul(dot, rsqrtf(add(mean_of(take(keys)), eps))), scale);
  const float size = fabsf(dot), least = size < 1e-6f ? 1e-6f : size;  // keeps NaN
  const float part = sigmoid(copysignf(sqrtf(least), dot));
  UNROLL for (int j = 0; j < PAIRS; j++)
    UNROLL for (int b = 0; b < 2; b++) x[j][b] = add(x[j][b], mul(part, value[j][b]));
  write_row(y + own, x);
}
