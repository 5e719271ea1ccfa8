// Looks at each access to memory that a kernel makes, as a device's checking tools do: bounds of the arguments, whole words,
// shared memory that nothing was written to, lanes that have not met between two accesses of which one writes, and what the
// kernel in front may still be writing. Knows no kernel.
//
// The compiler calls the functions at the end for every access of instrumented code (-fsanitize=thread); nothing else of that
// option is used. What is HOST is not instrumented.
#define HOST __attribute__((no_sanitize("thread")))
#define __shared__ static __attribute__((section("shared_memory")))
extern "C" __attribute__((visibility("hidden"))) char __start_shared_memory[], __stop_shared_memory[],
    __bss_start[], _end[];
__attribute__((used)) __shared__ char room[16];  // so that there is such a section

#ifdef PEERS
static const int CLUSTER = PEERS;  // blocks that run together
#else
static const int CLUSTER = 1;
#endif
struct Place { int x, y, z; };
static Place emulated_places[4];
#define threadIdx emulated_places[0]
#define blockIdx emulated_places[1]
#define blockDim emulated_places[2]
#define gridDim emulated_places[3]

struct Range {  // an argument's memory, and what of it was written: from `least` on, below `most`
  const char *begin, *end, *least, *most;
};

namespace watch {
static const int NOBODY = -1, SEVERAL = -2, MOST = 1024 * CLUSTER;
struct Access {
  int lane, warp, block;         // `block`: in which, counted since the library was loaded
  int block_meetings, warp_meetings;  // of the lane, before
};
struct Byte {  // of shared memory
  Access written, read;
};
static Byte *bytes, *all_bytes;  // of the block that runs, and of all of its cluster
static char* rooms;              // shared memory of blocks that do not run
static int rank, me;             // of the block that runs in its cluster, and of the lane in all of it
static Range *ranges, *changed;  // `changed`: by the kernel in front, which may be at work till this one has waited for it
static int num_ranges, num_changed, block;
static int block_meetings[MOST], warp_meetings[MOST];
static bool waited[MOST];
static const char *stacks, *stacks_end;
static char message[300];
static jmp_buf ended;

template <class... A> HOST void stop(const char* form, A... values) {
  snprintf(message, sizeof message, form, values...);
  _longjmp(ended, 1);
}
HOST static int now() { return me; }
HOST static Access access_now() {
  const int lane = now();
  return {lane, lane / 32, block, block_meetings[lane], warp_meetings[lane]};
}

HOST static int room_bytes() { return __stop_shared_memory - __start_shared_memory; }
HOST static void enter(int next) {
  if (next != rank) {
    memcpy(rooms + rank * room_bytes(), __start_shared_memory, room_bytes());
    memcpy(__start_shared_memory, rooms + next * room_bytes(), room_bytes());
  }
  rank = next;
  bytes = all_bytes + next * room_bytes();
}
HOST static void begin_block() {
  if (!all_bytes) {
    all_bytes = (Byte*)calloc(CLUSTER * room_bytes(), sizeof(Byte));
    rooms = (char*)malloc(CLUSTER * room_bytes());
  }
  bytes = all_bytes + rank * room_bytes();
  memset(rooms, 0xFF, CLUSTER * room_bytes());
  block++;
  memset(waited, 0, sizeof waited);
  memset(block_meetings, 0, sizeof block_meetings);
  memset(warp_meetings, 0, sizeof warp_meetings);
  memset(__start_shared_memory, 0xFF, room_bytes());  // no number
}

// Whether lanes have met between an access and the one of now; __shfl_sync and its kin order no memory.
HOST static bool apart(const Access& then, const Access& mine) {
  if (then.block != mine.block || then.lane == mine.lane || then.block_meetings != mine.block_meetings) return true;
  return then.warp == mine.warp && then.warp_meetings != mine.warp_meetings;
}

// Of two writes of one value none is a fault: whether it is one is known when it has been written.
static struct {
  int at, size, first, second;
  char before[16];
} doubted;
HOST static void settle() {
  const int size = doubted.size;
  doubted.size = 0;
  if (size && memcmp(__start_shared_memory + doubted.at, doubted.before, size))
    stop("threads %d and %d do not meet between writing byte %d of shared memory", doubted.first, doubted.second, doubted.at);
}
HOST static void doubt(int at, int size, int first, int second) {
  doubted = {at, size < 16 ? size : 16, first, second};
  memcpy(doubted.before, __start_shared_memory + at, doubted.size);
}

HOST static void shared(int at, int size, bool writes) {
  const Access mine = access_now();
  for (int i = at; i < at + size; i++) {
    Byte& b = bytes[i];
    if (!writes && b.written.block != block) stop("thread %d reads byte %d of shared memory, which nobody wrote", mine.lane, i);
    if (!apart(b.written, mine)) {
      if (!writes) stop("thread %d reads byte %d of shared memory, which thread %d writes meanwhile", mine.lane, i, b.written.lane);
      doubt(at, size, b.written.lane, mine.lane);
    }
    if (writes) {
      if (!apart(b.read, mine))
        stop("thread %d writes byte %d of shared memory, which thread %d reads meanwhile", mine.lane, i, b.read.lane);
      b.written = mine;
      continue;
    }
    Access& read = b.read;
    if (read.block == block && read.block_meetings == mine.block_meetings) {  // with others
      if (read.lane != mine.lane) read.lane = SEVERAL;
      if (read.warp != mine.warp) read.warp = SEVERAL;
      read.warp_meetings = mine.warp_meetings;
    } else {
      read = mine;
    }
  }
}

HOST static void argument(Range& r, const char* at, int size, bool writes) {
#if PDL
  if (!waited[now()]) {
    if (writes) stop("thread %d writes before the kernel in front has ended", now());
    for (int i = 0; i < num_changed; i++)
      if (at < changed[i].end && changed[i].begin < at + size) stop("thread %d reads what the kernel in front writes", now());
  }
#endif
  if (!writes) return;
  if (!r.least || at < r.least) r.least = at;
  if (at + size > r.most) r.most = at + size;
}

HOST static void whole(const void* p, int size) {
  if ((uintptr_t)p % size) stop("thread %d touches %d bytes that do not begin at a multiple of so many", now(), size);
}
HOST static void touch(const void* p, int size, bool writes) {
  settle();
  const char* at = (const char*)p;
  if (at >= stacks && at < stacks_end) return;
  if (at >= __start_shared_memory && at < __stop_shared_memory) return shared(at - __start_shared_memory, size, writes);
  for (int i = 0; i < num_ranges; i++)
    if (at >= ranges[i].begin && at + size <= ranges[i].end) return argument(ranges[i], at, size, writes);
  if (at >= __bss_start && at < _end) return;  // threadIdx and its like
  stop("thread %d of block (%d, %d) %s %d bytes outside of all arguments", now(), blockIdx.x, blockIdx.y,
       writes ? "writes" : "reads", size);
}
// Values for a block of the cluster.
HOST static void tell(float* place, int peer, const float* values, int size) {
  const int at = (char*)place - __start_shared_memory;
  if (at < 0 || at >= room_bytes() || peer < 0 || peer >= CLUSTER) stop("thread %d tells block %d what is not shared", now(), peer);
  whole(place, size);
  memcpy(peer == rank ? (char*)place : rooms + peer * room_bytes() + at, values, size);
  for (int i = at; i < at + size; i++) {
    Byte& b = all_bytes[peer * room_bytes() + i];
    if (b.written.block == block || !apart(b.read, access_now())) stop("thread %d tells a block what it was told, or reads meanwhile", now());
    b.written = access_now();
  }
}
// What was there is gone, and what will be is not there yet.
HOST static void forget(void* p, int size) {
  memset(p, 0xFF, size);
  for (int i = 0; i < size; i++) bytes[(char*)p - __start_shared_memory + i].written.block = 0;
}
// Others may do so at the same time.
HOST static void atomic(const void* p, int size) {
  if ((const char*)p < __start_shared_memory || (const char*)p >= __stop_shared_memory) return touch(p, size, true);
  for (int i = 0; i < size; i++)
    if (bytes[(const char*)p - __start_shared_memory + i].written.block != block)
      stop("thread %d adds to shared memory that nobody wrote", now());
}
}  // namespace watch

#define LOOKS_AT(size)                                                                          \
  HOST void __tsan_read##size(void* p) { watch::whole(p, size), watch::touch(p, size, false); } \
  HOST void __tsan_write##size(void* p) { watch::whole(p, size), watch::touch(p, size, true); } \
  HOST void __tsan_unaligned_read##size(void* p) { watch::touch(p, size, false); }              \
  HOST void __tsan_unaligned_write##size(void* p) { watch::touch(p, size, true); }
extern "C" {
LOOKS_AT(1)
LOOKS_AT(2)
LOOKS_AT(4)
LOOKS_AT(8)
LOOKS_AT(16)
HOST void __tsan_read_range(void* p, unsigned long size) { watch::touch(p, size, false); }
HOST void __tsan_write_range(void* p, unsigned long size) { watch::touch(p, size, true); }
HOST void __tsan_init() {}
HOST void __tsan_func_entry(void*) {}
HOST void __tsan_func_exit() {}
}
