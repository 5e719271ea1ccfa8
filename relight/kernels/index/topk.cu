// The k best scores of each row; see index/__init__.py for what they are, and rows.cu for whose they are.
//
// One block a row. The k-th best score is found digit by digit from the top, by counting; counts do not depend on who counts first.
// Then all above it are listed, and of its equals the first ones, in ascending order. A second block a row does the same of blocks of
// `size` entries, each worth its best one. A row that sees k at most gets all of them, whatever their scores.
//
// THREADS: of a block. What a row has must be shared by few barriers, so a digit is 13 bits, and the first one is of those near the
// best score, where the k-th best of scores mostly is: within a factor of 16, each bin a part in 2,000. Where it is not, all count.
#include "choice.cuh"
#include "values.cuh"

constexpr int TOP_WARPS = THREADS / 32, DIGIT = 13, BINS = 1 << DIGIT, OWN = BINS / THREADS, NEAR = 25;
constexpr int FEW = 2048 / THREADS, HELD = 8;  // values that a lane keeps of its own, where there are no more
static_assert(TOP_WARPS <= 32, "a warp sees all others");

// Unsigned numbers in the order of floats; both zeros are one.
D u32 ordered(float v) {
  const u32 b = __float_as_uint(v + 0.f);
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}
constexpr u32 NONE = 0x007FFFFFu;  // of -infinity, which is no score

D int lanes_sum(int v) {
#if STEP_FORM == 80
  return __reduce_add_sync(~0u, v);
#else
  for (int apart = 16; apart; apart >>= 1) v += __shfl_xor_sync(~0u, v, apart);
  return v;
#endif
}

struct Room {
  alignas(16) int counts[BINS];  // of a digit's values, the largest first
  int of_warps[TOP_WARPS], rooms[2][TOP_WARPS], found[3];
  u32 most[TOP_WARPS];
};
// What warps in front of this one have together.
D int of_those_in_front(const int (&own)[TOP_WARPS]) { return lanes_sum(lane_id() < warp_id() ? own[lane_id()] : 0); }

// use(i, values(i), j) for a warp's stretch, by whole warps; what is not there is 0.
template <int N, int AT_ONCE, class Values, class Use>
D void each(const u32 (&held)[N ? N : 1], Values values, int from, int to, Use use) {
  if constexpr (N) {
    UNROLL for (int j = 0; j < N; j++)
      if (from + 32 * j < to) use(from + 32 * j + lane_id(), held[j], j);
  } else {
    _Pragma("unroll AT_ONCE") for (int i = from + lane_id(); i - lane_id() < to; i += 32) use(i, i < to ? values(i) : 0, 0);
  }
}
// The k best of values(0) to values(count - 1), of those above NONE: best[..] = named(number) in ascending order; how many there are.
// Each warp has a stretch of them; with N, lanes keep theirs, N at most, else they ask for AT_ONCE. Values are there when the kernel
// in front has ended; names are asked for before, if `early`.
template <int N, int AT_ONCE, class Values, class Named>
D int choose(Values values, Named named, bool early, int count, int k, Room& room, i64* best) {
  const int stretch = (count + THREADS - 1) / THREADS * 32, from = warp_id() * stretch, to = min(from + stretch, count);
  u32 held[N ? N : 1];
  int names[N ? N : 1];
  if constexpr (N) {  // in braces: without them NVRTC leaves out the loop behind, too, where N is 0
    UNROLL for (int j = 0; j < N; j++) {
      const int i = from + 32 * j + lane_id();
      names[j] = early && i < to ? named(i) : 0;
    }
  }
  UNROLL for (int j = 0; j < OWN; j += 4) *(uint4*)&room.counts[threadIdx.x * OWN + j] = make_uint4(0, 0, 0, 0);
  wait_for_previous();
  if constexpr (N) {
    UNROLL for (int j = 0; j < N; j++) {
      const int i = from + 32 * j + lane_id();
      held[j] = i < to ? values(i) : 0;
    }
  }
  u32 least = NONE;  // the k-th best, so far: `bits` of it are still 0
  int wanted = 0;    // of those that are as good, so far
  if (k == 0) {
    least = ~0u;
  } else if (count > k) {
    u32 most = 0;
    each<N, AT_ONCE>(held, values, from, to, [&](int, u32 v, int) { most = max(most, v); });
    most = warp_max(most);
    if (lane_id() == 0) room.most[warp_id()] = most;
    __syncthreads();
    most = warp_max(room.most[lane_id() % TOP_WARPS]);
    int bits = NEAR;
    least = most - min(most, ~0u >> 32 - NEAR);
    wanted = k;
    _Pragma("unroll 1") for (int turn = 0; turn < 4; turn++) {  // one of those near, and all three digits, at most
      const int shift = max(bits - DIGIT, 0);
      const u32 reach = ~0u >> 32 - bits;
      each<N, AT_ONCE>(held, values, from, to, [&](int i, u32 v, int) {
        if (i < to && v - least <= reach) atomicAdd(&room.counts[BINS - 1 - (v - least >> shift)], 1);
      });
      __syncthreads();
      uint4* own = (uint4*)&room.counts[threadIdx.x * OWN];
      int all = 0;
      UNROLL for (int j = 0; j < OWN / 4; j++) all += own[j].x + own[j].y + own[j].z + own[j].w;
      int before = all;
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_sync(~0u, before, lane_id() - step);
        if (lane_id() >= step) before += other;
      }
      if (lane_id() == 31) room.of_warps[warp_id()] = before;
      __syncthreads();
      before += of_those_in_front(room.of_warps) - all;
      if (threadIdx.x == THREADS - 1 && before + all < wanted) room.found[2] = 0;
      if (before < wanted && wanted <= before + all)
        _Pragma("unroll 8") for (int j = 0; j < OWN; j++) {
          const int here = room.counts[threadIdx.x * OWN + j];
          if (before < wanted && wanted <= before + here) {
            room.found[0] = BINS - 1 - (threadIdx.x * OWN + j);
            room.found[1] = wanted - before;
            room.found[2] = here;
          }
          before += here;
        }
      UNROLL for (int j = 0; j < OWN / 4; j++) own[j] = make_uint4(0, 0, 0, 0);  // for the next digit
      __syncthreads();
      if (room.found[2] == 0) {  // it is not near the best
        least = 0, bits = 32;
        continue;
      }
      least += (u32)room.found[0] << shift;
      wanted = room.found[1];
      bits = shift;
      if (bits == 0 || room.found[2] == wanted) break;  // all of them, whatever their other digits
    }
    if (least <= NONE) least = NONE, wanted = 0;
  }
  // Each warp counts what it will list, and lists it behind what those in front list.
  int above = 0, equal = 0;
  each<N, AT_ONCE>(held, values, from, to, [&](int, u32 v, int) {
    above += __popc(__ballot_sync(~0u, v > least));
    equal += __popc(__ballot_sync(~0u, v == least));
  });
  if (lane_id() == 0) {
    room.rooms[0][warp_id()] = above;
    room.rooms[1][warp_id()] = equal;
  }
  __syncthreads();
  above = of_those_in_front(room.rooms[0]);
  equal = of_those_in_front(room.rooms[1]);
  each<N, AT_ONCE>(held, values, from, to, [&](int i, u32 v, int j) {
    const u32 lower = (1u << lane_id()) - 1, better = __ballot_sync(~0u, v > least), same = __ballot_sync(~0u, v == least);
    const int a = above + __popc(better & lower), e = equal + __popc(same & lower);
    if (v > least || (v == least && e < wanted)) best[a + min(e, wanted)] = N && early ? names[j] : named(i);
    above += __popc(better);
    equal += __popc(same);
  });
  if (wanted) return k;
  return lanes_sum(lane_id() < TOP_WARPS ? room.rooms[0][lane_id() % TOP_WARPS] : 0);
}

