#include "codegen/epilogue.h"

#include <algorithm>
#include <map>

#include "codegen/element.h"
#include "codegen/lines.h"

namespace fusewright {

using std::to_string;
using Role = Step::Role;

namespace {

class EpilogueWriter : Lines, Place {
 public:
  EpilogueWriter(const Graph& graph, const Kernel& kernel, const Fragment& fragment)
      : graph_(graph), kernel_(kernel), fragment_(fragment), element_(graph, kernel, Dialect::cuda) {
    const std::vector<int> cone = element_.needed({fragment.accumulator}, [](int) { return false; });
    auto is_in_front = [&](int s) {
      return s != fragment.accumulator && std::find(cone.begin(), cone.end(), s) != cone.end();
    };
    std::vector<int> results{fragment.result};
    for (int s = 0; s < element_.count(); ++s)
      if (element_.step(s).stored && s != fragment.result && !is_in_front(s)) results.push_back(s);
    steps_ = element_.needed(results, [&](int s) { return s == fragment.accumulator; });
    for (int s : steps_) {
      const Step& step = element_.step(s);
      const bool pointwise = step.role == Role::compute || step.role == Role::load || step.role == Role::iota;
      require(pointwise && (step.role != Role::load || !step.overwritten), graph_.describe(step.value),
              ": is not computed element by element behind a contraction");
      if (step.role == Role::load) load_of_[s] = add_operand(s, false);
    }
    for (int s : results) {
      if (s == fragment.result) continue;
      require(is_of_every_element(s), graph_.describe(element_.step(s).value), ": has fewer elements than its kernel");
      store_of_[s] = add_operand(s, true);
    }
    require(element_.reg(fragment.result) == element_.reg(fragment.accumulator),
            graph_.describe(element_.step(fragment.result).value), ": is of another type than the accumulators");
  }

  Epilogue run() {
    auto at_least_one = [](size_t n) { return to_string(std::max<size_t>(n, 1)); };
    line("using EpilogueArgs = fw::EpilogueArgs<", at_least_one(kernel_.axes.size()), ", ",
         at_least_one(operands_.size()), ", ", at_least_one(element_.numbers().size()), ">;");
    open("struct At");
    for (size_t a = 0; a < kernel_.axes.size(); ++a) line("fw::i64 c", to_string(a), ";");
    close(";");
    line();
    write_held();
    write_function();
    return {std::move(out_), std::move(operands_), element_.numbers()};
  }

 private:
  // ---- the place -------------------------------------------------------------------------------------------

  std::string given(int) const override { return ""; }
  std::string load(int s) const override {
    if (is_held(s)) return "held.in" + to_string(s) + (is_of_lane(s) ? "[i]" : "");
    return read(s);
  }
  std::string coordinate(int a) const override {
    const std::string first = "at.c" + to_string(a);
    return a == fragment_.along ? "(" + first + " + i)" : first;
  }

  // ---- steps -----------------------------------------------------------------------------------------------

  bool varies_along(int s, int a) const { return varies(element_.step(s), a); }
  bool is_of_lane(int s) const { return s == fragment_.accumulator || varies_along(s, fragment_.along); }
  bool is_of_every_element(int s) const {
    for (int a = 0; a < static_cast<int>(kernel_.axes.size()); ++a)
      if (varies_along(fragment_.accumulator, a) && !varies_along(s, a)) return false;
    return true;
  }
  bool is_held(int s) const {
    return element_.step(s).role == Role::load &&
           std::none_of(fragment_.moving.begin(), fragment_.moving.end(), [&](int a) { return varies_along(s, a); });
  }

  // ---- operands --------------------------------------------------------------------------------------------

  int add_operand(int s, bool store) {
    const Step& step = element_.step(s);
    operands_.push_back({step.value, store, graph_.dtype(step.value), step.dims});
    return static_cast<int>(operands_.size()) - 1;
  }
  // Where the element of step s lies.
  std::string address(int s, int number) const {
    const std::string o = to_string(number);
    const KernelCode::Operand& operand = operands_[static_cast<size_t>(number)];
    std::string offset;
    for (int a = 0; a < static_cast<int>(kernel_.axes.size()); ++a)
      if (varies_along(s, a)) offset += " + " + coordinate(a) + " * a.strides[" + o + "][" + to_string(a) + "]";
    return std::string("static_cast<") + (operand.store ? "" : "const ") + storage_type(operand.dtype) +
           "*>(a.pointers[" + o + "])" + offset;
  }
  std::string read(int s) const { return "fw::load(" + address(s, load_of_.at(s)) + ", fw::read_only)"; }

  // ---- text ------------------------------------------------------------------------------------------------

  void open_lanes() {
    out_ += "#pragma unroll\n";
    open("for (int i = 0; i < V; ++i)");
  }

  void write_held() {
    line("template <int V>");
    open("struct Held");
    for (int s : steps_)
      if (is_held(s)) line(storage_type(element_.dtype(s)), " in", to_string(s), is_of_lane(s) ? "[V];" : ";");
    close(";");
    line("template <int V>");
    open("FW_FN void hold(const EpilogueArgs& a, const At& at, Held<V>& held)");
    line("(void)a, (void)at, (void)held;");
    for (bool lanes : {false, true}) {
      if (lanes) open_lanes();
      for (int s : steps_)
        if (is_held(s) && is_of_lane(s) == lanes)
          line("held.in", to_string(s), lanes ? "[i]" : "", " = ", read(s), ";");
      if (lanes) close();
    }
    close();
    line();
  }

  void write_function() {
    const std::string x = to_string(fragment_.accumulator);
    line("template <int V>");
    open("FW_FN void epilogue(const EpilogueArgs& a, const At& at, const Held<V>& held, ",
         element_.reg(fragment_.accumulator), " (&x)[V])");
    line("(void)a, (void)at, (void)held;");
    if (fragment_.along < 0) line("static_assert(V == 1, \"elements have no neighbours\");");
    for (const std::string& number : element_.declared_numbers(*this)) line(number);
    for (int s : steps_)
      if (!is_of_lane(s)) line(element_.declaration(s, *this));
    open_lanes();
    line("const ", element_.reg(fragment_.accumulator), " v", x, " = ", element_.rounded(fragment_.accumulator, "x[i]"),
         ";");
    for (int s : steps_)
      if (is_of_lane(s)) line(element_.declaration(s, *this));
    for (const auto& [s, operand] : store_of_) line("*(", address(s, operand), ") = ", element_.stored(s, *this), ";");
    line("x[i] = ", element_.use(fragment_.result, *this), ";");
    close();
    close();
  }

  const Graph& graph_;
  const Kernel& kernel_;
  const Fragment& fragment_;
  const Element element_;
  std::vector<int> steps_;  // that the function computes
  std::vector<KernelCode::Operand> operands_;
  std::map<int, int> load_of_, store_of_;  // the operand of a step
};

}  // namespace

Epilogue write_epilogue(const Graph& graph, const Kernel& kernel, const Fragment& fragment) {
  return EpilogueWriter(graph, kernel, fragment).run();
}

}  // namespace fusewright
