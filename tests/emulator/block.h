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
#include "emulator/tensor_map.h"

namespace fwemu {

enum class Wait : uint8_t { none, barrier, warp, mbarrier, cluster, named_barrier, registers, ended };

struct AsyncCopy {
  char* to;
  const char* from;
  unsigned bytes, valid;
  int line;
};

// From shared to global memory, by store_bulk.
struct BulkStore {
  char* to;
  const char* from;
  unsigned bytes, group;
  int line;
};

struct Fiber {
  Thread view;
  void* stack_pointer;
  unsigned number;  // in the block
  Wait wait;
  size_t awaited;  // the number of the mbarrier or named barrier
  int line;        // of the last wait, or of the copy that is being made
  bool copying;    // a fault is the copy's, and `line` where it was asked for
  bool arrived;    // at the barrier of the cluster, in this phase, and has not waited since
  uint64_t cluster_phase;
  std::vector<AsyncCopy> copies;
  std::vector<size_t> groups;  // how many of `copies` each committed group ends with
  std::vector<BulkStore> bulk_stores;
  unsigned store_groups;  // committed
  uint32_t stores_actor;  // of races.h; 0: none yet
};

class Cluster;
class RegisterMarks;

class Block {
 public:
  Block();
  ~Block();
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
  // The accumulators of one product or of several, in 32 lanes.
  struct Accumulators {
    std::array<float*, 32> d;
    unsigned count;             // of a lane
    std::vector<float> values;  // by lane: of the products so far, and behind them what the registers were left with
    unsigned under_way;         // products
    unsigned fences;            // of the warp, when the last of them ended
    int line;
  };
  struct PendingProduct {  // a warp's part of it
    Product product;
    std::array<const unsigned*, 32> a;
    std::vector<unsigned> a_values;  // as they were when it was asked for
    size_t accumulators;
    unsigned group;
    int line;
  };
  struct Warp {
    unsigned live, runnable;
    std::vector<Meeting> meetings;
    WarpCall* calls[32];
    std::vector<PendingProduct> products;
    std::vector<Accumulators> accumulators;
    unsigned asked, committed, fences;  // products, groups, and how often it called wgmma_fence
    uint32_t actor;                     // of races.h, for products; 0: none yet
    unsigned registers, wanted;         // of a thread; 0: waits for none
    unsigned changes;                   // of `registers`
  };
  // The arguments that all warps of a warpgroup must pass alike.
  struct ProductCall {
    Product product;
    int line;
    bool operator==(const ProductCall& other) const;
  };
  struct NamedBarrier {
    unsigned threads, arrived, phase;
    int line;
    std::vector<unsigned> waiting;
    Gathering gathering;
    Known known;
  };
  struct Mbarrier {
    uint64_t* address;
    unsigned arrivals, pending;
    int64_t bytes;  // announced and not yet there
    unsigned phase;
    std::vector<unsigned> waiting;  // fibers
    unsigned init_thread;
    int init_line;
    bool fenced;
    uint32_t init_step, actor;  // of races.h
    Gathering gathering;
    Known known;  // what a wait tells
  };
  struct BulkCopy {
    AsyncCopy copy;  // a range, where there is no tile
    std::optional<Tile> tile;
    size_t mbarrier;
    unsigned phase;
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
  void meet(WarpCall* call);
  void complete(Warp& warp, const Meeting& meeting);
  void check_ended_lane(const Fiber& fiber);

  // tensor_core.cpp
  void multiply(Warp& warp, MmaType type);
  void load_matrices(Warp& warp, int count, bool transposed);
  void store_matrices(Warp& warp, int count, bool transposed);
  const char* operand_at(Descriptor d, const Product& product, bool is_a, unsigned outer, unsigned k) const;
  void check_descriptor(uint64_t bits, const Product& product, bool is_a, int line);
  void ask_for_product(Warp& warp, unsigned index, int line);
  void note_product(Warp& warp, unsigned index, const PendingProduct& pending);
  void run_product(Warp& warp, unsigned index, PendingProduct& pending);
  void end_accumulators(Warp& warp, unsigned index, Accumulators& accumulators);
  void wgmma_wait(Warp& warp, unsigned index, unsigned groups);
  void hold(const float* accumulators, unsigned count, int line);
  void mark_registers(const void* p, size_t bytes, uint32_t mark);
  void check_registers(const void* p, size_t bytes, uint32_t fences, int line);
  void note_register(const void* p, size_t bytes, bool write, const void* code);
  void check_products_at_end();

