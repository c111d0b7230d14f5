// Writes every launch of generated CUDA kernels, with the one that the rule chooses first and then all that the tuner
// would time: entry, grid, block, cluster, shared memory and a hash of the arguments without addresses. A refactoring
// of src/launch leaves this file as it is:
//
//     kernel_launches before.txt [graphs]      ... change the code, build ...      kernel_launches after.txt [graphs]
//     diff before.txt after.txt
//
// The driver and NVRTC are those of tests/runtime/fakes: nothing is compiled, no memory is touched.
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <thread>

#include "fuzz/random_graph.h"
#include "ir/ir.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/fakes/fakes.h"
#include "support/samples.h"

namespace fusewright::testing {
namespace {

// Addresses that nothing lies at.
class NoMemory {
 public:
  NoMemory() : begin_(mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    require(begin_ != MAP_FAILED, "no addresses");
  }
  // `skew`: bytes behind an address that every vector may have.
  void give(Tensor& tensor, int64_t skew = 0) {
    int64_t bytes = size_of(tensor.dtype);
    for (size_t d = 0; d < static_cast<size_t>(tensor.rank); ++d)
      bytes += std::max<int64_t>(tensor.sizes[d] - 1, 0) * tensor.strides[d] * size_of(tensor.dtype);
    next_ = (next_ + 511) / 512 * 512;
    if (next_ + bytes + skew > static_cast<int64_t>(size)) next_ = 512;
    tensor.data = static_cast<char*>(begin_) + next_ + skew;
    tensor.owner = {tensor.data, [](void*) {}};
    next_ += bytes + skew;
  }

 private:
  static constexpr size_t size = size_t{1} << 44;
  void* begin_;
  int64_t next_ = 512;
} memory;

class NoHost : public Host {
 public:
  void parallel_for(int64_t, int64_t, const std::function<void(int64_t, int64_t)>&) override {}
  void allocate(Tensor& tensor) override { memory.give(tensor); }
  int device() const override { return 0; }
  Tensor call(const LibraryCall& call, const std::vector<Tensor>& operands) override {
    Tensor result;
    result.dtype = operands[0].dtype;
    result.rank = call.rank;
    result.sizes = call.sizes;
    set_strides(result, {});
    allocate(result);
    return result;
  }
  void copy(const Tensor&, Tensor&) override {}
  void clear(Tensor&) override {}
};

std::ofstream out;
size_t launches = 0, calls = 0;
size_t wanted = 0, most = 0;  // candidates

size_t choose(const std::string&, size_t count) {
  most = std::max(most, count);
  return std::min(wanted, count - 1);
}

// The words of fw::KernelArgs that hold addresses are told apart by what else has the same address, not by their bytes.
void record(const FakeLaunch& launch) {
  ++launches;
  size_t axes = 0, operands = 0, numbers = 0, stages = 0;
  const size_t place = launch.source->find("struct Args : fw::KernelArgs<");
  require(place != std::string::npos &&
              std::sscanf(launch.source->c_str() + place, "struct Args : fw::KernelArgs<%zu, %zu, %zu, %zu>", &axes,
                          &operands, &numbers, &stages) == 4,
          "no arguments in the text of ", launch.name);
  const size_t addresses = 2 * operands, partial = addresses + numbers + operands * axes + 3 * axes;
  const size_t bytes = (8 * (partial + 2 * stages + 14) + 12 * (axes + 4) + 24 + 7) / 8 * 8;
  const auto word = [&](size_t i) {
    uint64_t value;
    std::memcpy(&value, launch.arguments + 8 * i, 8);
    return value;
  };
  uint64_t hash = 0;
  std::string buffers;
  for (size_t o = 0; o < operands; ++o) buffers += word(o) == word(operands + o) ? "-" : "b";
  for (size_t i = 0; i < bytes / 8; ++i) {
    const bool address = i < addresses || (i >= partial && i < partial + stages);
    if (!address) mix(hash, word(i));
    if (i >= partial && i < partial + stages) buffers += word(i) == 0 ? "0" : "p";
  }
  char text[512];
  std::snprintf(text, sizeof text,
                "  %s grid %u %u %u block %u cluster %u %u %u shared %u%s bytes %zu %s hash %016lx\n",
                launch.name.c_str(), launch.grid[0], launch.grid[1], launch.grid[2], launch.block, launch.cluster[0],
                launch.cluster[1], launch.cluster[2], launch.shared_bytes, launch.overlaps ? " overlapping" : "", bytes,
                buffers.c_str(), static_cast<unsigned long>(hash));
  out << text;
}

// A tensor for an input: its sizes, with strides of a packed tensor, or transposed, apart, or all 0.
enum class Lies { packed, shifted, transposed, repeated };

void lay_out(Tensor& tensor, Lies how) {
  Order order;
  if (how == Lies::transposed)
    for (int d = tensor.rank; d-- > 0;) order.push_back(d);
  set_strides(tensor, order);
  if (how == Lies::repeated) tensor.strides = {};
  memory.give(tensor, how == Lies::shifted ? size_of(tensor.dtype) : 0);
}

class Recorder {
 public:
  // `name` is for people who read the difference.
  void add(const std::string& name, Graph graph, const std::vector<bool>& wrt,
           const std::vector<std::map<std::string, int64_t>>& sizes) {
    out << "==== " << name << "\n";
    Options options;
    options.cuda = true;
    options.tune = false;
    std::shared_ptr<const Executable> compiled;
    try {
      compiled = Executable::compile(graph, wrt, options);
    } catch (const Error& error) {
      out << "error: " << error.what() << "\n";
      return;
    }
    while (!compiled->complete()) std::this_thread::yield();
    for (const auto& symbols : sizes)
      for (Lies how : {Lies::packed, Lies::shifted, Lies::transposed}) {
        out << "-- " << static_cast<int>(how);
        for (const auto& [symbol, size] : symbols) out << " " << symbol << "=" << size;
        out << "\n";
        try {
          run(*compiled, symbols, how);
        } catch (const Error& error) {
          out << "error: " << error.what() << "\n";
        }
      }
  }

