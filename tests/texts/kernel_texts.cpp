// Writes the text of every kernel, with what launches it, for the samples of all operations, chains around
// contractions and many random graphs.
// A refactoring of the compiler's later stages leaves this file as it is:
//
//     kernel_texts before.txt [graphs]      ... change the code, build ...      kernel_texts after.txt [graphs]
//     diff before.txt after.txt
//
// Nothing is compiled and no GPU is needed: 300 graphs take half a minute.
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "emit/describe.h"
#include "fuzz/random_graph.h"
#include "ir/ir.h"
#include "support/samples.h"

namespace fusewright::testing {
namespace {

class Writer {
 public:
  explicit Writer(const std::string& path) : out_(path) { require(out_.good(), "cannot write ", path); }

  size_t kernels() const { return kernels_; }

  // `name` is for people who read the difference.
  void add(const std::string& name, const Graph& graph, const std::vector<bool>& wrt) {
    for (bool cuda : {false, true}) {
      Program program;
      program.forward = graph;
      program.wrt = wrt;
      program.options.cuda = cuda;
      program.options.tf32_convolution = cuda;
      out_ << "==== " << name << (cuda ? ", cuda\n" : ", c++\n");
      try {
        run_pipeline(program);
        add_plan(program.forward, program.forward_fusion, cuda);
        if (program.training()) add_plan(program.backward, program.backward_fusion, cuda);
      } catch (const Error& error) {
        out_ << "error: " << error.what() << "\n";
      }
    }
  }

 private:
  void add_plan(const Graph& graph, const Fusion& fusion, bool cuda) {
    const Plan plan(graph, fusion, cuda);
    const DescribedPlan described = describe(plan, fusion);
    for (const DescribedPlan::Step& step : described.steps)
      if (step.call >= 0) out_ << "-- library " << graph.describe(step.call) << "\n";
    for (const Stop& stop : fusion.stops) out_ << "-- stop " << stop.reason << " " << stop.value << "\n";
    for (const DescribedKernel& kernel : described.kernels) {
      ++kernels_;
      out_ << "-- kernel " << kernel.name << " (" << kernel.schedule << ")\n" << kernel.table;
      for (const std::string& formula : kernel.formulas) out_ << "formula " << formula << "\n";
      for (const std::string& size : kernel.sizes) out_ << "axis " << size << "\n";
      for (const EmittedKernel::Variant& variant : kernel.variants) {
        if (variant.fields.empty()) continue;  // a C++ kernel has one alone
        out_ << "variant " << variant.fields << " text " << variant.text << "\n" << variant.defines;
        for (const std::string& entry : variant.entries) out_ << "entry " << entry << "\n";
      }
      for (const std::string& text : kernel.texts) out_ << text << "\n";
    }
  }

  std::ofstream out_;
  size_t kernels_ = 0;
};

// Chains around contractions, for each floating type.
std::map<std::string, std::string> chains() {
  const std::string conv =
      " {dilation = (1, 1), groups = 1, output_padding = (0, 0), padding = (1, 1), stride = (1, 1), transposed = 0} ";
  const std::string volume =
      " {dilation = (1, 1, 1), groups = 1, output_padding = (1, 1, 1), padding = (1, 1, 1), stride = (2, 2, 2), "
      "transposed = 1} ";
  return {
      {"linear norm",
       "graph(%x: T[n, 64], %w: T[64, 96], %b: T[96], %m: T[96]) { %1 = matmul(%x, %w, %b) %2 = group_norm(%1, %m) "
       "{groups = 4, eps = 0.01, has_weight = 1} %3 = silu(%2) %4 = mul(%3, %m) %5 = silu(%4) return %5 }"},
      {"linear batch norm",
       "graph(%x: T[n, 64], %w: T[64, 96], %b: T[96], %m: T[96]) { %1 = matmul(%x, %w, %b) %2 = batch_norm(%1, %m) "
       "{eps = 0.01, has_weight = 1} %3 = add(%2, %b) %4 = silu(%3) return %4 }"},
      {"linear linear",
       "graph(%x: T[n, 64], %w: T[64, 96], %u: T[96, 32]) { %1 = matmul(%x, %w) %2 = gelu(%1) {approximate = \"none\"} "
       "%3 = matmul(%2, %u) %4 = softmax(%3) {dim = 1} %5 = sum(%4) {dims = (0), keepdim = 0} return %4, %5 }"},
      {"conv chain",
       "graph(%x: T[8, 16, 32, 32], %w: T[32, 16, 3, 3], %m: T[32, 1, 1]) { %1 = conv(%x, %w)" + conv +
           "%2 = mul(%1, %m) %3 = leaky_relu(%2) {negative_slope = 0.1} %4 = gelu(%3) {approximate = \"none\"} "
           "return %4 }"},
      {"conv norm conv",
       "graph(%x: T[8, 16, 32, 32], %w: T[32, 16, 3, 3], %u: T[32, 32, 3, 3], %m: T[32]) { %1 = conv(%x, %w)" + conv +
           "%2 = batch_norm(%1, %m) {eps = 0.01, has_weight = 1} %3 = relu(%2) %4 = conv(%3, %u)" + conv +
           "%5 = group_norm(%4, %m) {groups = 8, eps = 0.01, has_weight = 1} %6 = add(%5, %3) return %6 }"},
      {"transposed volume, pooled",
       "graph(%x: T[2, 16, 8, 8, 8], %w: T[16, 32, 3, 3, 3], %m: T[32, 1, 1, 1]) { %1 = conv(%x, %w)" + volume +
           "%2 = leaky_relu(%1) {negative_slope = 0.2} %3 = mul(%2, %m) %4 = max_pool(%3) {kernel = (2, 2, 2), stride "
           "= (2, 2, 2), padding = (0, 0, 0), dilation = (1, 1, 1), ceil_mode = 0} return %4 }"},
  };
}

std::string with_type(std::string text, const std::string& type) {
  for (size_t at = 0; (at = text.find(": T[", at)) != std::string::npos;) text.replace(at, 3, ": " + type);
  return text;
}

int run(int count, char** arguments) {
  require(count == 2 || count == 3, "usage: kernel_texts FILE [GRAPHS]");
  Writer writer(arguments[1]);
  for (const Sample& sample : samples()) {
    Graph graph = parse(sample.text);
    for (const auto& [name, size] : sample_sizes) graph.hints[name] = size;
    writer.add(std::string("sample ") + sample.op, graph,
               std::vector<bool>(graph.inputs.size(), sample.gradient != Sample::Gradient::refused));
  }
  for (const auto& [name, text] : chains())
    for (const char* type : {"f32", "f16", "bf16", "f64"}) {
      Graph graph = parse(with_type(text, type));
      graph.hints["n"] = 256;
      writer.add("chain " + name + " " + type, graph, std::vector<bool>(graph.inputs.size(), true));
    }
  const int graphs = count == 3 ? std::atoi(arguments[2]) : 300;
  for (int seed = 1; seed <= graphs; ++seed) {
    const RandomGraph random(static_cast<unsigned>(seed), seed % 2 == 0);
    writer.add("random " + std::to_string(seed), random.graph(), random.wrt());
  }
  std::cout << "kernel_texts: " << writer.kernels() << " kernels\n";
  return 0;
}

}  // namespace
}  // namespace fusewright::testing

int main(int count, char** arguments) {
  try {
    return fusewright::testing::run(count, arguments);
  } catch (const std::exception& error) {
    std::cerr << "kernel_texts: " << error.what() << "\n";
    return 2;
  }
}
