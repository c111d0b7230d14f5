#pragma once
// One call of a generated CUDA kernel, between cuda_choice.cpp, which finds the shape of its launches, and
// cuda_launch.cpp, which makes them.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/cuda_launch.h"

namespace fusewright {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t power_of_two_from(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
}

inline std::atomic<CandidateHook> candidate_hook = nullptr;

// All that follows from a choice.
struct CudaLauncher::Shape {
  Variant variant{1, 1, false, {}};
  int64_t threads = 256, team = 1, lanes = 1;
  int64_t partial_lanes = 1;  // of the launch that leaves partial sums
  int64_t blocks = 1;
  bool split = false;
  int64_t anchors = 1, walked = 1, parts = 1, share = 1, elements = 1, rows = 1, splits = 1, piece = 1;
  int64_t line = 1, tiles = 1;
  int64_t side_parts = 1, total_parts = 1, side_blocks = 1;
  int64_t anchors_together = 1;  // teams of a warp at neighbouring anchors
  bool operator==(const Shape&) const = default;
};

// One call: its tensors, the shape of its launches, and the arguments that follow from them.
struct CudaLauncher::Call : Shape {
  Geometry g;
  int device = 0;
  int64_t processors = 1;
  int widest = 1;  // elements in the largest vector that these tensors allow
  bool wide = false;
  bool estimate = false;  // before kernels are there to ask how many blocks fit on the device
  std::vector<int64_t> side_strides, total_strides;
  std::vector<bool> partial;  // per pass: it leaves partial sums
  int64_t tile_bytes = 0;     // of shared memory

  // Each block of the next pass would add up all partial sums of pass p: many of them are added up once, before it.
  bool merged(size_t p) const { return splits > 16 && p + 1 < partial.size() && partial[p]; }

  int64_t teams_in_block() const { return threads / (team * lanes); }
  const std::vector<std::vector<int64_t>>& sums(const KernelCode& code) const {
    return variant.items == 0 ? code.cuda.walking.sums : code.cuda.sums;
  }
};

// The launches of a call. They serve every call with the same key: all but addresses and numbers is in the arguments.
struct CudaLauncher::Prepared {
  std::vector<int64_t> key;
  bool lasting = true;  // false: the rule chose because it cannot be timed yet
  struct Launch {
    void* kernel;
    std::string name;
    cuda::LaunchShape shape;
    std::vector<char> arguments;
  };
  std::vector<Launch> launches;
  struct Buffer {  // memory for the time of the call
    int64_t bytes;
    size_t place;  // of its address in the arguments
  };
  std::vector<Buffer> buffers;
};

}  // namespace fusewright
