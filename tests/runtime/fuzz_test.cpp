// Random graphs, forward and backward, against the interpreter. FUSEWRIGHT_FUZZ_SEED and FUSEWRIGHT_FUZZ_SECONDS widen
// the search; a failure prints its seed, the graph, and the part of it that is wrong.
#include <chrono>

#include "support/execute.h"

namespace fusewright::testing {
namespace {

class GraphFuzzer {
 public:
  explicit GraphFuzzer(unsigned seed) : random_(seed), b_(graph_) {
    dtype_ = pick(4) ? DType::f64 : DType::f32;
    static const int64_t lengths[] = {1, 2, 3, 4, 6, 7, 8, 12, 33};
    for (const char* name : {"n", "c", "h", "w"}) {
      int64_t length = lengths[pick(std::size(lengths))];
      graph_.hints[name] = sizes_[name] = length;
    }
    int inputs = 1 + pick(3);
    for (int i = 0; i < inputs; ++i) add_input();
    int operations = 2 + pick(9);
    for (int i = 0; i < operations; ++i) add_operation();
    int outputs = 1 + pick(2);
    for (int i = 0; i < outputs; ++i) b_.output(i == 0 ? values_.back() : values_[pick(values_.size())]);
  }

  const Graph& graph() const { return graph_; }
  // Sizes as captured, or others that the same kernels must take.
  std::vector<Array> inputs(bool as_captured) {
    std::map<std::string, int64_t> symbols = graph_.hints;
    static const int64_t lengths[] = {1, 1, 2, 3, 5, 40};
    if (!as_captured)
      for (auto& [name, value] : symbols) value = lengths[pick(std::size(lengths))];
    std::vector<Array> result;
    for (Value v : graph_.inputs) {
      Sizes sizes;
      for (const Size& size : graph_.shape(v))
        sizes.push_back(std::max<int64_t>(0, size.evaluate([&](const std::string& name) { return symbols.at(name); })));
      result.push_back(random_array(dtype_, sizes, random_, -1.5, 1.5));
    }
    return result;
  }
  Layouts layouts() {
    Layouts result;
    for (Value v : graph_.inputs) {
      Layout layout;
      if (pick(3) == 0) {
        layout.order.resize(static_cast<size_t>(graph_.type(v).rank()));
        std::iota(layout.order.begin(), layout.order.end(), 0);
        std::shuffle(layout.order.begin(), layout.order.end(), random_);
      }
      layout.step = pick(4) ? 1 : 2;
      layout.offset = pick(3);
      result.push_back(layout);
    }
    return result;
  }
  std::vector<bool> wrt() {
    std::vector<bool> result;
    for (size_t i = 0; i < graph_.inputs.size(); ++i) result.push_back(pick(4) != 0);
    return result;
  }

 private:
  size_t pick(size_t count) { return random_() % count; }

  Shape random_shape() {
    static const std::vector<std::vector<const char*>> shapes = {{"n", "c", "h", "w"},
                                                                 {"n", "c", "h", "w"},
                                                                 {"n", "c", "h"},
                                                                 {"n", "c"},
                                                                 {"c", "1", "1"},
                                                                 {"c"},
                                                                 {"n", "1"},
                                                                 {"w"},
                                                                 {}};
    Shape shape;
    for (const char* size : shapes[pick(graph_.inputs.empty() ? 4 : shapes.size())]) shape.push_back(Size::parse(size));
    for (Size& size : shape)
      if (graph_.hint(size) == 1) size = 1;
    return shape;
  }
  void add_input() { values_.push_back(b_.input("x" + std::to_string(graph_.inputs.size()), dtype_, random_shape())); }
  Value any() { return values_[values_.size() - 1 - std::min(pick(values_.size()), pick(values_.size()))]; }

