// Around the products of given rows: which pairs go to which expert, and the sum over a row's slots.
//
// A pair is a token with one of its slots; its number is token * slots + slot.
#include "values.cuh"

constexpr int MOST_EXPERTS = 1024, WARPS = 8;

struct Tile {  // pairs order[first .. first + count) of one expert
  int expert, first, count;
};

D int over_warps(int v, int* room) {  // a sum over all threads
  if (threadIdx.x == 0) *room = 0;
  __syncthreads();
  atomicAdd(room, v);
  __syncthreads();
  return *room;
}

// ids [pairs], each below gridDim.x. order [pairs]: pairs by expert, ascending in each. tiles: those that there are, each with
// tile_pairs of one expert or the rest of them; num_tiles [1]. Block e lists the pairs of expert e; all blocks count all.
extern "C" __global__ void __launch_bounds__(256)
    group(const i64* ids, int* order, Tile* tiles, int* num_tiles, int pairs, int tile_pairs) {
  __shared__ int counts[MOST_EXPERTS], in_warp[WARPS], rooms[3];
  const int mine = blockIdx.x, experts = gridDim.x;
  wait_for_previous();
  for (int e = threadIdx.x; e < experts; e += 256) counts[e] = 0;
  __syncthreads();
  for (int p = threadIdx.x; p < pairs; p += 256) atomicAdd(counts + (int)ids[p], 1);
  __syncthreads();
  int pairs_before = 0, tiles_before = 0, all_tiles = 0;
  for (int e = threadIdx.x; e < experts; e += 256) {
    const int its = (counts[e] + tile_pairs - 1) / tile_pairs;
    all_tiles += its;
    if (e < mine) {
      pairs_before += counts[e];
      tiles_before += its;
    }
  }
  pairs_before = over_warps(pairs_before, rooms);
  tiles_before = over_warps(tiles_before, rooms + 1);
  all_tiles = over_warps(all_tiles, rooms + 2);
  if (mine == 0 && threadIdx.x == 0) *num_tiles = all_tiles;
  const int count = counts[mine];
  for (int t = threadIdx.x; t * tile_pairs < count; t += 256)
    tiles[tiles_before + t] = {mine, pairs_before + t * tile_pairs, min(tile_pairs, count - t * tile_pairs)};
  // A warp has a stretch of pairs: it counts its own, then puts them behind those of the warps before.
  const int stretch = (pairs + 32 * WARPS - 1) / (32 * WARPS) * 32;
  const int begin = min(warp_id() * stretch, pairs), end = min(begin + stretch, pairs);
  int own = 0;
  for (int at = begin; at < end; at += 32)
    own += __popc(__ballot_sync(~0u, at + lane_id() < end && (int)ids[at + lane_id()] == mine));
  if (lane_id() == 0) in_warp[warp_id()] = own;
  __syncthreads();
  int to = pairs_before;
  for (int w = 0; w < warp_id(); w++) to += in_warp[w];
  for (int at = begin; at < end; at += 32) {
    const bool is = at + lane_id() < end && (int)ids[at + lane_id()] == mine;
    const u32 who = __ballot_sync(~0u, is);
    if (is) order[to + __popc(who & ((1u << lane_id()) - 1))] = at + lane_id();
    to += __popc(who);
  }
}

// d [rows, slots, columns], columns even -> y[row, first + column] = ((0 + d[row, 0]) + d[row, 1]) + ..., y [rows, N].
extern "C" __global__ void __launch_bounds__(256) sum_columns(const In* d, float* y, int columns, int slots, int N, int first) {
  const int column = (blockIdx.x * 256 + threadIdx.x) * 2;
  const i64 row = blockIdx.y;
  wait_for_previous();
  if (column >= columns) return;
  float sum[2] = {};
  for (int j = 0; j < slots; j++) {
    float v[2];
    read_pair(d + (row * slots + j) * columns + column, v);
    UNROLL for (int b = 0; b < 2; b++) sum[b] = add(sum[b], v[b]);
  }
  write_pair(y + row * N + first + column, sum);
}
