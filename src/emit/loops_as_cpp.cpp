#include "emit/describe.h"

namespace fusewright {
namespace {

template <class T>
std::string text_of(T number) {
  return std::to_string(number);
}
std::string text_of(bool truth) { return truth ? "true" : "false"; }
std::string text_of(DType dtype) { return "DType::" + std::string(name_of(dtype)); }
std::string text_of(const std::string& text) { return '"' + text + '"'; }
std::string text_of(const CudaLoops::Vector& v) { return "{" + text_of(v.operand) + ", " + text_of(v.axis) + "}"; }
std::string text_of(const KernelLoops::Axis& a) { return "{" + text_of(a.pinned) + ", " + text_of(a.tap) + "}"; }
std::string text_of(const KernelLoops::Operand& o);
template <class T>
std::string text_of(const std::vector<T>& list) {
  std::string text;
  for (size_t i = 0; i < list.size(); ++i) {
    const T item = list[i];
    text += (i ? ", " : "") + text_of(item);
  }
  return "{" + text + "}";
}
std::string text_of(const KernelLoops::Operand& o) {
  return "{" + text_of(o.name) + ", " + text_of(o.dtype) + ", " + text_of(o.store) + ", " + text_of(o.side) + ", " +
         text_of(o.dims) + "}";
}

const char* kind_of(const Loops& nest) {
  switch (nest.kind) {
    case Loops::Kind::pointwise:
      return "pointwise";
    case Loops::Kind::row:
      return "row";
    default:
      return "column";
  }
}

}  // namespace

std::string loops_as_cpp(const KernelLoops& k) {
  std::string text;
  auto set = [&](const char* field, const std::string& value) {
    text += "  k." + std::string(field) + " = " + value + ";\n";
  };
  auto set_list = [&](const char* field, const auto& list) {
    if (!list.empty()) set(field, text_of(list));
  };
  set("name", text_of(k.name));
  if (!k.operands.empty()) {
    text += "  k.operands = {\n";
    for (const KernelLoops::Operand& o : k.operands) text += "      " + text_of(o) + ",\n";
    text += "  };\n";
  }
  set_list("axes", k.axes);
  set_list("numbers", k.numbers);
  set("nest.kind", "Loops::Kind::" + std::string(kind_of(k.nest)));
  set_list("nest.kept", k.nest.kept);
  set_list("nest.reduced", k.nest.reduced);
  set("nest.inner", text_of(k.nest.inner));
  set("nest.stages", text_of(k.nest.stages));
  if (k.cuda.items.empty()) return text;  // a C++ kernel
  set_list("cuda.anchor_axes", k.cuda.anchor_axes);
  set_list("cuda.walked_axes", k.cuda.walked_axes);
  set_list("cuda.sums", k.cuda.sums);
  set_list("cuda.position_side", k.cuda.position_side);
  set_list("cuda.vectors", k.cuda.vectors);
  set("cuda.walking.stages", text_of(k.cuda.walking.stages));
  set_list("cuda.walking.sums", k.cuda.walking.sums);
  set_list("cuda.walking.leaves_sums", k.cuda.walking.leaves_sums);
  set("cuda.walking.final_phase", text_of(k.cuda.walking.final_phase));
  set_list("cuda.items", k.cuda.items);
  set_list("cuda.ahead", k.cuda.ahead);
  set_list("cuda.fixed", k.cuda.fixed);
  set("cuda.can_tile", text_of(k.cuda.can_tile));
  return text;
}

}  // namespace fusewright
