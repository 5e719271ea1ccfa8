// The k best scores of each row; see index/__init__.py for what they are, and rows.cu for whose they are.
//
// One block a row. The k-th best score is found digit by digit from the top, by counting; counts do not depend on who counts first.
// Then all above it are listed, and of its equals the first ones, in ascending order. A second block a row does the same of blocks of
// `size` entries, each worth its best one. A row that sees k at most gets all of them, whatever their scores.
#include "choice.cuh"

constexpr int TOP_WARPS = 32, TOP_THREADS = 32 * TOP_WARPS, BINS = 2048, COPIES = 4, OWN = BINS / TOP_THREADS;
constexpr int HELD = 8;  // values that a lane keeps of its own, where there are no more

// Unsigned numbers in the order of floats; both zeros are one.
D u32 ordered(float v) {
  const u32 b = __float_as_uint(v + 0.f);
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}
constexpr u32 NONE = 0x007FFFFFu;  // of -infinity, which is no score

// What the threads in front of this one own together.
D int in_front(int own, int (&room)[TOP_WARPS]) {
  int v = own;
  for (int step = 1; step < 32; step *= 2) {
    const int before = __shfl_sync(~0u, v, lane_id() - step);
    if (lane_id() >= step) v += before;
  }
  if (lane_id() == 31) room[warp_id()] = v;
  __syncthreads();
  int before = lane_id() < warp_id() ? room[lane_id()] : 0;
  for (int apart = 16; apart; apart >>= 1) before += __shfl_xor_sync(~0u, before, apart);
  __syncthreads();
  return before + v - own;
}

struct Room {
  int counts[BINS * COPIES];  // of a digit's values; copies, since many scores share a digit
  int of_warps[TOP_WARPS], rooms[2][TOP_WARPS], found[3];
};

// use(i, values(i)) for a warp's stretch, by whole warps; what is not there is 0.
template <int N, int AT_ONCE, class Values, class Use>
D void each(const u32 (&held)[N ? N : 1], Values values, int from, int to, Use use) {
  if constexpr (N) {
    UNROLL for (int j = 0; j < N; j++)
      if (from + 32 * j < to) use(from + 32 * j + lane_id(), held[j]);
  } else {
    _Pragma("unroll AT_ONCE") for (int i = from + lane_id(); i - lane_id() < to; i += 32) use(i, i < to ? values(i) : 0);
  }
}
// The k best of values(0) to values(count - 1), of those above NONE: write(place, number) in ascending order. Each warp has a stretch
// of them; with N, lanes keep theirs, N at most, else they ask for AT_ONCE.
template <int N, int AT_ONCE, class Values, class Write> D void choose(Values values, int count, int k, Room& room, Write write) {
  const int stretch = (count + TOP_THREADS - 1) / TOP_THREADS * 32, from = warp_id() * stretch, to = min(from + stretch, count);
  u32 held[N ? N : 1];
  if constexpr (N) UNROLL for (int j = 0; j < N; j++) {
      const int i = from + 32 * j + lane_id();
      held[j] = i < to ? values(i) : 0;
    }
  u32 least = NONE;  // the digits of the k-th best so far
  int wanted = 0;    // of those that have them
  if (count > k) {
    least = 0, wanted = k;
    _Pragma("unroll 1") for (int digit = 0; digit < 3; digit++) {
      const int shift = digit == 0 ? 21 : digit == 1 ? 10 : 0, bins = digit == 2 ? 1024 : 2048;
      for (int i = threadIdx.x; i < BINS * COPIES; i += TOP_THREADS) room.counts[i] = 0;
      __syncthreads();
      each<N, AT_ONCE>(held, values, from, to, [&](int i, u32 v) {
        const int own = (v >> shift & bins - 1) * COPIES + (lane_id() & COPIES - 1);
        if (i < to && (digit == 0 || (v ^ least) >> shift < bins)) atomicAdd(&room.counts[own], 1);
      });
      __syncthreads();
      // Threads own bins from the top one down.
      int own[OWN], all = 0;
      UNROLL for (int j = 0; j < OWN; j++) {
        const int bin = BINS - 1 - (threadIdx.x * OWN + j);
        own[j] = 0;
        UNROLL for (int c = 0; c < COPIES; c++) own[j] += room.counts[bin * COPIES + c];
        all += own[j];
      }
      int before = in_front(all, room.of_warps);
      UNROLL for (int j = 0; j < OWN; j++) {
        if (before < wanted && wanted <= before + own[j]) {
          room.found[0] = BINS - 1 - (threadIdx.x * OWN + j);
          room.found[1] = wanted - before;
          room.found[2] = own[j];
        }
        before += own[j];
      }
      __syncthreads();
      least |= (u32)room.found[0] << shift;
      wanted = room.found[1];
      if (room.found[2] == wanted) break;  // all of them, whatever their other digits
    }
    if (least <= NONE) least = NONE, wanted = 0;
  }
  // Each warp counts what it will list, and lists it behind what those in front list.
  int above = 0, equal = 0;
  each<N, AT_ONCE>(held, values, from, to, [&](int, u32 v) {
    above += __popc(__ballot_sync(~0u, v > least));
    equal += __popc(__ballot_sync(~0u, v == least));
  });
  if (lane_id() == 0) {
    room.rooms[0][warp_id()] = above;
    room.rooms[1][warp_id()] = equal;
  }
  __syncthreads();
  above = lane_id() < warp_id() ? room.rooms[0][lane_id()] : 0;
  equal = lane_id() < warp_id() ? room.rooms[1][lane_id()] : 0;
  for (int apart = 16; apart; apart >>= 1) {
    above += __shfl_xor_sync(~0u, above, apart);
    equal += __shfl_xor_sync(~0u, equal, apart);
  }
  each<N, AT_ONCE>(held, values, from, to, [&](int i, u32 v) {
    const u32 lower = (1u << lane_id()) - 1, better = __ballot_sync(~0u, v > least), same = __ballot_sync(~0u, v == least);
    const int a = above + __popc(better & lower), e = equal + __popc(same & lower);
    if (v > least || (v == least && e < wanted)) write(a + min(e, wanted), i);
    above += __popc(better);
    equal += __popc(same);
  });
}