  void add_operation() {
    Value x = any();
    try {
      switch (pick(12)) {
        case 0:
        case 1:
        case 2:
          return push(unary(x));
        case 3:
        case 4:
        case 5:
          return push(binary(x, any()));
        case 6:
        case 7:
          return push(reduce(x));
        case 8:
          return push(movement(x));
        case 9:
          return push(window(x));
        case 10:
          return push(composite(x));
        default:
          return push(b_.op(Op::select, {b_.binary(Op::lt, x, x), x, unary(x)}));
      }
    } catch (const Error&) {  // shapes that do not fit: another one
    }
  }
  void push(Value v) {
    if (b_.rank(v) <= 6 && graph_.hint(product(graph_.shape(v))) <= 40000) values_.push_back(v);
  }

  Value bounded(Value x) { return b_.unary(Op::tanh, x); }
  Value unary(Value x) {
    static const Op ops[] = {Op::neg, Op::abs, Op::tanh, Op::sigmoid, Op::erf, Op::sin, Op::square, Op::sign};
    switch (pick(6)) {
      case 0:
        return b_.unary(Op::exp, bounded(x));
      case 1:
        return b_.unary(Op::log1p, b_.unary(Op::square, x));
      case 2:
        return b_.op(Op::leaky_relu, {x}, {{"negative_slope", 0.1 * static_cast<double>(1 + pick(3))}});
      default:
        return b_.unary(ops[pick(std::size(ops))], x);
    }
  }
  Value binary(Value x, Value y) {
    static const Op ops[] = {Op::add, Op::sub, Op::mul, Op::maximum, Op::minimum};
    if (pick(6) == 0) return b_.binary(Op::div, x, b_.binary(Op::add, b_.unary(Op::square, y), b_.constant(1, dtype_)));
    return b_.binary(ops[pick(std::size(ops))], x, y);
  }
  Value reduce(Value x) {
    Ints dims;
    for (int d = 0; d < b_.rank(x); ++d)
      if (pick(2)) dims.push_back(d);
    bool keep = pick(2);
    switch (pick(4)) {
      case 0:
        return b_.op(Op::mean, {x}, {{"dims", dims}, {"keepdim", int64_t{keep}}});
      case 1:
        return b_.reduce(Op::amax, x, dims, keep);
      case 2:
        return b_.op(Op::logsumexp, {x}, {{"dims", dims}, {"keepdim", int64_t{keep}}});
      default:
        return b_.reduce(Op::sum, x, dims, keep);
    }
  }
  Value movement(Value x) {
    Shape shape = b_.shape(x);
    size_t rank = shape.size();
    switch (pick(4)) {
      case 0: {
        Ints dims(rank);
        std::iota(dims.begin(), dims.end(), 0);
        std::shuffle(dims.begin(), dims.end(), random_);
        return b_.permute(x, dims);
      }
      case 1: {  // merge two neighbours
        if (rank < 2) return x;
        size_t at = pick(rank - 1);
        shape[at] = shape[at] * shape[at + 1];
        shape.erase(shape.begin() + static_cast<long>(at) + 1);
        return b_.reshape(x, shape);
      }
      case 2: {  // split one
        if (rank == 0) return x;
        size_t at = pick(rank);
        int64_t parts = 2 + static_cast<int64_t>(pick(2));
        if (graph_.hint(shape[at]) % parts != 0) return x;
        Shape numbers;
        for (size_t d = 0; d < rank; ++d) {
          if (d == at)
            numbers.push_back(parts), numbers.push_back(graph_.hint(shape[d]) / parts);
          else
            numbers.push_back(graph_.hint(shape[d]));
        }
        return b_.reshape(x, numbers);
      }
      default: {
        Shape target = shape;
        const Shape& known = graph_.shape(graph_.inputs[0]);
        for (Size& size : target)
          if (size.is(1) && !known.empty()) size = known[pick(known.size())];
        return b_.expand(x, target);
      }
    }
  }
  Value window(Value x) {
    size_t space = 1 + pick(2);
    Attrs attrs;
    Ints kernel, stride, padding, dilation;
    for (size_t i = 0; i < space; ++i) {
      kernel.push_back(1 + static_cast<int64_t>(pick(3)));
      stride.push_back(1 + static_cast<int64_t>(pick(3)));
      padding.push_back(static_cast<int64_t>(pick(static_cast<size_t>(kernel.back() / 2) + 1)));
      dilation.push_back(1 + static_cast<int64_t>(pick(2)));
    }
    attrs = {
        {"kernel", kernel}, {"stride", stride}, {"padding", padding}, {"ceil_mode", static_cast<int64_t>(pick(2))}};
    if (pick(2)) {
      attrs["dilation"] = dilation;
      return b_.op(Op::max_pool, {x}, attrs);
    }
    attrs["count_include_pad"] = static_cast<int64_t>(pick(2));
    attrs["divisor"] = static_cast<int64_t>(pick(3) == 0 ? 5 : 0);
    return b_.op(Op::avg_pool, {x}, attrs);
  }
  Value weight(const Size& size) { return b_.input("w" + std::to_string(graph_.inputs.size()), dtype_, {size}); }
  Value composite(Value x) {
    const Shape shape = b_.shape(x);
    Attrs attrs = {{"eps", 0.1}, {"has_weight", static_cast<int64_t>(pick(2))}};
    auto norm = [&](Op op, const Size& size) {
      std::vector<Value> operands = {x};
      if (std::get<int64_t>(attrs["has_weight"])) operands.push_back(weight(size));
      return b_.op(op, operands, attrs);
    };
    switch (pick(7)) {
      case 0:
        return b_.op(Op::softmax, {x}, {{"dim", static_cast<int64_t>(pick(std::max<size_t>(shape.size(), 1)))}});
      case 1:
        return b_.op(Op::gelu, {x}, {{"approximate", std::string("none")}});
      case 2:
      case 3:
        if (shape.empty()) return x;
        attrs["axes"] = int64_t{1};
        return norm(pick(2) ? Op::layer_norm : Op::rms_norm, shape.back());
      case 4:
        if (shape.size() < 2) return x;
        return norm(Op::batch_norm, shape[1]);
      case 5:
        if (shape.size() < 2 || graph_.hint(shape[1]) % 2 != 0) return x;
        attrs["groups"] = int64_t{2};
        return norm(Op::group_norm, shape[1]);
      default:
        return b_.op(Op::silu, {x});
    }
  }

