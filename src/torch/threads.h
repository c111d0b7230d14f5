#pragma once
#include <cstdint>
#include <functional>

namespace fusewright {

// body(begin, end) over [0, n) on PyTorch's threads, in pieces of at least `grain`.
void parallel_in_torch(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

}  // namespace fusewright