// scores [rows, width], visible [rows] -> best [rows, k] entries, ascending, -1 behind, or their places [.., entries], those of a
// row in line sequence[row], where these are not null; of candidates [rows, blocks] where there are any. A second block of the grid ->
// published [rows, blocks], the same of blocks of entries, of which that of the newest entry is among the best, whatever it is worth.
// All but scores and candidates is older than the kernel in front.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    index_topk(const float* scores, const i64* visible, int entries, int width, int k, const i64* candidates, int blocks, int size,
               const i64* places, const i64* sequence, i64* best, i64* published) {
  __shared__ Room room;
  const int row = blockIdx.x;
  const Choice from = {candidates ? candidates + (i64)row * blocks : nullptr, blocks, size, (int)min(visible[row], (i64)entries)};
  scores += (i64)row * width;
  int listed;
  if (blockIdx.y == 0) {
    best += (i64)row * k;
    if (places) places += sequence[row] * entries;
    const auto values = [=](int i) { return ordered(scores[i]); };
    const auto named = [=](int i) {
      const int entry = from.candidates ? from.entry(i) : i;
      return places ? (int)places[entry] : entry;
    };
    const int count = from.count();
    if (from.visible <= k) {
      wait_for_previous();
      listed = from.visible;
      for (int i = threadIdx.x; i < listed; i += THREADS) best[i] = places ? places[i] : i;
    } else if (count <= FEW * THREADS) {
      listed = choose<FEW, 1>(values, named, !candidates, count, k, room, best);
    } else if (count <= HELD * THREADS) {
      listed = choose<HELD, 1>(values, named, false, count, k, room, best);
    } else {
      listed = choose<0, 16>(values, named, false, count, k, room, best);
    }
    for (int i = listed + threadIdx.x; i < k; i += THREADS) best[i] = -1;
  } else {
    published += (i64)row * blocks;
    const int count = (from.visible + size - 1) / size, others = blocks - 1;
    const auto values = [=](int i) {
      u32 most = 0;
      _Pragma("unroll 8") for (int e = i * size; e < (i + 1) * size; e++) most = max(most, ordered(scores[e]));
      return most;
    };
    const auto named = [](int i) { return i; };
    if (count <= blocks) {
      wait_for_previous();
      listed = count;
      for (int i = threadIdx.x; i < listed; i += THREADS) published[i] = i;
    } else {
      if (count <= HELD * THREADS)
        listed = choose<HELD, 1>(values, named, false, count - 1, others, room, published);
      else
        listed = choose<0, 1>(values, named, false, count - 1, others, room, published);
      if (threadIdx.x == 0) published[listed] = count - 1;
      listed++;
    }
    for (int i = listed + threadIdx.x; i < blocks; i += THREADS) published[i] = -1;
  }
}
