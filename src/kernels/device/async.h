// Bulk copies between global and shared memory, of ranges and of tiles that a tensor map describes (sm_90a).
//
// Needs prelude.h and cuda_device.h in front; includes nothing. copy_bulk(), a range from global memory to this block,
// stands in cuda_device.h. All copies are asked for by one thread.
#ifndef FW_KERNELS_DEVICE_ASYNC_H
#define FW_KERNELS_DEVICE_ASYNC_H

#if FW_SM90
namespace fw {

// ---------------------------------------------------------------- ranges

// Copies a multiple of 16 bytes to the same place in every block of the cluster that `blocks` names by its bits. The
// mbarrier at the same place of each of these blocks counts the bytes as they arrive there.
FW_FN void copy_bulk_multicast(void* shared, const void* global, u32 bytes, u64* barrier, u16 blocks FW_AND_CALLER) {
#ifdef FW_EMULATOR
  fwemu::copy_bulk_multicast(shared, global, bytes, barrier, blocks, line);
#else
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
      "%4;" ::"r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier)), "h"(blocks)
      : "memory");
#endif
}

// Copies a multiple of 16 bytes from shared to global memory, both aligned to 16. What threads wrote there needs a
// fence_async() before.
FW_FN void store_bulk(void* global, const void* shared, u32 bytes FW_AND_CALLER) {
#ifdef FW_EMULATOR
  fwemu::store_bulk(global, shared, bytes, line);
#else
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared_address(shared)),
               "r"(bytes)
               : "memory");
#endif
}

// Closes the group of this thread's store_bulk since the last one.
FW_FN void store_bulk_commit(FW_CALLER) {
#ifdef FW_EMULATOR
  fwemu::store_bulk_commit(line);
#else
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// Waits until at most the last `groups` of this thread's groups are not written.
template <u32 groups>
FW_FN void store_bulk_wait(FW_CALLER) {
#ifdef FW_EMULATOR
  fwemu::store_bulk_wait(groups, false, line);
#else
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(groups) : "memory");
#endif
}

// Waits until at most the last `groups` are not read: their shared memory may be written again.
template <u32 groups>
FW_FN void store_bulk_wait_read(FW_CALLER) {
#ifdef FW_EMULATOR
  fwemu::store_bulk_wait(groups, true, line);
#else
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(groups) : "memory");
#endif
}

// Asks the L2 cache for a multiple of 16 bytes of global memory.
FW_FN void prefetch_bulk(const void* global, u32 bytes FW_AND_CALLER) {
#ifdef FW_EMULATOR
  fwemu::prefetch_bulk(global, bytes, line);
#else
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
#endif
}

// ---------------------------------------------------------------- tiles

// A tensor in global memory and the box that one copy takes of it, as cuTensorMapEncodeTiled makes it. Lies in a
// kernel's argument that is a __grid_constant__, or in global memory.
struct alignas(64) TensorMap {
  u64 words[16];
};

FW_FN void prefetch_tensor_map(const TensorMap* map FW_AND_CALLER) {
#ifdef FW_EMULATOR
  fwemu::check_tensor_map(map, line);
#else
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}

// Copies the box whose first element is at `at` (the innermost coordinate first; may lie outside of the tensor, where
// the map's fill is read) to shared memory, aligned to 128 bytes or to the pattern of the map's swizzle. The barrier
// counts the bytes of the whole box as they arrive.
#ifdef FW_EMULATOR
template <int rank>
FW_FN void copy_tile(void* shared, const TensorMap* map, const i32 (&at)[rank], u64* barrier FW_AND_CALLER) {
  fwemu::copy_tile(shared, map, at, rank, barrier, 0, line);
}
// The same to every block of the cluster that `blocks` names by its bits, as copy_bulk_multicast does.
template <int rank>
FW_FN void copy_tile_multicast(void* shared, const TensorMap* map, const i32 (&at)[rank], u64* barrier,
                               u16 blocks FW_AND_CALLER) {
  fwemu::copy_tile(shared, map, at, rank, barrier, blocks, line);
}
#else
#define FW_COPY_TILE(rank, coordinates, blocks, ...)                                                     \
  FW_FN void copy_tile(void* shared, const TensorMap* map, const i32(&at)[rank], u64* barrier) {         \
    asm volatile("cp.async.bulk.tensor." #rank                                                           \
                 "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {" coordinates   \
                 "}], [%2];" ::"r"(shared_address(shared)),                                              \
                 "l"(map), "r"(shared_address(barrier)), __VA_ARGS__                                     \
                 : "memory");                                                                            \
  }                                                                                                      \
  FW_FN void copy_tile_multicast(void* shared, const TensorMap* map, const i32(&at)[rank], u64* barrier, \
                                 u16 to_blocks) {                                                        \
    asm volatile("cp.async.bulk.tensor." #rank                                                           \
                 "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "  \
                 "[%1, {" coordinates "}], [%2], " blocks ";" ::"r"(shared_address(shared)),             \
                 "l"(map), "r"(shared_address(barrier)), __VA_ARGS__, "h"(to_blocks)                     \
                 : "memory");                                                                            \
  }
FW_COPY_TILE(1, "%3", "%4", "r"(at[0]))
FW_COPY_TILE(2, "%3, %4", "%5", "r"(at[0]), "r"(at[1]))
FW_COPY_TILE(3, "%3, %4, %5", "%6", "r"(at[0]), "r"(at[1]), "r"(at[2]))
FW_COPY_TILE(4, "%3, %4, %5, %6", "%7", "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]))
FW_COPY_TILE(5, "%3, %4, %5, %6, %7", "%8", "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]))
#undef FW_COPY_TILE
#endif

}  // namespace fw
#endif  // FW_SM90

#endif  // FW_KERNELS_DEVICE_ASYNC_H
