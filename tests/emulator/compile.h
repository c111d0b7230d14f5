#pragma once
// The text of kernels to a shared object, by the system's C++ compiler.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fwemu {

// How a text is compiled. Images contain it.
struct Recipe {
  char name[16];          // of the text, in the compiler's messages
  uint64_t architecture;  // 90
  uint64_t fuse, races;   // 1: products are fused into sums; kernels tell of each access to memory
};

// Empty, and the compiler's words in `log`, if it refuses. Throws std::exception if there is no compiler.
std::vector<std::byte> compile_object(const std::string& source, const Recipe& recipe, std::string& log);

struct FoundKernel {
  std::string name, bounds;  // what stands between the parentheses of __launch_bounds__
};
std::vector<FoundKernel> find_kernels(const std::string& text);

}  // namespace fwemu
