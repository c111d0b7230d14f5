#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "passes/program.h"

namespace fusewright {
namespace {

struct Pass {
  const char* name;
  void (*run)(Program&);
};

// The whole compilation of a graph, in order. rewrite stands before differentiate so that gradients are taken of the
// cheaper program; both clean-up passes follow it once more for what only gradients contain.
constexpr Pass passes[] = {
    {"reach", reach},       {"decompose", decompose},         {"simplify", simplify},   {"rewrite", rewrite},
    {"simplify", simplify}, {"differentiate", differentiate}, {"simplify", simplify},   {"rewrite", rewrite},
    {"simplify", simplify}, {"remember", remember},           {"simplify", simplify},   {"layout", layout},
    {"fuse", fuse},         {"straighten", straighten},       {"run order", run_order}, {"update", update},
    {"round", round},       {"schedule", schedule},
};

bool dump_wanted() {
  const char* variable = std::getenv("FUSEWRIGHT_DUMP");
  return variable && std::strstr(variable, "passes");
}

}  // namespace

void run_pipeline(Program& program) {
  bool dump = dump_wanted();
  for (const Pass& pass : passes) {
    auto start = std::chrono::steady_clock::now();
    pass.run(program);
    std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    if (dump) {
      std::fprintf(stderr, "-- after %s (%.3f ms)\n%s", pass.name, time.count(), print(program.forward).c_str());
      if (!program.backward.outputs.empty()) std::fprintf(stderr, "-- backward\n%s", print(program.backward).c_str());
    }
#ifndef NDEBUG
    try {
      verify(program.forward);
      if (!program.backward.outputs.empty()) verify(program.backward);
    } catch (const Error& error) {
      fail("after ", pass.name, ": ", error.what());
    }
#endif
  }
}

}  // namespace fusewright
