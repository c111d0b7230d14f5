#include "codegen/kernel_code.h"
#include "ir/error.h"

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

// As C++ names it.
const char* enumerator(Loops::Kind kind) {
  switch (kind) {
    case Loops::Kind::pointwise:
      return "pointwise";
    case Loops::Kind::row:
      return "row";
    case Loops::Kind::column:
      return "column";
  }
  fail("a kind of loops without a name");
}

class Table {
 public:
  void set(const char* field, const std::string& value) {
    text_ += "  k." + std::string(field) + " = " + value + ";\n";
  }
  template <class List>
  void set_list(const char* field, const List& list) {
    if (!list.empty()) set(field, text_of(list));
  }
  void set_operands(const std::vector<KernelLoops::Operand>& operands) {
    if (operands.empty()) return;
    text_ += "  k.operands = {\n";
    for (const KernelLoops::Operand& o : operands) text_ += "      " + text_of(o) + ",\n";
    text_ += "  };\n";
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

Table table_of_interface(const KernelLoops& k) {
  Table table;
  table.set("name", text_of(k.name));
  table.set_operands(k.operands);
  table.set_list("axes", k.axes);
  table.set_list("numbers", k.numbers);
  return table;
}

}  // namespace

std::string interface_as_cpp(const KernelLoops& k) { return table_of_interface(k).take(); }

std::string loops_as_cpp(const KernelLoops& k) {
  Table table = table_of_interface(k);
  table.set("nest.kind", "Loops::Kind::" + std::string(enumerator(k.nest.kind)));
  table.set_list("nest.kept", k.nest.kept);
  table.set_list("nest.reduced", k.nest.reduced);
  table.set("nest.inner", text_of(k.nest.inner));
  table.set("nest.stages", text_of(k.nest.stages));
  if (k.cuda.items.empty()) return table.take();  // a C++ kernel
  table.set_list("cuda.anchor_axes", k.cuda.anchor_axes);
  table.set_list("cuda.walked_axes", k.cuda.walked_axes);
  table.set_list("cuda.sums", k.cuda.sums);
  table.set_list("cuda.position_side", k.cuda.position_side);
  table.set_list("cuda.vectors", k.cuda.vectors);
  table.set("cuda.walking.stages", text_of(k.cuda.walking.stages));
  table.set_list("cuda.walking.sums", k.cuda.walking.sums);
  table.set_list("cuda.walking.leaves_sums", k.cuda.walking.leaves_sums);
  table.set("cuda.walking.final_phase", text_of(k.cuda.walking.final_phase));
  table.set_list("cuda.items", k.cuda.items);
  table.set_list("cuda.ahead", k.cuda.ahead);
  table.set_list("cuda.fixed", k.cuda.fixed);
  table.set("cuda.can_tile", text_of(k.cuda.can_tile));
  return table.take();
}

}  // namespace fusewright
