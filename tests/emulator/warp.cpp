// Operations of a warp: lanes leave their operands and wait; the last one to arrive computes for all.
#include <bit>
#include <cmath>
#include <cstring>

#include "emulator/block.h"

namespace fwemu {
namespace {

const char* operation_name(WarpOperation operation) {
  static constexpr const char* names[] = {"warp barrier", "shuffle", "ballot", "load of matrices", "mma"};
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

double half_value(unsigned bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31), mantissa = static_cast<int>(bits & 1023);
  const double magnitude = exponent == 31  ? (mantissa != 0 ? NAN : INFINITY)
                           : exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

double element(unsigned word, int part, MmaType type) {
  const unsigned bits = part == 0 ? word & 0xffff : word >> 16;
  switch (type) {
    case f16:
      return half_value(bits);
    case bf16:
      return std::bit_cast<float>(bits << 16);
    default:
      return std::bit_cast<float>(word & ~0x1fffu);  // the hardware does not look at the low bits
  }
}

}  // namespace

void Block::warp(WarpCall* call) {
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
  switch (meeting.operation) {
    case warp_sync:
      if (watches_races_ && meeting.mask == ~0u) races_.warp_barrier(current_->number / 32);
      return;
    case warp_mma:
      return multiply(warp, static_cast<MmaType>(meeting.detail));
    case warp_matrices:
      return load_matrices(warp, std::abs(meeting.detail), meeting.detail < 0);
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

// The maps of lanes to elements are those of the PTX manual; cuda_device.h states them above fw::mma.
void Block::multiply(Warp& warp, MmaType type) {
  double a[16][16], b[16][8];
  const int depth = type == tf32 ? 8 : 16, parts = type == tf32 ? 1 : 2;
  for (int lane = 0; lane < 32; ++lane) {
    const auto& tile = warp.calls[lane]->operand.tile;
    const int g = lane / 4, t = lane % 4;
    for (int part = 0; part < parts; ++part) {
      for (int i = 0; i < 4; ++i) {
        a[g + i % 2 * 8][parts * t + part + i / 2 * depth / 2] = element(tile.a[i], part, type);
      }
      for (int i = 0; i < 2; ++i) b[parts * t + part + i * depth / 2][g] = element(tile.b[i], part, type);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    WarpCall& call = *warp.calls[lane];
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      double sum = call.operand.tile.c[i];
      for (int k = 0; k < depth; ++k) sum += a[row][k] * b[k][column];
      call.result.c[i] = static_cast<float>(sum);
    }
  }
}

void Block::load_matrices(Warp& warp, int count, bool transposed) {
  for (int i = 0; i < count; ++i) {
    uint16_t matrix[8][8];
    for (int row = 0; row < 8; ++row) {
      const WarpCall& call = *warp.calls[8 * i + row];
      check_shared(call.operand.row, 16, 16, call.line);
      const unsigned first = current_->number / 32 * 32;
      if (watches_races_) note_access(call.operand.row, 16, false, nullptr, call.line, first + 8 * i + row);
      std::memcpy(matrix[row], call.operand.row, 16);
    }
    for (int lane = 0; lane < 32; ++lane) {
      const int line = lane / 4, first = lane % 4 * 2;
      const unsigned low = transposed ? matrix[first][line] : matrix[line][first];
      const unsigned high = transposed ? matrix[first + 1][line] : matrix[line][first + 1];
      warp.calls[lane]->result.words[i] = low | high << 16;
    }
  }
}

}  // namespace fwemu
