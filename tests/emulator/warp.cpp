// Operations of a warp: lanes leave their operands and wait; the last one to arrive computes for all.
#include <bit>

#include "emulator/block.h"
#include "emulator/cluster.h"
#include "emulator/register_marks.h"

namespace fwemu {
namespace {

const char* operation_name(WarpOperation operation) {
  static constexpr const char* names[] = {"warp barrier", "shuffle",          "ballot",
                                          "elect",        "load of matrices", "store of matrices",
                                          "mma",          "named barrier",    "change of registers",
                                          "wgmma",        "wgmma_fence",      "wgmma_commit",
                                          "wgmma_wait"};
  return names[operation];
}

std::string hexadecimal(unsigned x) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", x);
  return text;
}

std::string name_lanes(unsigned first, unsigned mask) {
  std::vector<unsigned> numbers;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) != 0) numbers.push_back(first + lane);
  }
  return name_threads(numbers);
}

}  // namespace

void Block::warp(WarpCall* call) {
  meet(call);
  if (call->operation == warp_registers) wait_for_registers(call->line);
}

void Block::meet(WarpCall* call) {
  Fiber& fiber = *current_;
  Warp& warp = warps_[fiber.number / 32];
  const unsigned lane = fiber.number % 32, bit = 1u << lane, first = fiber.number - lane;
  const unsigned mask = call->mask;
  const auto operation = [&] { return std::string(operation_name(call->operation)); };
  if ((mask & bit) == 0) {
    fail(operation() + " with the mask " + hexadecimal(mask) + ", which does not name the calling lane " +
             std::to_string(lane),
         call->line);
  }
  if ((mask & ~warp.live) != 0) {
    fail(operation() + " with the mask " + hexadecimal(mask) +
             ", which names lanes that have ended or never were: " + name_lanes(first, mask & ~warp.live),
         call->line);
  }
  Meeting* meeting = nullptr;
  for (Meeting& open : warp.meetings) {
    if (open.mask == mask) {
      meeting = &open;
    } else if ((open.mask & bit) != 0) {
      fail(operation() + " with the mask " + hexadecimal(mask) + ", but " + name_lanes(first, open.arrived) +
               (std::popcount(open.arrived) == 1 ? " waits" : " wait") + " for this lane in a " +
               operation_name(open.operation) + " with the mask " + hexadecimal(open.mask) + " at " +
               launch_->quote(open.line),
           call->line);
    }
  }
  if (meeting == nullptr) {
    warp.meetings.push_back({mask, 0, call->operation, call->line, call->detail});
    meeting = &warp.meetings.back();
  }
  const bool same_detail = call->operation == warp_shuffle || call->detail == meeting->detail;
  if (call->operation != meeting->operation || call->line != meeting->line || !same_detail) {
    fail(operation() + ", while " + name_lanes(first, meeting->arrived) + " of its warp " +
             (std::popcount(meeting->arrived) == 1 ? "is" : "are") + " in another " +
             operation_name(meeting->operation) + " at " + launch_->quote(meeting->line),
         call->line);
  }
  meeting->arrived |= bit;
  warp.calls[lane] = call;
  fiber.line = call->line;
  if (meeting->arrived != mask) {
    fiber.wait = Wait::warp;
    return park();
  }
  const Meeting complete_meeting = *meeting;
  warp.meetings.erase(warp.meetings.begin() + (meeting - warp.meetings.data()));
  complete(warp, complete_meeting);
  for (unsigned others = mask & ~bit; others != 0; others &= others - 1) {
    make_runnable(first + static_cast<unsigned>(std::countr_zero(others)));
  }
}

void Block::complete(Warp& warp, const Meeting& meeting) {
  const auto index = static_cast<unsigned>(&warp - warps_.data());
  switch (meeting.operation) {
    case warp_sync: {
      if (!watches_races_) return;
      Gathering gathering;
      for (unsigned lane = 0; lane < 32; ++lane)
        if ((meeting.mask >> lane & 1) != 0) cluster_->races().add(gathering, actor(32 * index + lane));
      const Known known = Races::finish(gathering);
      for (unsigned lane = 0; lane < 32; ++lane)
        if ((meeting.mask >> lane & 1) != 0) cluster_->races().learn(actor(32 * index + lane), known);
      return;
    }
    case warp_mma:
      return multiply(warp, static_cast<MmaType>(meeting.detail));
    case warp_matrices:
      return load_matrices(warp, std::abs(meeting.detail), meeting.detail < 0);
    case warp_store_matrices:
      return store_matrices(warp, std::abs(meeting.detail), meeting.detail < 0);
    case warp_named_barrier:
      return arrive_named(warp, index, meeting.detail, meeting.line);
    case warp_registers:
      return set_registers(warp, index, meeting.detail, meeting.line);
    case warp_wgmma:
      return ask_for_product(warp, index, meeting.line);
    case warp_wgmma_fence:
      ++warp.fences;
      if (watches_races_ && registers_ == nullptr) registers_ = std::make_unique<RegisterMarks>(*stacks_);
      return;
    case warp_wgmma_commit:
      ++warp.committed;
      return;
    case warp_wgmma_wait:
      return wgmma_wait(warp, index, static_cast<unsigned>(meeting.detail));
    case warp_elect: {
      const unsigned chosen = random() % 32;
      for (unsigned lane = 0; lane < 32; ++lane) warp.calls[lane]->result.value = lane == chosen;
      return;
    }
    case warp_ballot: {
      unsigned set = 0;
      for (unsigned lane = 0; lane < 32; ++lane) {
        if ((meeting.mask >> lane & 1) != 0 && warp.calls[lane]->operand.value != 0) set |= 1u << lane;
      }
      for (unsigned lane = 0; lane < 32; ++lane) {
        if ((meeting.mask >> lane & 1) != 0) warp.calls[lane]->result.value = set;
      }
      return;
    }
    case warp_shuffle: {
      for (unsigned lane = 0; lane < 32; ++lane) {
        if ((meeting.mask >> lane & 1) == 0) continue;
        const auto source = static_cast<unsigned>(warp.calls[lane]->detail);
        if ((meeting.mask >> source & 1) == 0) {
          fail("lane " + std::to_string(lane) + " reads lane " + std::to_string(source) +
                   " in a shuffle whose mask does not name it: " + hexadecimal(meeting.mask),
               meeting.line);
        }
        warp.calls[lane]->result.value = warp.calls[source]->operand.value;
      }
    }
  }
}

// A lane that ends while others count on it.
void Block::check_ended_lane(const Fiber& fiber) {
  const unsigned lane = fiber.number % 32;
  for (const Meeting& open : warps_[fiber.number / 32].meetings) {
    if ((open.mask >> lane & 1) == 0) continue;
    fail("ended while " + name_lanes(fiber.number - lane, open.arrived) + " waited for it in a " +
             operation_name(open.operation) + " with the mask " + hexadecimal(open.mask) + " at this line",
         open.line);
  }
}

}  // namespace fwemu
