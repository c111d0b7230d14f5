// Barriers between parts of a block or cluster, and registers that move between warpgroups (sm_90a).
//
// Needs prelude.h and cuda_device.h in front; includes nothing. mbarriers of one block stand in cuda_device.h.
#ifndef FW_KERNELS_DEVICE_BARRIER_H
#define FW_KERNELS_DEVICE_BARRIER_H

#if FW_SM90
namespace fw {

constexpr u32 warpgroup_threads = 128;
FW_FN u32 warpgroup_index() { return threadIdx.x / warpgroup_threads; }

// ---------------------------------------------------------------- one lane of a warp

// Returns true in one lane of the warp. All lanes call it.
FW_FN bool elect(FW_CALLER) {
#ifdef FW_EMULATOR
  return fwemu::elect(line);
#else
  u32 chosen;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(chosen)::"memory");
  return chosen != 0;
#endif
}

// ---------------------------------------------------------------- named barriers

// Barrier 0 is barrier() of cuda_device.h. Barriers 1 to 15 are for whole warps: a phase ends when `threads` have come,
// those that wait and those that only arrive.
constexpr u32 named_barriers = 16;

// Waits until `threads` threads have come to barrier `id`. Sees what they wrote before.
FW_FN void named_barrier_wait(u32 id, u32 threads FW_AND_CALLER) {
#ifdef FW_EMULATOR
  fwemu::named_barrier(id, threads, true, line);
#else
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// Comes to barrier `id` and goes on.
FW_FN void named_barrier_arrive(u32 id, u32 threads FW_AND_CALLER) {
#ifdef FW_EMULATOR
  fwemu::named_barrier(id, threads, false, line);
#else
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// ---------------------------------------------------------------- mbarriers of other blocks

// Arrives at the mbarrier at the same place in block `rank` of the cluster. Releases what the thread wrote to the
// cluster.
FW_FN void mbarrier_arrive_remote(u64* barrier, u32 rank FW_AND_CALLER) {
#ifdef FW_EMULATOR
  fwemu::mbarrier_arrive_remote(barrier, rank, line);
#else
  asm volatile(
      "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
#endif
}

// ---------------------------------------------------------------- registers

// Leaves every thread of the warpgroup `count` registers, a multiple of 8 from 24 to 256, and gives the rest to the
// block. All warps of the warpgroup call it, in a kernel whose launch bounds say how many registers a thread has.
template <u32 count>
FW_FN void release_registers(FW_CALLER) {
  static_assert(count >= 24 && count <= 256 && count % 8 == 0, "no such number of registers");
#ifdef FW_EMULATOR
  fwemu::set_registers(count, false, line);
#else
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
#endif
}

// Waits until the block has the registers that are missing to `count` a thread, and takes them.
template <u32 count>
FW_FN void request_registers(FW_CALLER) {
  static_assert(count >= 24 && count <= 256 && count % 8 == 0, "no such number of registers");
#ifdef FW_EMULATOR
  fwemu::set_registers(count, true, line);
#else
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
#endif
}

}  // namespace fw
#endif  // FW_SM90

#endif  // FW_KERNELS_DEVICE_BARRIER_H