  // warpgroup.cpp
  void named_barrier(WarpCall* call);
  void arrive_named(Warp& warp, unsigned index, int id, int line);
  void set_registers(Warp& warp, unsigned index, int count, int line);
  void grant_registers();
  void wait_for_registers(int line);

  // async_copy.cpp
  void check_shared(const void* p, unsigned bytes, unsigned alignment, int line);
  void copy_async(void* shared, const void* global, unsigned bytes, unsigned valid, int line);
  void copy_async_wait(size_t groups);
  void copy_now(const AsyncCopy& copy);
  std::optional<size_t> mbarrier_at(const uint64_t* barrier) const;
  size_t find_mbarrier(uint64_t* barrier, int line);
  size_t find_remote_mbarrier(uint64_t* own, unsigned rank, int line);
  void mbarrier_init(uint64_t* barrier, unsigned arrivals, int line);
  void mbarrier_fence();
  void fence_async();
  void arrive(Block& where, size_t mbarrier, int line);
  void mbarrier_arrive(uint64_t* barrier, int line);
  void mbarrier_arrive_remote(uint64_t* barrier, unsigned rank, int line);
  void mbarrier_expect(uint64_t* barrier, unsigned bytes, int line);
  bool mbarrier_try_wait(uint64_t* barrier, unsigned parity, int line);
  void end_phase_if_complete(Mbarrier& barrier);
  void count_bytes(Mbarrier& barrier, int64_t arrived, int line);
  std::string name_mbarrier(const Mbarrier& barrier) const;
  // To the blocks of the cluster that `blocks` names by bits; 0: to this one.
  void copy_bulk(const AsyncCopy& copy, const Tile* tile, uint64_t* barrier, unsigned blocks);
  void deliver(size_t bulk_copy);
  void deliver_store(size_t store);
  void store_bulk(void* global, const void* shared, unsigned bytes, int line);
  void store_bulk_wait(unsigned groups, int line);
  void prefetch_bulk(const void* global, unsigned bytes, int line);
  void copy_tile(void* shared, const void* map, const int* at, int rank, uint64_t* barrier, unsigned blocks, int line);
  // Addresses of shared memory as instructions have them; the window begins at a multiple of the largest pattern.
  const char* window() const;
  unsigned shared_address(const void* p) const;

  // cluster.cpp
  void cluster_arrive(int line);
  void cluster_wait(int line);
  void* cluster_pointer(void* own, unsigned rank, int line);
  void store_async(void* own, const unsigned* words, uint64_t* barrier, unsigned rank, int line);

  // races.cpp
  uint32_t actor(unsigned thread) const;
  Block* owner_of(const void* p, size_t bytes);
  void note_access(const void* p, unsigned bytes, bool write, const void* code, int line, unsigned thread);
  void note_asynchronous(Block& where, const void* p, size_t bytes, bool write, unsigned first, unsigned count,
                         Races::Actor kind, uint32_t actor_number, uint32_t step, int line);
  [[noreturn]] void report_race(const Races::Conflict& conflict, const std::string& doing, const Block& where, int line,
                                const void* code);

  Launch* launch_ = nullptr;
  Cluster* cluster_ = nullptr;
  uint64_t index_ = 0, random_ = 0;
  unsigned rank_ = 0;  // in the cluster
  std::unique_ptr<Stacks> stacks_;
  SharedMemory shared_;
  void* main_stack_pointer_ = nullptr;

  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  Fiber* current_ = nullptr;
  uint32_t ready_warps_ = 0;  // those with runnable lanes
  unsigned live_ = 0, at_barrier_ = 0;

  bool watches_races_ = false;
  // With watches_races_, by 4 bytes of the stacks: how often the warp had called wgmma_fence, plus 1, when the thread
  // touched them; or under_way_*.
  std::unique_ptr<RegisterMarks> registers_;

  std::vector<Mbarrier> mbarriers_;
  std::vector<BulkCopy> bulk_copies_;  // under way
  std::vector<Store> stores_;          // to this block, under way
  std::array<NamedBarrier, 16> named_barriers_;
  std::vector<std::vector<ProductCall>> warpgroup_products_;  // by warpgroup
  unsigned free_registers_ = 0;                               // of the block, in registers of a warp's threads
};

// "threads 0-31, 40"
std::string name_threads(const std::vector<unsigned>& numbers);

}  // namespace fwemu
