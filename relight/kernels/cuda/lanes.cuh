// Who holds what: the operands of one matrix instruction, as the lanes of a warp own them. Knows no format and no op.
//
// STEP_FORM picks the instruction: 70 is m8n8k4 (Volta's), 75 is m16n8k8, 80 is m16n8k16. It is a macro of the project and not
// the compiler's architecture, so that code made for an old device can be run on a new one.
//
// In every form a warp multiplies 16 rows of weights by 8 tokens. A lane brings row lane_row() and row lane_row() + 8, the token
// lane_row(), and of each of them the values of quarter lane_quarter(): both operands may visit K in any order that they share.
#pragma once
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
typedef long long i64;
#define D __device__ __forceinline__
#define UNROLL _Pragma("unroll")

D int lane_id() { return threadIdx.x & 31; }
D int warp_id() { return threadIdx.x >> 5; }

#if STEP_FORM == 70
D int lane_row() { return (lane_id() & 3) | lane_id() >> 4 << 2; }
D int lane_quarter() { return lane_id() >> 2 & 3; }  // the four quad-pairs keep their own sums
constexpr int ACC = 16;                              // float32 results of a lane
D int acc_row(int i) { return (lane_id() & 1) + (i & 2) + (lane_id() >> 4 << 2) + (i >> 3 << 3); }
D int acc_token(int i) { return (i & 4) + (lane_id() & 2) + (i & 1); }
#else
D int lane_row() { return lane_id() >> 2; }
D int lane_quarter() { return lane_id() & 3; }
constexpr int ACC = 4;
D int acc_row(int i) { return (lane_id() >> 2) + (i >> 1 << 3); }
D int acc_token(int i) { return (lane_id() & 3) * 2 + (i & 1); }
#endif

#if STEP_FORM == 70
D void mma_8(float* d, u32 a0, u32 a1, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3,%4,%5,%6,%7},{%8,%9},{%10,%11},{%0,%1,%2,%3,%4,%5,%6,%7};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
}
#elif STEP_FORM == 75
D void mma_8(float* d, u32 a0, u32 a1, u32 b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b));
}
#endif

// Adds four values of K: a0, a2 are those of the lane's row r, a1, a3 those of row r + 8, b0, b1 those of its token.
D void mma(float (&c)[ACC], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if STEP_FORM == 70
  mma_8(c, a0, a2, b0, b1);
  mma_8(c + 8, a1, a3, b0, b1);
#elif STEP_FORM == 75
  mma_8(c, a0, a1, b0);
  mma_8(c, a2, a3, b1);
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32." OPERAND "." OPERAND ".f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

// Ends the part of a kernel that may overlap those before it. Above, only weights may be read, and what is older than the kernel in
// front, if that has no LET_FIRST. With it the next kernel may begin at once, else when all in front of this one has ended. Below,
// everything is there: the kernel in front has waited in its turn.
#ifndef LET_FIRST
#define LET_FIRST 0
#endif
D void wait_for_previous() {
#if PDL && LET_FIRST
  asm volatile("griddepcontrol.launch_dependents; griddepcontrol.wait;" ::: "memory");
#elif PDL
  asm volatile("griddepcontrol.wait; griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
