#pragma once
// One block of threads: a fiber for each of them, run one at a time by one thread of the system. A fiber runs until it
// has to wait; then another that can run is drawn at random. So a value that is read without a barrier is read before
// it was written, for some thread and some seed.
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "emulator/fiber.h"
#include "emulator/interface.h"
#include "emulator/launch.h"
#include "emulator/memory.h"
#include "emulator/races.h"

namespace fwemu {

enum class Wait : uint8_t { none, barrier, warp, mbarrier, cluster, ended };

struct AsyncCopy {
  char* to;
  const char* from;
  unsigned bytes, valid;
  int line;
};

struct Fiber {
  Thread view;
  void* stack_pointer;
  unsigned number;  // in the block
  Wait wait;
  int line;      // of the last wait, or of the copy that is being made
  bool copying;  // a fault is the copy's, and `line` where it was asked for
  bool arrived;  // at the barrier of the cluster, in this phase, and has not waited since
  uint64_t cluster_phase;
  std::vector<AsyncCopy> copies;
  std::vector<size_t> groups;  // how many of `copies` each committed group ends with
};

class Cluster;

class Block {
 public:
  // Makes block `index` of the launch ready to run.
  void begin(Launch& launch, Cluster& cluster, uint64_t index);
  // Runs it until it ends, or none of its threads can go on before another block of the cluster has.
  bool can_run() const { return ready_warps_ != 0; }
  void resume();
  unsigned live() const { return live_; }  // threads that have not ended
  void check_end();                        // of a block that has ended
  void release_cluster();
  std::string who_waits() const;
  uint32_t random();

  // The block whose fiber the calling thread of the system is running; null outside.
  static Block* running();
  static const Runtime runtime;  // what kernel text calls

  // Ends the launch from within a fiber.
  [[noreturn]] void fail(const std::string& what, int line = 0, bool is_address = false);
  // From the signal handler: what fail() does, once the handler has returned.
  void* stack_for_fault() const;
  [[noreturn]] void fail_for_fault();
  struct {
    int signal;
    void *address, *program_counter;
  } fault;

 private:
  struct Meeting {  // a warp operation that waits for lanes
    unsigned mask, arrived;
    WarpOperation operation;
    int line, detail;
  };
  struct Warp {
    unsigned live, runnable;
    std::vector<Meeting> meetings;
    WarpCall* calls[32];
  };
  struct Mbarrier {
    uint64_t* address;
    unsigned arrivals, pending;
    int64_t bytes;  // announced and not yet there
    unsigned phase;
    std::vector<unsigned> waiting;  // fibers
  };
  struct BulkCopy {
    AsyncCopy copy;
    size_t mbarrier;
  };
  struct Store {  // of another block of the cluster
    char* to;
    std::array<unsigned, 4> words;
    size_t mbarrier;
    int line;
  };

  // block.cpp
  [[noreturn]] static void fiber_main();
  [[noreturn]] void end_fiber();
  Fiber* pick();
  void park();
  void make_runnable(unsigned number);
  void release_barrier();
  void barrier(int line);
  void check_red_zones();
  std::string name_of(const Fiber& fiber) const;
  static unsigned choose(uint32_t set, uint32_t drawn);

  // warp.cpp
  void warp(WarpCall* call);
  void complete(Warp& warp, const Meeting& meeting);
  void multiply(Warp& warp, MmaType type);
  void load_matrices(Warp& warp, int count, bool transposed);
  void check_ended_lane(const Fiber& fiber);

  // async_copy.cpp
  void check_shared(const void* p, unsigned bytes, unsigned alignment, int line);
  void copy_async(void* shared, const void* global, unsigned bytes, unsigned valid, int line);
  void copy_async_wait(size_t groups);
  void copy_now(const AsyncCopy& copy);
  std::optional<size_t> mbarrier_at(const uint64_t* barrier) const;
  size_t find_mbarrier(uint64_t* barrier, int line);
  void mbarrier_init(uint64_t* barrier, unsigned arrivals, int line);
  void mbarrier_arrive(uint64_t* barrier, int line);
  void mbarrier_expect(uint64_t* barrier, unsigned bytes, int line);
  bool mbarrier_try_wait(uint64_t* barrier, unsigned parity, int line);
  void end_phase_if_complete(Mbarrier& barrier);
  void copy_bulk(void* shared, const void* global, unsigned bytes, uint64_t* barrier, int line);
  void deliver(size_t bulk_copy);
  void deliver_store(size_t store);

  // cluster.cpp
  void cluster_arrive(int line);
  void cluster_wait(int line);
  void* cluster_pointer(void* own, unsigned rank, int line);
  void store_async(void* own, const unsigned* words, uint64_t* barrier, unsigned rank, int line);

  // races.cpp
  void note_access(const void* p, unsigned bytes, bool write, const void* code, int line, unsigned thread);

  Launch* launch_ = nullptr;
  Cluster* cluster_ = nullptr;
  uint64_t index_ = 0, random_ = 0;
  std::unique_ptr<Stacks> stacks_;
  SharedMemory shared_;
  void* main_stack_pointer_ = nullptr;

  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  Fiber* current_ = nullptr;
  uint32_t ready_warps_ = 0;  // those with runnable lanes
  unsigned live_ = 0, at_barrier_ = 0;

  bool watches_races_ = false;
  Races races_;

  std::vector<Mbarrier> mbarriers_;
  std::vector<BulkCopy> bulk_copies_;  // under way
  std::vector<Store> stores_;          // to this block, under way
};

// "threads 0-31, 40"
std::string name_threads(const std::vector<unsigned>& numbers);

}  // namespace fwemu