 private:
  void run(const Executable& compiled, const std::map<std::string, int64_t>& symbols, Lies how) {
    const Program& program = compiled.program();
    std::vector<Tensor> inputs;
    std::vector<double> scalars;
    std::vector<Tensor> by_input;
    for (Value v : program.forward.inputs) {
      Tensor& tensor = by_input.emplace_back();
      if (program.forward[v].op == Op::scalar_input) {
        scalars.push_back(1.5);
        continue;
      }
      tensor.dtype = program.forward.dtype(v);
      for (const Size& size : program.forward.shape(v))
        tensor.sizes[static_cast<size_t>(tensor.rank++)] = size.evaluate([&](const std::string& name) {
          const auto found = symbols.find(name);
          return found == symbols.end() ? int64_t{3} : found->second;
        });
      lay_out(tensor, how);
      inputs.push_back(tensor);
    }
    const std::vector<Tensor> outputs = every_way(compiled.forward(), "forward", inputs, scalars);
    if (!compiled.training()) return;
    std::vector<Tensor> saved;
    std::vector<double> saved_scalars;
    for (const Program::Saved& s : program.saved) {
      const auto index = static_cast<size_t>(s.index);
      if (!s.is_input)
        saved.push_back(outputs[index]);
      else if (by_input[index])
        saved.push_back(by_input[index]);
      else
        saved_scalars.push_back(1.5);
    }
    for (int output : program.gradient_of_output) {
      Tensor gradient = outputs[static_cast<size_t>(output)];
      lay_out(gradient, how == Lies::transposed ? Lies::repeated : how);
      saved.push_back(gradient);
    }
    every_way(compiled.backward(), "backward", saved, saved_scalars);
  }

