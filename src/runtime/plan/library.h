#pragma once
#include "runtime/plan/launcher.h"

namespace fusewright {

// A contraction in the host's library.
class LibraryLauncher : public Launcher {
 public:
  LibraryLauncher(const Graph& graph, const Kernel& kernel, const Schedule& schedule);

  Value library_call() const override { return code().operands.back().value; }
  bool makes_result() const override { return true; }
  Tensor make_result(Host& host, const std::vector<const Tensor*>& operands, TuningProgress* progress) const override;

 protected:
  const LibraryCall& call() const { return call_; }  // without sizes
  // `exactly`: in float32's full accuracy, whatever the user allows.
  Tensor library_result(Host& host, const std::vector<const Tensor*>& operands, bool exactly) const;

 private:
  LibraryCall call_;
};

}  // namespace fusewright
