#pragma once
// The contract of schedules. A schedule owns one kind of kernel from end to end: what may join it, when it can serve a
// kernel, and what runs it. Its parts stand in the rooms of their stage; `schedules` is the only list of all kinds.
#include <memory>
#include <string>
#include <vector>

#include "schedule/kernel.h"

namespace fusewright {

class Launcher;         // runtime/plan/launcher.h
struct LauncherInputs;  // likewise

enum class Dialect { cpp, cuda };

// A value that is about to join a kernel.
struct Joining {
  Value value;
  // A sum over other dimensions than those that the kernel reduces: the axes of what it adds up, for each dimension,
  // and per dimension whether the sum runs over it. Null for everything else.
  const Dims* beside = nullptr;
  const std::vector<bool>* summed = nullptr;
};

class Schedule {
 public:
  virtual ~Schedule() = default;

  // Stable: `explain` prints it.
  virtual const char* name() const = 0;

  // Whether this schedule could serve the kernel together with the value. `fuse` asks before it tries.
  struct Answer {
    bool yes;
    const char* reason;  // why not: a stable name (docs/passes.md); null where the kernel is of another kind anyway
  };
  virtual Answer can_join(const Graph&, const Kernel&, const Joining&, Dialect) const = 0;

  // Whether it can serve the kernel as it is.
  virtual bool can_schedule(const Graph&, const Kernel&, Dialect) const = 0;

  // Writes the kernel's code, and returns what launches it.
  virtual std::unique_ptr<Launcher> launcher(const LauncherInputs&) const = 0;
};

// All kinds, by priority: the first that can serve a kernel does. Tests add kinds of their own.
std::vector<const Schedule*>& schedules();

// Why no schedule can serve the kernel together with the value; null: one can.
const char* why_not_join(const Graph& graph, const Kernel& kernel, const Joining& joining, Dialect dialect);

const Schedule& schedule_for(const Graph& graph, const Kernel& kernel, Dialect dialect);

// Contractions of the host's library. They fuse nothing.
const Schedule& library_schedule();

}  // namespace fusewright