  std::vector<Tensor> every_way(const Plan& plan, const char* what, const std::vector<Tensor>& inputs,
                                const std::vector<double>& scalars) {
    NoHost host;
    out << " " << what << ", by rule\n";
    std::vector<Tensor> outputs = plan.run(host, inputs, scalars);
    ++calls;
    set_candidate_hook(&choose);
    most = 1;
    for (wanted = 0; wanted < most; ++wanted, ++calls) {
      out << " candidate " << wanted << "\n";
      plan.run(host, inputs, scalars);
    }
    set_candidate_hook(nullptr);
    return outputs;
  }
};

struct Case {
  const char *name, *text;
};

// All kinds of kernels, with what they may carry beside: sums on the side, windows, tiles, several passes.
const Case cases[] = {
    {"pointwise",
     "graph(%x: f32[n, c], %m: f32[c], %b: bf16[n, c]) { %1 = mul(%x, %m) %2 = silu(%1) %3 = cast(%b) {dtype = f32} "
     "%4 = add(%2, %3) return %4 }"},
    {"pointwise of halves", "graph(%x: f16[n, c]) { %1 = gelu(%x) {approximate = \"none\"} return %1 }"},
    {"softmax", "graph(%x: f16[n, c]) { %1 = softmax(%x) {dim = 1} return %1 }"},
    {"log_softmax", "graph(%x: f32[n, c]) { %1 = log_softmax(%x) {dim = 1} return %1 }"},
    {"layer_norm",
     "graph(%x: f32[n, c], %w: f32[c], %b: f32[c]) { %1 = layer_norm(%x, %w, %b) {axes = 1, eps = 0.01, has_weight = "
     "1, has_bias = 1} %2 = gelu(%1) {approximate = \"none\"} return %2 }"},
    {"rms_norm of halves",
     "graph(%x: bf16[n, c], %w: bf16[c]) { %1 = rms_norm(%x, %w) {axes = 1, eps = 0.01, has_weight = 1} return %1 }"},
    {"group_norm",
     "graph(%x: f32[n, 32, c], %w: f32[32], %m: f32[32, 1]) { %1 = group_norm(%x, %w) {groups = 4, eps = 0.01, "
     "has_weight = 1} %2 = mul(%1, %m) %3 = silu(%2) return %3 }"},
    {"batch_norm",
     "graph(%x: f32[n, c], %w: f32[c], %b: f32[c]) { %1 = batch_norm(%x, %w, %b) {eps = 0.01, has_weight = 1, "
     "has_bias = 1} %2 = silu(%1) return %2 }"},
    {"batch_norm of halves",
     "graph(%x: bf16[n, c], %w: f32[c]) { %1 = batch_norm(%x, %w) {eps = 0.01, has_weight = 1} %2 = silu(%1) return "
     "%2 }"},
    {"column of doubles",
     "graph(%x: f64[n, c], %k: b8[n, c]) { %1 = mul(%x, %x) %2 = select(%k, %1, %x) %3 = sum(%2) {dims = (0), keepdim "
     "= 1} %4 = div(%2, %3) return %4 }"},
    {"row of doubles",
     "graph(%x: f64[n, c]) { %1 = mul(%x, %x) %2 = sum(%1) {dims = (1), keepdim = 1} %3 = div(%x, %2) return %3 }"},
    {"sum of rows", "graph(%x: f32[n, c]) { %1 = exp(%x) %2 = sum(%1) {dims = (1), keepdim = 0} return %2 }"},
    {"sum of columns", "graph(%x: f32[n, c]) { %1 = exp(%x) %2 = sum(%1) {dims = (0), keepdim = 0} return %2 }"},
    {"images",
     "graph(%x: f32[n, c, 14, 14], %w: f32[c]) { %1 = batch_norm(%x, %w) {eps = 0.01, has_weight = 1} %2 = "
     "leaky_relu(%1) {negative_slope = 0.2} %3 = max_pool(%2) {kernel = (2, 2), stride = (2, 2), padding = (0, 0), "
     "dilation = (1, 1), ceil_mode = 0} return %3 }"},
    {"totals",
     "graph(%x: f32[n, 3, c]) { %1 = mean(%x) {dims = (2), keepdim = 1} %2 = sin(%x) %3 = sum(%2) {dims = (0, 2), "
     "keepdim = 0} %4 = mul(%x, %1) %5 = sin(%4) %6 = sum(%5) {dims = (0, 2), keepdim = 0} return %3, %5, %6 }"},
    {"rows of known length",
     "graph(%x: f32[n, 96], %w: f32[96]) { %1 = layer_norm(%x, %w) {axes = 1, eps = 0.01, has_weight = 1} %2 = "
     "silu(%1) return %2 }"},
    {"long rows of known length", "graph(%x: f32[n, 32000]) { %1 = log_softmax(%x) {dim = 1} return %1 }"},
    {"mixed layouts",
     "graph(%x: f32[n, c], %y: f32[c, n]) { %1 = permute(%y) {dims = (1, 0)} %2 = mul(%x, %1) "
     "return %2 }"},
};

int run(int count, char** arguments) {
  require(count == 2 || count == 3, "usage: kernel_launches FILE [GRAPHS]");
  setenv("FUSEWRIGHT_CUDA_LIBRARY", FAKE_CUDA, 1);
  setenv("FUSEWRIGHT_NVRTC_LIBRARY", FAKE_NVRTC, 1);
  setenv("FUSEWRIGHT_CACHE_DIR", "/dev/null/none", 1);
  out.open(arguments[1]);
  require(out.good(), "cannot write ", arguments[1]);
  void* library = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  require(library != nullptr, "no driver of the tests' own");
  auto& cuda = *reinterpret_cast<FakeCuda* (*)()>(dlsym(library, "fake_cuda"))();
  cuda.recording = false;
  cuda.launched = &record;

  Recorder recorder;
  const int64_t rows[] = {1, 2, 7, 64, 1000, 70000}, columns[] = {1, 3, 32, 96, 1000, 1024, 2050, 6144, 40001, 65536};
  for (const Case& c : cases) {
    Graph graph = parse(c.text);
    for (const auto& [rows_at_capture, columns_at_capture] : {std::pair{64, 1024}, {1000, 96}, {5, 50304}}) {
      graph.hints = {{"n", rows_at_capture}, {"c", columns_at_capture}};
      std::vector<std::map<std::string, int64_t>> sizes;
      for (int64_t n : rows)
        for (int64_t m : columns) sizes.push_back({{"n", n}, {"c", m}});
      recorder.add(std::string("case ") + c.name + " " + std::to_string(columns_at_capture), graph,
                   std::vector<bool>(graph.inputs.size(), true), sizes);
    }
  }
  std::mt19937 random(5);
  const auto others = [&](const std::map<std::string, int64_t>& hints) {
    const int64_t lengths[] = {1, 2, 3, 8, 33, 64, 100, 256};
    std::vector<std::map<std::string, int64_t>> sizes{hints};
    for (int i = 0; i < 2; ++i) {
      sizes.push_back(hints);
      for (auto& [name, size] : sizes.back()) size = lengths[random() % std::size(lengths)];
    }
    return sizes;
  };
  for (const Sample& sample : samples()) {
    Graph graph = parse(sample.text);
    for (const auto& [name, size] : sample_sizes) graph.hints[name] = size;
    recorder.add(std::string("sample ") + sample.op, graph,
                 std::vector<bool>(graph.inputs.size(), sample.gradient != Sample::Gradient::refused),
                 others(graph.hints));
  }
  const int graphs = count == 3 ? std::atoi(arguments[2]) : 100;
  for (int seed = 1; seed <= graphs; ++seed) {
    const RandomGraph graph(static_cast<unsigned>(seed), true);
    recorder.add("random " + std::to_string(seed), graph.graph(), graph.wrt(), others(graph.graph().hints));
  }
  std::cout << "kernel_launches: " << launches << " launches of " << calls << " calls\n";
  return 0;
}

}  // namespace
}  // namespace fusewright::testing

int main(int count, char** arguments) {
  try {
    return fusewright::testing::run(count, arguments);
  } catch (const std::exception& error) {
    std::cerr << "kernel_launches: " << error.what() << "\n";
    return 2;
  }
}
