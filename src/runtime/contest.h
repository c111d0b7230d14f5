#pragma once
// Whether a fused region or the program's own operators are faster.
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "fusewright/host.h"
#include "ir/ir.h"

namespace fusewright {

// Both are timed on a GPU, once for inputs of about the same sizes, and the winner is remembered: in the process and on
// disk. Threads may share it.
class Contest {
 public:
  enum class Winner { region, eager };
  // The graph must outlive it.
  Contest(const Graph& graph, const std::string& name) : graph_(graph), name_(name) {}

  // `bucket`: a hash of the inputs' sizes, and of what else the winner may depend on beside graph and device.
  std::optional<Winner> known(uint64_t bucket, int gpu) const;  // decided in this process
  std::optional<Winner> recorded(uint64_t bucket, int gpu) const;

  // run(0) is a call of the region, run(1) one of the program's operators. Times them unless the winner is known; the
  // region wins for now where all its variants are not `complete`, since the best may be missing.
  Winner decide(Host& host, uint64_t bucket, const std::function<bool()>& complete,
                const std::function<void(size_t)>& run);

 private:
  std::string key(uint64_t bucket, int gpu) const;

  const Graph& graph_;
  const std::string& name_;
  mutable std::mutex mutex_;
  std::mutex one_at_a_time_;
  std::map<uint64_t, Winner> winners_;  // by bucket and device
};

}  // namespace fusewright
