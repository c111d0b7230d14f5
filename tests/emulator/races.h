#pragma once
// Who read and wrote the bytes of shared memory, and which of these accesses each thread of the cluster knows to have
// happened: two accesses, one of them a write, are a race when the later one does not know of the earlier, whatever the
// order in which they happened to run. Only with FUSEWRIGHT_EMULATOR_RACES=1, when kernels are compiled so that they
// tell of every access.
//
// An actor is a thread, or something that works beside the threads: the copies that an mbarrier counts, the products
// of a warp, the bulk stores of a thread. Each counts its steps (a thread: what it hands over; an mbarrier: phases; the
// others: groups). A thread knows how far each actor had come when it last heard of it. It hears by barriers and waits.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace fwemu {

// The steps of the other actors that are known. Shared by the threads that know the same; never changed.
struct Knowledge {
  std::vector<uint32_t> seen;    // by actor: its steps up to this one have happened
  std::vector<uint32_t> fenced;  // and what they wrote is in order with the asynchronous proxy
};
using Known = std::shared_ptr<const Knowledge>;

// Gathers what threads know that meet.
struct Gathering {
  Knowledge all;
  std::vector<const Knowledge*> added;  // these objects are part of `all`
  std::vector<Known> kept;              // keeps them alive, so that no other has their address
};

class Races {
 public:
  enum class Actor : uint8_t { thread, copies, products, stores };

  struct Access {
    uint32_t actor, step;
    uint16_t bytes;  // of the 16 of its place
    bool write, asynchronous;
    Actor kind;
    int line;  // where there is no code: of an asynchronous operation, or of a load of matrices
    const void* code;
  };
  struct Conflict {
    bool found = false;
    bool unfenced = false;  // it is known, but not in order with the asynchronous proxy
    Access earlier{};
    size_t offset = 0;  // of the first byte in common
  };

  void begin(unsigned blocks, unsigned threads, size_t shared_bytes);

  uint32_t thread(unsigned block, unsigned number) const { return block * threads_ + number; }
  unsigned block_of(uint32_t thread) const { return thread / threads_; }
  unsigned number_of(uint32_t thread) const { return thread % threads_; }
  uint32_t new_actor() { return actors_++; }

  // Notes an access by a thread, or by an actor beside it that one of `callers` has set to work.
  Conflict note(unsigned block, size_t offset, size_t bytes, bool write, uint32_t thread, const void* code, int line);
  Conflict note(unsigned block, size_t offset, size_t bytes, bool write, const uint32_t* callers, unsigned caller_count,
                Actor kind, uint32_t actor, uint32_t step, int line);

  // Hands over what the thread knows and has done.
  void add(Gathering& gathering, uint32_t thread);
  static Known finish(Gathering& gathering);
  void learn(uint32_t thread, const Known& known);
  // The thread knows that the actor's steps up to this one have happened.
  void learn(uint32_t thread, uint32_t actor, uint32_t step);
  bool knows(uint32_t thread, uint32_t actor, uint32_t step) const;
  uint32_t step_of(uint32_t thread) const { return states_[thread].step; }
  // Orders the writes that the thread knows of before what the asynchronous proxy does next.
  void fence(uint32_t thread);

 private:
  struct State {
    Known base;
    uint32_t step, fenced;
  };
  enum class Order { known, unfenced, unknown };
  Order order(const Access& earlier, uint32_t thread, bool asynchronous) const;
  Conflict note(unsigned block, size_t offset, size_t bytes, Access now, const uint32_t* callers, unsigned count);
  Known joined(const Known& a, const Known& b);

  unsigned threads_ = 0;
  uint32_t actors_ = 0;
  Known nothing_ = std::make_shared<Knowledge>();
  std::vector<State> states_;
  std::vector<std::vector<std::vector<Access>>> places_;  // by block, and 16 bytes
  // Threads that know the same learn the same: the last results.
  struct Joined {
    Known a, b, result;
  };
  std::vector<Joined> joins_;
  size_t next_join_ = 0;
  struct Learned {
    Known base, result;
    uint32_t actor, step;
  } learned_{};
  std::pair<Known, Known> fence_;
};

}  // namespace fwemu
