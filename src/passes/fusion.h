#pragma once
// What `fuse` decides: which operations share a kernel.
#include <string>
#include <vector>

#include "ir/ir.h"
#include "schedule/kernel.h"

namespace fusewright {

class Schedule;

// Why a value was not computed where it is used. The names are stable: explain prints them, tests match them.
struct Stop {
  std::string reason;
  Value value;
  std::string detail;
};

// A kernel with the schedule that runs it.
struct Group {
  Kernel kernel;
  const Schedule* schedule = nullptr;  // the pass `schedule` chooses it
};

struct Fusion {
  std::vector<Group> groups;  // in an order that can be run
  std::vector<Stop> stops;
  std::vector<int> in_place;  // outputs whose kernel writes them over the input that they replace
};

}  // namespace fusewright
