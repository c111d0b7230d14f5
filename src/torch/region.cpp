#include "torch/region.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "base/log.h"
#include "runtime/compiler/background.h"
#include "runtime/compiler/compile_error.h"
#include "runtime/cuda/cuda.h"
#include "torch/host.h"

namespace fusewright {

int tensor_index(const Graph& graph, int input) {
  if (graph[graph.inputs[static_cast<size_t>(input)]].op == Op::scalar_input) return -1;
  int index = 0;
  for (int i = 0; i < input; ++i) index += graph[graph.inputs[static_cast<size_t>(i)]].op == Op::input;
  return index;
}

std::vector<bool> pattern(const Graph& graph, at::IntArrayRef wanted) {
  std::vector<bool> wrt(graph.inputs.size());
  for (int64_t i : wanted) wrt.at(static_cast<size_t>(i)) = true;
  return wrt;
}

namespace {

std::mutex regions_mutex;
std::map<int64_t, std::weak_ptr<Region>> regions;

}  // namespace

Region::Region(Graph graph, std::string name, Settings settings)
    : graph_(std::move(graph)),
      name_(std::move(name)),
      settings_(std::move(settings)),
      contest_(graph_, name_),
      has_convolution_(std::any_of(graph_.nodes.begin(), graph_.nodes.end(), [](const Node& node) {
        return node.op == Op::convolution || node.op == Op::conv;
      })) {
  for (size_t i = 0; i < graph_.inputs.size(); ++i)
    if (graph_[graph_.inputs[i]].op == Op::input) tensor_inputs_.push_back(i);
  for (size_t i = 0; i < graph_.outputs.size(); ++i) {
    const Output& output = graph_.outputs[i];
    require(output.into >= 0 || updates_.empty(), name_, ": outputs that replace inputs come last");
    if (output.into >= 0)
      updates_.push_back({i, static_cast<size_t>(tensor_index(graph_, output.into)), output.differentiable});
  }
}

Region::~Region() {
  std::lock_guard<std::mutex> lock(regions_mutex);
  regions.erase(handle_);
}

std::shared_ptr<Region> Region::create(Graph graph, std::string name, Settings settings) {
  auto region = std::make_shared<Region>(std::move(graph), std::move(name), std::move(settings));
  static int64_t next = 0;
  std::lock_guard<std::mutex> lock(regions_mutex);
  region->handle_ = next++;
  regions[region->handle_] = region;
  return region;
}

std::shared_ptr<Region> Region::look_up(int64_t handle) {
  std::lock_guard<std::mutex> lock(regions_mutex);
  auto it = regions.find(handle);
  return it == regions.end() ? nullptr : it->second.lock();
}

std::shared_ptr<Region> Region::find(int64_t handle) {
  std::shared_ptr<Region> region = look_up(handle);
  require(region != nullptr, "region ", handle, " does not exist any more");
  return region;
}

int Region::gpu() const { return settings_.gpu < 0 ? gpu_of(at::kCPU) : settings_.gpu; }

std::shared_ptr<const Executable> Region::executable(const std::vector<bool>& wrt, at::Device device) {
  return executable(wrt, gpu_of(device), device);
}

std::shared_ptr<const Executable> Region::executable(const std::vector<bool>& wrt, int gpu) {
  return executable(wrt, gpu, std::nullopt);
}

std::shared_ptr<const Executable> Region::executable(const std::vector<bool>& wrt, int gpu,
                                                     std::optional<at::Device> runs_on) {
  const bool tf32 = gpu >= 0 && has_convolution_ && allows_tf32_convolution();
  std::lock_guard<std::mutex> lock(mutex_);  // a second caller waits for the first one's compilation
  for (const Compiled& known : executables_)
    if (known.gpu == gpu && known.tf32 == tf32 && known.wrt == wrt) return known.executable;
  // Loading a kernel would break the recording, and leave the user with the driver's words for it.
  const bool recording = gpu >= 0 && runs_on && cuda::available() && cuda::is_capturing(TorchHost(*runs_on).stream());
  TORCH_CHECK(!recording, "fusewright: ", name_,
              " is not compiled yet, and cannot be while a CUDA graph is captured: call the model once before "
              "capturing, with the same gradients wanted");
  Options options;
  options.cuda = gpu >= 0;
  options.device = std::max(gpu, 0);
  options.tf32_convolution = tf32;
  options.tune = settings_.tune;
  try {
    return executables_.emplace_back(Compiled{wrt, gpu, tf32, Executable::compile(graph_, wrt, options)}).executable;
  } catch (const CompileError& error) {
    // One line for the user; the compiler's whole output for whoever asks.
    std::string message = error.what();
    log(LogLevel::debug, message);
    // A failed compilation prints the whole command and more; the list of compilers that were tried is short.
    std::string brief = message.size() < 500 ? message : message.substr(0, message.find('\n'));
    std::replace(brief.begin(), brief.end(), '\n', ' ');
    throw CompileError(name_ + ": " + brief);
  }
}

void Region::prepare(const std::vector<bool>& wrt) const {
  Background::instance().add([handle = handle_, wrt] {
    try {
      // The model may have gone before its turn came.
      if (const std::shared_ptr<Region> region = look_up(handle)) region->executable(wrt, region->gpu());
    } catch (const std::exception&) {
      // The call that needs it tries again, and says what is wrong.
    }
  });
}

bool Region::changes(size_t tensor) const {
  const int input = static_cast<int>(tensor_inputs_[tensor]);
  return graph_.changing.count(input) != 0 ||
         std::any_of(updates_.begin(), updates_.end(), [&](const Update& u) { return u.input == tensor; });
}

}  // namespace fusewright
