// Epilogues behind a loop that is written by hand: in the emulator against float64, and as texts for the real compiler.
#include "codegen/epilogue.h"

#include <cmath>
#include <cstdlib>

#include "emulator/harness.h"
#include "runtime/compiler/compile_error.h"
#include "runtime/nvrtc_places.h"
#include "support/graphs.h"

#include "kernels/prelude.h"

#include "kernels/contract/epilogue.h"

#include "embedded_kernels.h"

namespace fwemu::testing {
namespace {

using fusewright::DType;
using fusewright::Fragment;
using fusewright::Kernel;
using fusewright::Step;

const std::string chain =
    "graph(%x: f32[n, 6, h, w], %m: f32[6, 1, 1]) { %1 = mul(%x, %m) %2 = leaky_relu(%1) {negative_slope = 0.1} "
    "%3 = gelu(%2) {approximate = \"none\"} return %3 }";

// The only kernel of a program, with %x in place of a contraction's result, and the axes of %x: n, c, h, w.
struct Chain {
  explicit Chain(const std::string& text, const std::vector<std::string>& wrt = {})
      : program(fusewright::testing::fused(text, wrt, true)), graph(program.forward) {
    const auto& groups = program.forward_fusion.groups;
    EXPECT_EQ(groups.size(), 1u);
    kernel = groups.at(0).kernel;
    for (size_t s = 0; s < kernel.steps.size(); ++s) {
      if (kernel.steps[s].value == graph.inputs[0]) fragment.accumulator = static_cast<int>(s);
      if (kernel.steps[s].value == graph.outputs[0].value) fragment.result = static_cast<int>(s);
    }
    for (const auto& axes : kernel.steps.at(static_cast<size_t>(fragment.accumulator)).dims) {
      EXPECT_EQ(axes.size(), 1u);
      axis.push_back(axes.at(0));
    }
    fragment.along = axis.at(1);
    fragment.moving = {axis.at(0), axis.at(2), axis.at(3)};
  }
  fusewright::Epilogue written() const { return fusewright::write_epilogue(graph, kernel, fragment); }
  std::string c(int dimension) const { return "at.c" + std::to_string(axis.at(static_cast<size_t>(dimension))); }

  fusewright::Program program;
  const fusewright::Graph& graph;
  Kernel kernel;
  Fragment fragment{-1, -1, -1, {}};
  std::vector<int> axis;
};

std::string header() { return fusewright::embedded_epilogue; }

// Each thread has two neighbouring channels and walks over all pixels, as the fragments of a tile do.
std::string program_of(const Chain& chain) {
  return header() + "namespace {\n" + chain.written().text + R"(
struct Args {
  const float* x;
  float* y;
  EpilogueArgs epilogue;
  int images, channels, height, width;
};
}
extern "C" __global__ void __launch_bounds__(32) run(const Args a) {
  const int channel = 2 * static_cast<int>(fw::thread_index());
  if (channel >= a.channels) return;
  At at{};
  )" + chain.c(1) +
         R"( = channel;
  Held<2> held;
  hold(a.epilogue, at, held);
  for (int pixel = 0; pixel < a.images * a.height * a.width; ++pixel) {
    )" + chain.c(3) +
         " = pixel % a.width;\n    " + chain.c(2) + " = pixel / a.width % a.height;\n    " + chain.c(0) +
         R"( = pixel / a.width / a.height;
    float x[2];
    for (int i = 0; i < 2; ++i) x[i] = a.x[pixel * a.channels + channel + i];
    epilogue(a.epilogue, at, held, x);
    for (int i = 0; i < 2; ++i) a.y[pixel * a.channels + channel + i] = x[i];
  }
}
)";
}

template <int OPERANDS, int NUMBERS>
struct Args {
  const float* x;
  float* y;
  fw::EpilogueArgs<4, OPERANDS, NUMBERS> epilogue;
  int images = 2, channels = 6, height = 3, width = 5;

  // An operand in channels-last order, or one number for each channel.
  void bind(const Chain& chain, int operand, void* data, bool of_channels) {
    epilogue.pointers[operand] = data;
    const int64_t strides[] = {height * width * channels, 1, width * channels, channels};
    for (int d = 0; d < 4; ++d)
      epilogue.strides[operand][chain.axis[static_cast<size_t>(d)]] = of_channels ? d == 1 : strides[d];
  }
};

constexpr size_t elements = 2 * 6 * 3 * 5;
float wave(size_t i) { return 3 * std::sin(0.7f * static_cast<float>(i)); }
double gelu(double x) { return x * std::erfc(-x / std::sqrt(2.0)) / 2; }

