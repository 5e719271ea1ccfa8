// Products of a warp group, 128 threads, whose operands the matrix unit reads by itself: weights [64, 32] times tokens [8 C, 32] of
// E4M3, or [64, 16] times [8 C, 16] of bf16 (_bf16), so 32 bytes of each row, added to sums that lanes hold as they hold those of four matrix instructions of a warp (lanes.cuh): warp w has rows 16 w to
// 16 w + 15. SM90 only. Knows no op.
//
// Shared memory: rows of 128 bytes, one behind the other from a multiple of 1024 on, chunk c of 16 bytes of row r at c ^ (r & 7); PTX
// ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout", 128 bytes. What an instruction sums of E4M3 it sums with some 14 bits:
// an error of about 2^-12 of the norm of a unit.
#pragma once
#include "lanes.cuh"
typedef unsigned long long u64;

constexpr int GROUP_BYTES = 1024, GROUP_ROW = 128;  // to which rows are aligned, and of a row
D int group_place(int row, int chunk) { return row * GROUP_ROW + (chunk ^ (row & 7)) * 16; }
// The first multiple of GROUP_BYTES from p on.
D unsigned char* group_aligned(void* p) {
  return (unsigned char*)p + (-(u32)__cvta_generic_to_shared(p) & (GROUP_BYTES - 1));
}
// Rows from p on. 32 bytes further along K are 2 more. Fields: begin, [ignored], from 8 rows to the next, kind of layout.
D u64 group_rows(const void* p) {
  return ((u32)__cvta_generic_to_shared(p) >> 4 & 0x3FFF) | 1ull << 16 | (u64)(GROUP_BYTES >> 4) << 32 | 1ull << 62;
}

// The same turned about: 16 rows are K, each with 64 of the other side in 128 bytes; the next 64 are so many bytes away.
D u64 group_columns(const void* p, int apart) { return group_rows(p) & ~(0x3FFFull << 16) | (u64)(apart >> 4) << 16; }

// What threads of a block wrote is there for the matrix unit; before they meet.
D void group_wrote() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
D void group_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// All that was sent before the last has ended.
D void group_wait_but_last() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
D void group_send() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

#define SUMS1(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define SUMS2(n) SUMS1(n), SUMS1(n + 1)
#define SUMS4(n) SUMS2(n), SUMS2(n + 2)
#define SUMS8(n) SUMS4(n), SUMS4(n + 4)
#define SUMS12(n) SUMS8(n), SUMS4(n + 8)
#define SUMS16(n) SUMS8(n), SUMS8(n + 8)
#define SUMS32(n) SUMS16(n), SUMS16(n + 16)
#define NAMES2 "%0,%1,%2,%3,%4,%5,%6,%7"
#define NAMES4 NAMES2 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES8 NAMES4 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES12 NAMES8 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define NAMES16 NAMES12 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES32                                                                                                      \
  NAMES16 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89," \
          "%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112," \
          "%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// group_multiply adds (`more` 0: sums are new) weights from shared memory, or of this lane: rows lane_row() and + 8 of its warp's 16,
// bytes 4 lane_quarter() to + 3, then both rows 16 bytes further. group_wait: sums are there after it.
#define OF_WIDTH(C, N, AT0, AT1, AT2, AT3, AT4, AT5)                                                                    \
  D void group_multiply(float (&d)[C][4], u64 a, u64 b, u32 more) {                                                     \
    asm volatile("{ .reg .pred p; setp.ne.u32 p, " AT2 ", 0; wgmma.mma_async.sync.aligned.m64n" N                       \
                 "k32.f32.e4m3.e4m3 {" NAMES##C "}, " AT0 ", " AT1 ", p, 1, 1; }"                                       \
                 : SUMS##C(0) : "l"(a), "l"(b), "r"(more));                                                             \
  }                                                                                                                     \
  D void group_multiply_bf16(float (&d)[C][4], u64 a, u64 b, u32 more) {                                                \
    asm volatile("{ .reg .pred q; setp.ne.u32 q, " AT2 ", 0; wgmma.mma_async.sync.aligned.m64n" N                       \
                 "k16.f32.bf16.bf16 {" NAMES##C "}, " AT0 ", " AT1 ", q, 1, 1, 0, 0; }"                                 \
                 : SUMS##C(0) : "l"(a), "l"(b), "r"(more));                                                             \
  }                                                                                                                     \
  D void group_multiply_bf16(float (&d)[C][4], const u32 (&a)[4], u64 b, u32 more) {                                    \
    asm volatile("{ .reg .pred q; setp.ne.u32 q, " AT5 ", 0; wgmma.mma_async.sync.aligned.m64n" N                       \
                 "k16.f32.bf16.bf16 {" NAMES##C "}, {" AT0 "," AT1 "," AT2 "," AT3 "}, " AT4 ", q, 1, 1, 0; }"          \
                 : SUMS##C(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));                         \
  }                                                                                                                     \
  D void group_multiply_columns(float (&d)[C][4], u64 a, u64 b, u32 more) {                                             \
    asm volatile("{ .reg .pred r; setp.ne.u32 r, " AT2 ", 0; wgmma.mma_async.sync.aligned.m64n" N                       \
                 "k16.f32.bf16.bf16 {" NAMES##C "}, " AT0 ", " AT1 ", r, 1, 1, 0, 1; }"                                 \
                 : SUMS##C(0) : "l"(a), "l"(b), "r"(more));                                                             \
  }                                                                                                                     \
  D void group_wait(float (&d)[C][4]) { asm volatile("wgmma.wait_group.sync.aligned 0;" : SUMS##C(0)::"memory"); }
OF_WIDTH(2, "16", "%8", "%9", "%10", "%11", "%12", "%13")
OF_WIDTH(4, "32", "%16", "%17", "%18", "%19", "%20", "%21")
OF_WIDTH(8, "64", "%32", "%33", "%34", "%35", "%36", "%37")
OF_WIDTH(12, "96", "%48", "%49", "%50", "%51", "%52", "%53")
OF_WIDTH(16, "128", "%64", "%65", "%66", "%67", "%68", "%69")
OF_WIDTH(32, "256", "%128", "%129", "%130", "%131", "%132", "%133")
