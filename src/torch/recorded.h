#pragma once
#include <ATen/record_function.h>

#include <string>
#include <string_view>

namespace fusewright {

// Does the work as a range for the profiler. `name()` is asked only when somebody listens.
template <class Name, class Work>
auto recorded(const Name& name, const Work& work) {
  auto listeners = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  if (!listeners) return work();
  const std::string text = name();
  at::RecordFunction range(std::move(*listeners));
  if (range.isActive()) range.before(std::string_view(text), c10::ArrayRef<const c10::IValue>{});
  return work();
}

}  // namespace fusewright
