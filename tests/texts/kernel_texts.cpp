// Writes the text of every kernel, with what launches it, for the samples of all operations and many random graphs.
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
      out_ << "-- kernel " << kernel.name << " (" << kernel.schedule << ")\n" << kernel.loops;
      for (const std::string& formula : kernel.formulas) out_ << "formula " << formula << "\n";
      for (const std::string& size : kernel.sizes) out_ << "axis " << size << "\n";
      for (const DescribedKernel::Variant& variant : kernel.variants) {
        out_ << "variant " << variant.fields << " text " << variant.text << "\n" << variant.defines;
        for (const std::string& entry : variant.entries) out_ << "entry " << entry << "\n";
      }
      for (const std::string& text : kernel.texts) out_ << text << "\n";
    }
  }

  std::ofstream out_;
  size_t kernels_ = 0;
};

int run(int count, char** arguments) {
  require(count == 2 || count == 3, "usage: kernel_texts FILE [GRAPHS]");
  Writer writer(arguments[1]);
  for (const Sample& sample : samples()) {
    Graph graph = parse(sample.text);
    for (const auto& [name, size] : sample_sizes) graph.hints[name] = size;
    writer.add(std::string("sample ") + sample.op, graph,
               std::vector<bool>(graph.inputs.size(), sample.gradient != Sample::Gradient::refused));
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
