// Blocks of a cluster, from SM90 on: each may write into the shared memory of the others. Knows no op.
//
// Who writes tells the barrier of who reads, so nobody waits for more than what it was told; or all meet when all have given.
#pragma once
typedef unsigned long long u64;

D u32 in_shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// First of all: the others will tell this block `bytes` in all. Nobody may be told anything before all are there.
D void greet_peers(u64* told, int bytes) {
  if (threadIdx.x == 0)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster; "
                 "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(in_shared(told)), "r"(bytes) : "memory");
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
D void meet_peers() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Two values into the shared memory of one of the blocks, at the place that they have in this one's.
D void tell_peer(float* place, u64* told, int peer, float a, float b) {
  asm volatile("{ .reg .u32 to, at; mapa.shared::cluster.u32 to, %0, %2; mapa.shared::cluster.u32 at, %1, %2; "
               "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%3, %4}, [at]; }" ::
                   "r"(in_shared(place)), "r"(in_shared(told)), "r"(peer), "f"(a), "f"(b) : "memory");
}
// Till all is there that this block is told.
D void hear_peers(u64* told) {
  asm volatile("{ .reg .pred all; AGAIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 all, [%0], 0; @!all bra AGAIN; }" ::
                   "r"(in_shared(told)) : "memory");
}

// Without that barrier: first of all; then, once all are there, a value to where a block has it in place of this one; and the end.
D void begin_peers() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
D void give_peer(float* place, int peer, float v) {
  asm volatile("{ .reg .u32 at; mapa.shared::cluster.u32 at, %0, %1; st.shared::cluster.f32 [at], %2; }" ::
                   "r"(in_shared(place)), "r"(peer), "f"(v) : "memory");
}
D void all_have_given() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  meet_peers();
}
