// The interface between kernel text and the emulator's runtime. It is pasted in front of emulator.h and included by the
// runtime, so it includes nothing.
#ifndef FUSEWRIGHT_EMULATOR_INTERFACE_H
#define FUSEWRIGHT_EMULATOR_INTERFACE_H

namespace fwemu {

struct Index {
  unsigned x, y, z;
};

// One CUDA thread, as its kernel sees it.
struct Thread {
  Index thread, block, block_size, grid_size;
  char* shared;
};

enum WarpOperation : int {
  warp_sync,
  warp_shuffle,
  warp_ballot,
  warp_elect,
  warp_matrices,
  warp_store_matrices,
  warp_mma,
  warp_named_barrier,
  warp_registers,
  warp_wgmma,
  warp_wgmma_fence,
  warp_wgmma_commit,
  warp_wgmma_wait
};
enum MmaType : int { f16, bf16, tf32 };  // OperandType of shapes.h

// A product of a warpgroup, as one of its threads asks for it.
struct Product {
  float* d;           // its accumulators
  const unsigned* a;  // its 4 registers of A, or null
  unsigned long long a_descriptor, b_descriptor;
  unsigned n;
  MmaType type;
  bool accumulate;
  int a_major, b_major, a_sign, b_sign;
};

// One lane's part in an operation of its warp. It lies on the stack of the waiting lane; the last lane to arrive reads
// all operands and writes all results.
struct WarpCall {
  WarpOperation operation;
  unsigned mask;
  int line;
  // shuffle: the source lane; matrices: their number, negative if transposed; mma: the type; named barrier: its number;
  // registers: how many a thread, negative to release; wgmma_wait: groups
  int detail;
  union {
    unsigned long long value;  // shuffle, ballot
    const void* row;           // matrices
    struct {
      void* row;
      unsigned words[4];
    } store;  // store_matrices
    struct {
      unsigned a[4], b[2];
      float c[4];
    } tile;           // mma
    Product product;  // wgmma
    struct {
      unsigned threads;
      bool waits;
    } barrier;  // named barrier
  } operand;
  union {
    unsigned long long value;  // named barrier: the phase that is waited for
    unsigned words[4];
    float c[4];
  } result;
};

// The functions of the runtime. Those that find a fault end the launch and do not return.
struct Runtime {
  const Thread* (*self)();
  void (*fail)(int line, const char* text);
  void (*barrier)(int line);
  void (*warp)(WarpCall* call);
  void (*copy_async)(void* shared, const void* global, unsigned bytes, unsigned valid, int line);
  void (*copy_async_commit)();
  void (*copy_async_wait)(int groups, int line);
  void (*mbarrier_init)(unsigned long long* barrier, unsigned arrivals, int line);
  void (*mbarrier_arrive)(unsigned long long* barrier, int line);
  void (*mbarrier_expect)(unsigned long long* barrier, unsigned bytes, int line);
  bool (*mbarrier_try_wait)(unsigned long long* barrier, unsigned parity, int line);
  void (*access)(const void* p, unsigned bytes, bool write, const void* code);  // only with FWEMU_RACES
  void (*copy_bulk)(void* shared, const void* global, unsigned bytes, unsigned long long* barrier, int line);
  void (*cluster_arrive)(int line);
  void (*cluster_wait)(int line);
  void* (*cluster_pointer)(void* own, unsigned rank, int line);
  void (*store_async)(void* own, const unsigned* words, unsigned long long* barrier, unsigned rank, int line);
  void (*mbarrier_fence)(int line);
  void (*fence_async)(int line);
  void (*mbarrier_arrive_remote)(unsigned long long* barrier, unsigned rank, int line);
  void (*copy_bulk_multicast)(void* shared, const void* global, unsigned bytes, unsigned long long* barrier,
                              unsigned blocks, int line);
  void (*store_bulk)(void* global, const void* shared, unsigned bytes, int line);
  void (*store_bulk_commit)(int line);
  void (*store_bulk_wait)(unsigned groups, bool read, int line);
  void (*prefetch_bulk)(const void* global, unsigned bytes, int line);
  void (*check_tensor_map)(const void* map, int line);
  // blocks: of the cluster, by bits; 0: the calling one
  void (*copy_tile)(void* shared, const void* map, const int* at, int rank, unsigned long long* barrier,
                    unsigned blocks, int line);
  unsigned (*shared_address)(const void* p);
  void (*named_barrier)(WarpCall* call);
  void (*hold)(const float* accumulators, unsigned count, int line);
};

// The entry that the compiled text exports for each kernel, as fwemu_kernel_NAME.
struct Kernel {
  void (*call)(const void* arguments);
  unsigned long long argument_bytes;
  bool tells_accesses;
  unsigned threads, blocks;  // __launch_bounds__: 0 if there are none
};

}  // namespace fwemu

#endif  // FUSEWRIGHT_EMULATOR_INTERFACE_H
