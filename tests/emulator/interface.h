// What kernel text and the emulator's runtime say to each other. Pasted in front of emulator.h and included by the
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

enum WarpOperation : int { warp_sync, warp_shuffle, warp_ballot, warp_matrices, warp_mma };
enum MmaType : int { f16, bf16, tf32 };

// One lane's part in an operation of its warp. It lies on the stack of the waiting lane; the last lane to arrive reads
// all operands and writes all results.
struct WarpCall {
  WarpOperation operation;
  unsigned mask;
  int line;
  int detail;  // shuffle: the source lane; matrices: their number, negative if transposed; mma: the type
  union {
    unsigned long long value;  // shuffle, ballot
    const void* row;           // matrices
    struct {
      unsigned a[4], b[2];
      float c[4];
    } tile;  // mma
  } operand;
  union {
    unsigned long long value;
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
};

// What the compiled text offers for each kernel, found as fwemu_kernel_NAME.
struct Kernel {
  void (*call)(const void* arguments);
  unsigned long long argument_bytes;
  bool tells_accesses;
};

}  // namespace fwemu

#endif  // FUSEWRIGHT_EMULATOR_INTERFACE_H