  std::mt19937 random_;
  Graph graph_;
  Builder b_;
  DType dtype_;
  std::map<std::string, int64_t> sizes_;
  std::vector<Value> values_;
};

double number_from(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atof(text) : otherwise;
}

// No window is larger than what it looks at, and nothing is too large to interpret.
bool possible(const Graph& graph, const std::vector<Array>& inputs) {
  SymbolBinder binder(graph);
  std::vector<Tensor> tensors;
  for (const Array& array : inputs) {
    if (array.size() == 0) return false;
    tensors.push_back(to_tensor(array));
  }
  std::vector<int64_t> symbols = binder.bind(graph, tensors);
  for (const Node& node : graph.nodes) {
    int64_t count = 1;
    for (const Size& size : node.type.shape) {
      int64_t length = SizeProgram(size, binder.slots()).run(symbols.data());
      if (length <= 0) return false;
      count *= length;
    }
    if (count > 100000) return false;
  }
  return true;
}

using Compile = std::function<std::shared_ptr<const Executable>(const Graph&, const std::vector<bool>&)>;

// A graph, and the inputs that its kernels are wrong for.
struct Finding {
  Graph graph;
  std::vector<bool> wrt;
  std::vector<Array> inputs;
  Layouts layouts;
  std::string problem;  // empty: nothing was found
};

std::string problem_of(const Executable& executable, const Finding& at) {
  return disagreement(executable, at.graph, at.wrt, at.inputs, at.layouts, /*slack: sums may cancel*/ 50);
}

Finding find(unsigned seed, const Compile& compile) {
  GraphFuzzer fuzzer(seed);
  Finding found{fuzzer.graph(), fuzzer.wrt(), {}, {}, ""};
  try {
    const auto executable = compile(found.graph, found.wrt);
    for (bool as_captured : {true, false, false}) {
      found.inputs = fuzzer.inputs(as_captured);
      if (!as_captured && !possible(found.graph, found.inputs)) continue;
      found.layouts = fuzzer.layouts();
      found.problem = problem_of(*executable, found);
      if (!found.problem.empty()) break;
    }
  } catch (const std::exception& error) {
    found.problem = error.what();
  }
  return found;
}

// The same inputs, and only what leads to the first value that is wrong.
Finding reduced(const Finding& found, const Compile& compile) {
  for (Value v = 0; v < static_cast<Value>(found.graph.nodes.size()); ++v) {
    if (found.graph[v].kind() == Kind::source) continue;
    Finding smaller = found;
    smaller.graph.outputs.clear();
    Builder(smaller.graph).output(v);
    remove_dead(smaller.graph);
    try {
      smaller.problem = problem_of(*compile(smaller.graph, smaller.wrt), smaller);
    } catch (const std::exception& error) {
      smaller.problem = error.what();
    }
    if (!smaller.problem.empty()) return smaller;
  }
  return found;
}

std::shared_ptr<const Executable> as_it_is(const Graph& graph, const std::vector<bool>& wrt) {
  return compile(graph, wrt);
}

TEST(Fuzz, RandomGraphsAgreeWithTheInterpreter) {
  auto seconds = [start = std::chrono::steady_clock::now()] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  double limit = number_from("FUSEWRIGHT_FUZZ_SECONDS", 20);
  unsigned first = static_cast<unsigned>(number_from("FUSEWRIGHT_FUZZ_SEED", 1)), seed = first, failures = 0;
  for (; seconds() < limit && failures < 5 &&
         seed < first + static_cast<unsigned>(number_from("FUSEWRIGHT_FUZZ_GRAPHS", 40));
       ++seed) {
    const Finding found = find(seed, as_it_is);
    if (found.problem.empty()) continue;
    ++failures;
    std::string sizes;
    for (const Array& array : found.inputs) sizes += text_of(array.sizes) + " ";
    const Finding small = reduced(found, as_it_is);
    ADD_FAILURE() << "seed " << seed << ": " << found.problem << "\ninputs " << sizes << "\n"
                  << print(found.graph) << "reduced: " << small.problem << "\n"
                  << print(small.graph);
  }
  RecordProperty("graphs", static_cast<int>(seed - first));
  std::printf("%u graphs in %.1f s\n", seed - first, seconds());
}

// Kernels that compute something else than their graph says are what a fault in the generated code comes down to.
TEST(Fuzz, APlantedFaultIsFoundAndReduced) {
  if (backend().cuda) GTEST_SKIP() << "the search is the same as on the CPU";
  for (const auto& [right, wrong] : {std::pair(Op::maximum, Op::minimum), std::pair(Op::sigmoid, Op::tanh)}) {
    const auto has_it = [right = right](const Graph& graph) {
      Graph alive = graph;
      remove_dead(alive);
      return std::any_of(alive.nodes.begin(), alive.nodes.end(), [&](const Node& node) { return node.op == right; });
    };
    const Compile faulty = [right = right, wrong = wrong](Graph graph, const std::vector<bool>& wrt) {
      for (Node& node : graph.nodes)
        if (node.op == right) node.op = wrong;
      return compile(graph, wrt);
    };
    unsigned seed = 1;
    Finding found;
    for (; seed < 100 && found.problem.empty(); ++seed)
      if (has_it(GraphFuzzer(seed).graph())) found = find(seed, faulty);
    ASSERT_FALSE(found.problem.empty()) << name_of(right);
    const Finding small = reduced(found, faulty);
    EXPECT_EQ(small.graph[small.graph.outputs.at(0).value].op, right) << print(small.graph);
  }
}

}  // namespace
}  // namespace fusewright::testing