// scores [rows, width], visible [rows] -> best [rows, k] entries, ascending, -1 behind, or their places [.., entries], those of a
// row in line sequence[row], where these are not null; of candidates [rows, blocks] where there are any. A second block of the grid -> published [rows, blocks], the same of blocks of entries, of which that of the newest entry is
// worth more than any other.
extern "C" __global__ void __launch_bounds__(TOP_THREADS, 1)
    index_topk(const float* scores, const i64* visible, int entries, int width, int k, const i64* candidates, int blocks, int size,
               const i64* places, const i64* sequence, i64* best, i64* published) {
  __shared__ Room room;
  const int row = blockIdx.x;
  wait_for_previous();
  const Choice from = {candidates ? candidates + (i64)row * blocks : nullptr, blocks, size, (int)min(visible[row], (i64)entries)};
  scores += (i64)row * width;
  if (blockIdx.y == 0) {
    best += (i64)row * k;
    if (places) places += sequence[row] * entries;
    const auto named = [=](int entry) { return places ? places[entry] : entry; };
    const bool all = from.visible <= k;
    for (int i = threadIdx.x; i < k; i += TOP_THREADS) best[i] = all && i < from.visible ? named(i) : -1;
    if (all) return;
    __syncthreads();
    const int count = from.count();
    const auto values = [=](int i) { return ordered(scores[i]); };
    const auto write = [=](int at, int i) { best[at] = named(from.candidates ? from.entry(i) : i); };
    if (count <= HELD * TOP_THREADS)
      choose<HELD, 1>(values, count, k, room, write);
    else
      choose<0, 8>(values, count, k, room, write);
  } else {
    published += (i64)row * blocks;
    const int count = (from.visible + size - 1) / size;
    const bool all = count <= blocks;
    for (int i = threadIdx.x; i < blocks; i += TOP_THREADS) published[i] = all && i < count ? i : -1;
    if (all) return;
    __syncthreads();
    const auto values = [=](int i) {
      u32 most = 0;
      _Pragma("unroll 8") for (int e = i * size; e < min((i + 1) * size, from.visible); e++) most = max(most, ordered(scores[e]));
      return i == count - 1 ? 0xFF800000u : most;
    };
    const auto write = [=](int at, int i) { published[at] = i; };
    if (count <= HELD * TOP_THREADS)
      choose<HELD, 1>(values, count, blocks, room, write);
    else
      choose<0, 1>(values, count, blocks, room, write);
  }
}