TEST(Epilogues, ComputeAChainFromAccumulators) {
  const Chain c(chain);
  const fusewright::Epilogue written = c.written();
  ASSERT_EQ(written.operands.size(), 1u);  // the multiplier; the result is the caller's
  ASSERT_EQ(written.numbers.size(), 1u);   // the slope
  EXPECT_NE(written.text.find("in"), std::string::npos);
  const Program program(program_of(c));
  ASSERT_EQ(program.log(), "");
  const DeviceArray<float> x(elements, wave), y(elements), m(6, [](size_t i) { return 0.5f + wave(i); });
  Args<1, 1> args{x.data(), y.data(), {}};
  args.bind(c, 0, m.data(), true);
  args.epilogue.numbers[0].f32 = 0.1f;
  ASSERT_EQ(program.launch("run", 1, 32, 0, args), "");
  for (size_t i = 0; i < elements; ++i) {
    const double v = double(x[i]) * m[i % 6], expected = gelu(v > 0 ? v : v * double(0.1f));
    EXPECT_NEAR(y[i], expected, 1e-6 * (1 + std::fabs(expected))) << i;
  }
}

// Operands that vary along what a thread walks over are read for each element; what else the kernel writes is stored.
TEST(Epilogues, ReadResidualsAndStoreWhatABackwardNeeds) {
  const Chain c(
      "graph(%x: f32[n, 6, h, w], %m: f32[6, 1, 1], %r: f16[n, 6, h, w]) { %1 = mul(%x, %m) %k = "
      "cast(%r) {dtype = f32} %2 = add(%1, %k) %3 = silu(%2) return %3, %2 }");
  const fusewright::Epilogue written = c.written();
  int multiplier = -1, residual = -1, saved = -1;
  for (size_t o = 0; o < written.operands.size(); ++o) {
    const auto& operand = written.operands[o];
    (operand.store ? saved : operand.value == c.graph.inputs[1] ? multiplier : residual) = static_cast<int>(o);
  }
  ASSERT_TRUE(written.operands.size() == 3 && multiplier >= 0 && residual >= 0 && saved >= 0) << written.text;
  const Program program(program_of(c));
  ASSERT_EQ(program.log(), "");
  const DeviceArray<float> x(elements, wave), y(elements), m(6, [](size_t i) { return 0.5f + wave(i); }),
      kept(elements);
  const DeviceArray<uint16_t> r(elements, [](size_t i) { return 0x3c00 + (i % 3) * 0x0400; });  // 1, 2 and 4
  Args<3, 1> args{x.data(), y.data(), {}};
  args.bind(c, multiplier, m.data(), true);
  args.bind(c, residual, r.data(), false);
  args.bind(c, saved, kept.data(), false);
  ASSERT_EQ(program.launch("run", 1, 32, 0, args), "");
  for (size_t i = 0; i < elements; ++i) {
    const double v = double(x[i]) * m[i % 6] + (1 << i % 3);
    EXPECT_NEAR(kept[i], v, 1e-6 * (1 + std::fabs(v))) << i;
    EXPECT_NEAR(y[i], v / (1 + std::exp(-v)), 1e-6 * (1 + std::fabs(v))) << i;
  }
}

TEST(Epilogues, HoldOperandsThatDoNotMove) {
  Chain c(chain);
  EXPECT_NE(c.written().text.find("held.in"), std::string::npos);
  c.fragment.moving.push_back(c.axis[1]);
  EXPECT_EQ(c.written().text.find("held.in"), std::string::npos);
}

TEST(Epilogues, RefuseWhatIsNotComputedElementByElement) {
  const Chain c("graph(%x: f32[n, 6, h, w]) { %1 = softmax(%x) {dim = 3} return %1 }");
  EXPECT_THROW(c.written(), fusewright::Error);
}

TEST(Epilogues, RealNvrtcTakesThem) {
  const char* chosen = std::getenv("FUSEWRIGHT_REAL_NVRTC_LIBRARY");
  std::string why_not;
  const auto nvrtc = fusewright::cuda::Nvrtc::open(chosen != nullptr ? chosen : "",
                                                   fusewright::testing::package_directories(), 0, why_not);
  if (nvrtc == nullptr) GTEST_SKIP() << why_not;
  const std::string residual =
      "graph(%x: f32[n, 6, h, w], %b: bf16[6, 1, 1], %r: f32[n, 6, h, w]) { %k = cast(%b) {dtype = f32} %1 = add(%x, "
      "%k) %2 = "
      "div(%1, %r) %3 = silu(%2) return %3, %1 }";
  for (const std::string& text : {chain, residual})
    EXPECT_GT(nvrtc->compile(with_headers(program_of(Chain(text))), {"sm_90a", false}).size(), 1000u);
}

}  // namespace
}  // namespace fwemu::testing
