#pragma once
// Who read and wrote each byte of a block's shared memory last: two threads, one of them writing, with no barrier
// between, are a race, whatever the order in which they happened to run. Only with FUSEWRIGHT_EMULATOR_RACES=1, when
// kernels are compiled so that they tell of every access.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fwemu {

class Races {
 public:
  struct Access {
    uint64_t epoch = 0;   // how many barriers of all blocks came before
    unsigned rounds = 0;  // how many barriers of the warp, since
    unsigned thread = 0;
    const void* code = nullptr;
    int line = 0;  // where there is no code: of an asynchronous copy, or of a load of matrices
  };

  void begin_block(size_t shared_bytes, unsigned warps);
  void barrier() { ++epoch_, warp_rounds_.assign(warp_rounds_.size(), 0); }
  void warp_barrier(unsigned warp) { ++warp_rounds_[warp]; }

  // Notes an access to `bytes` from `offset`; returns the earlier one that it races with, or null.
  const Access* note(size_t offset, size_t bytes, bool write, unsigned thread, const void* code, int line);

 private:
  struct Byte {
    Access write, reads[2];  // the last write; the first reader since the barrier, and another one
  };
  bool unordered(const Access& earlier, unsigned thread) const;

  uint64_t epoch_ = 1;
  std::vector<unsigned> warp_rounds_;
  std::vector<Byte> bytes_;
};

}  // namespace fwemu
