// The kernels of convolutions, all launches, against float64.
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <random>

#include "emulator/harness.h"
#include "runtime/contraction/convolution_kernels.h"

namespace fwemu::testing {
namespace {

using fusewright::ConvolutionDevice;
using fusewright::ConvolutionKernels;
using fusewright::ConvolutionPlan;
using fusewright::DType;
using fusewright::LibraryCall;
using fusewright::Tensor;
using fusewright::WeightGradientPlan;
using Sizes = std::vector<int64_t>;

// Numbers of float32 in memory of the emulated device, row-major or channels last.
struct Images {
  Sizes sizes, strides;
  DeviceArray<float> data;

  template <class Make>
  Images(Sizes of, bool channels_last, Make make) : sizes(std::move(of)), strides(sizes.size()), data(count(sizes)) {
    int64_t stride = 1;
    if (channels_last) {
      strides[1] = 1;
      stride = sizes[1];
    }
    for (size_t d = sizes.size(); d-- > 0;) {
      if (channels_last && d == 1) continue;
      strides[d] = stride;
      stride *= sizes[d];
    }
    for (size_t i = 0; i < data.size(); ++i) data[i] = make(i);
  }

  static size_t count(const Sizes& sizes) {
    int64_t n = 1;
    for (int64_t size : sizes) n *= size;
    return static_cast<size_t>(n);
  }
  // Sizes of three axes in space, and where an element lies.
  int64_t along(size_t axis) const { return axis + sizes.size() < 5 ? 1 : sizes[axis + sizes.size() - 3]; }
  size_t place(int64_t n, int64_t c, const int64_t (&at)[3]) const {
    int64_t place = n * strides[0] + c * strides[1];
    for (size_t d = 0; d < 3; ++d)
      if (d + sizes.size() >= 5) place += at[d] * strides[d + sizes.size() - 3];
    return static_cast<size_t>(place);
  }
  Tensor tensor() const {
    Tensor t;
    t.data = data.data();
    t.rank = static_cast<int>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), t.sizes.begin());
    std::copy(strides.begin(), strides.end(), t.strides.begin());
    return t;
  }
};

int64_t option(const std::vector<int64_t>& values, size_t axis) {
  return axis + values.size() < 3 ? -1 : values[axis + values.size() - 3];
}

// Calls visit(n, result channel, result position, operand channel, operand position, weight place) for each term of
// an ordinary convolution: the result of stride, padding and dilation.
template <class Visit>
void for_terms(const LibraryCall& call, const Images& dense, const Images& wide, const Images& w, Visit visit) {
  const int64_t rows = w.sizes[0] / call.groups, channels = w.sizes[1];
  int64_t o[3], k[3], i[3];
  for (int64_t n = 0; n < dense.sizes[0]; ++n)
    for (int64_t group = 0; group < call.groups; ++group)
      for (int64_t row = 0; row < rows; ++row)
        for (o[0] = 0; o[0] < dense.along(0); ++o[0])
          for (o[1] = 0; o[1] < dense.along(1); ++o[1])
            for (o[2] = 0; o[2] < dense.along(2); ++o[2])
              for (k[0] = 0; k[0] < w.along(0); ++k[0])
                for (k[1] = 0; k[1] < w.along(1); ++k[1])
                  for (k[2] = 0; k[2] < w.along(2); ++k[2]) {
                    bool inside = true;
                    for (size_t d = 0; d < 3; ++d) {
                      const bool flat = option(call.stride, d) < 0;
                      i[d] = flat ? 0
                                  : o[d] * option(call.stride, d) - option(call.padding, d) +
                                        k[d] * option(call.dilation, d);
                      inside = inside && i[d] >= 0 && i[d] < wide.along(d);
                    }
                    if (!inside) continue;
                    for (int64_t channel = 0; channel < channels; ++channel)
                      visit(dense.place(n, group * rows + row, o), wide.place(n, group * channels + channel, i),
                            w.place(group * rows + row, channel, k));
                  }
}

struct Case {
  LibraryCall::Kind kind = LibraryCall::Kind::conv;
  bool transposed = false;
  Sizes dense, wide, weight;  // of the result and the operand of the ordinary convolution; of the weight
  std::vector<int64_t> stride, padding, dilation;
  int64_t groups = 1;
  bool last[3] = {false, false, false};  // dense, wide and weight lie in channels last
  int shape = -1;
  bool hopper = false;
  bool bias = false;
};

class Convolutions : public ::testing::Test {
 protected:
  static const Program& program(ConvolutionKernels::Kind kind, size_t shape) {
    static std::map<std::pair<int, size_t>, std::unique_ptr<Program>> programs;
    auto& made = programs[{kind, shape}];
    if (!made) made = std::make_unique<Program>(ConvolutionKernels::source(DType::f32, kind, shape));
    return *made;
  }

  template <class Make>
  void fill(const Case& c, Make make) {
    dense = std::make_unique<Images>(c.dense, c.last[0], [&](size_t i) { return make(0, i); });
    wide = std::make_unique<Images>(c.wide, c.last[1], [&](size_t i) { return make(1, i); });
    weight = std::make_unique<Images>(c.weight, c.last[2], [&](size_t i) { return make(2, i); });
  }

  // Runs the case on what was filled in. Returns the largest error of an element, as a part of the sum of its terms'
  // magnitudes.
  double error(const Case& c) {
    LibraryCall call;
    call.kind = c.kind;
    call.transposed = c.transposed;
    call.groups = c.groups;
    call.stride = c.stride;
    call.padding = c.padding;
    call.dilation = c.dilation;
    // Which of the three is computed, and in which order the others are operands.
    const bool of_weight = c.kind == LibraryCall::Kind::conv_weight_grad;
    const bool spread = !of_weight && c.transposed != (c.kind == LibraryCall::Kind::conv_input_grad);
    Images& to = of_weight ? *weight : spread ? *wide : *dense;
    const Images& first = of_weight ? (c.transposed ? *wide : *dense) : spread ? *dense : *wide;
    const Images& second = of_weight ? (c.transposed ? *dense : *wide) : *weight;
    for (size_t i = 0; i < to.data.size(); ++i) to.data[i] = std::nanf("");
    const Tensor a = first.tensor(), b = second.tensor(), result = to.tensor();
    std::vector<const Tensor*> operands{&a, &b};
    std::vector<double> sums(to.data.size(), 0.0), sizes(to.data.size(), 0.0);
    std::unique_ptr<Images> bias;
    Tensor given_bias;
    if (c.bias) {
      bias = std::make_unique<Images>(Sizes{to.sizes[1]}, false, [&](size_t) { return normal(); });
      given_bias = bias->tensor();
      operands.push_back(&given_bias);
      for (size_t i = 0; i < sums.size(); ++i) {
        const int64_t channel = static_cast<int64_t>(i) / to.strides[1] % to.sizes[1];
        sums[i] = bias->data[static_cast<size_t>(channel)];
        sizes[i] = std::fabs(sums[i]);
      }
    }
    const ConvolutionDevice device{4, c.hopper ? 227 << 10 : 96 << 10, c.hopper, c.shape};
    std::unique_ptr<DeviceArray<char>> workspace;
    const auto aligned = [&](int64_t bytes) {
      workspace = std::make_unique<DeviceArray<char>>(static_cast<size_t>(bytes) + 1024);
      char* at = workspace->data();
      while (reinterpret_cast<uintptr_t>(at) % 1024 != 0) ++at;
      return at;
    };
    if (of_weight) {
      const auto plan = WeightGradientPlan::of(call, operands, result, device);
      EXPECT_TRUE(plan.has_value());
      if (!plan) return 1;
      const Program& kernels = program(ConvolutionKernels::weight, plan->shape());
      const auto args = plan->arguments(aligned(plan->workspace_bytes()), to.data.data());
      splits = args.splits;
      EXPECT_EQ(kernels.launch("fw_conv_weight", plan->blocks(),
                               fw::conv_threads(fw::conv_weight_shapes[plan->shape()]), plan->shared_bytes(), args),
                "");
      EXPECT_EQ(kernels.launch("fw_conv_weight_sum", plan->sum_blocks(), fw::conv_sum_threads, 0, args), "");
    } else {
      const auto plan = ConvolutionPlan::of(call, operands, result, device);
      EXPECT_TRUE(plan.has_value() || c.hopper);
      if (!plan) return 0;  // a stage for that many taps is too large
      ++run;
      const Program& kernels = program(ConvolutionKernels::kind_of(*plan), plan->shape());
      EXPECT_EQ(plan->on_hopper(), c.hopper);
      const auto args = plan->arguments(aligned(plan->workspace_bytes()), to.data.data());
      EXPECT_EQ(kernels.launch("fw_conv_scales", plan->scale_blocks(), fw::conv_pack_threads,
                               fw::conv_scales_shared_bytes, args),
                "");
      EXPECT_EQ(kernels.launch("fw_conv_pack", plan->pack_blocks(), fw::conv_pack_threads, 0, args), "");
      EXPECT_EQ(kernels.launch("fw_conv", plan->blocks(), plan->threads(), plan->shared_bytes(), args), "");
    }
    for_terms(call, *dense, *wide, *weight, [&](size_t d, size_t x, size_t w) {
      const size_t i = of_weight ? w : spread ? x : d;
      const double term = of_weight ? double(dense->data[d]) * wide->data[x]
                          : spread  ? double(dense->data[d]) * weight->data[w]
                                    : double(wide->data[x]) * weight->data[w];
      sums[i] += term;
      sizes[i] += std::fabs(term);
    });
    double worst = 0;
    for (size_t i = 0; i < sums.size(); ++i) {
      const double off = std::fabs(to.data[i] - sums[i]);
      if (!(off <= worst * sizes[i])) worst = sizes[i] > 0 && off == off ? off / sizes[i] : off == 0 ? worst : 1e9;
    }
    return worst;
  }

  std::unique_ptr<Images> dense, wide, weight;
  uint32_t splits = 0;
  int run = 0;  // convolutions and gradients of inputs
  std::mt19937 random{7};
  float normal() { return std::normal_distribution<float>()(random); }
};

constexpr double tf32 = 0x1p-10;  // two operands, each rounded to 11 bits

// Sizes of the result of an ordinary convolution.
Sizes result_sizes(const Sizes& x, int64_t rows, const Sizes& kernel, const Case& c) {
  Sizes sizes = {x[0], rows};
  for (size_t d = 0; d < kernel.size(); ++d)
    sizes.push_back((x[d + 2] + 2 * c.padding[d] - c.dilation[d] * (kernel[d] - 1) - 1) / c.stride[d] + 1);
  return sizes;
}

Case make(const Sizes& x, int64_t rows, const Sizes& kernel, std::vector<int64_t> stride, std::vector<int64_t> padding,
          std::vector<int64_t> dilation, int64_t groups = 1) {
  Case c;
  c.stride = std::move(stride);
  c.padding = std::move(padding);
  c.dilation = std::move(dilation);
  c.groups = groups;
  c.wide = x;
  c.dense = result_sizes(x, rows, kernel, c);
  c.weight = {rows, x[1] / groups};
  c.weight.insert(c.weight.end(), kernel.begin(), kernel.end());
  return c;
}

std::vector<Case> geometries() {
  return {
      make({2, 19, 9, 13}, 21, {3, 3}, {1, 1}, {1, 1}, {1, 1}),
      make({3, 3, 11, 10}, 10, {7, 5}, {2, 2}, {3, 2}, {1, 1}),
      make({1, 8, 12, 17}, 16, {3, 2}, {2, 3}, {0, 1}, {2, 1}),
      make({2, 12, 8, 9}, 18, {3, 3}, {1, 2}, {1, 1}, {1, 1}, 3),
      make({5, 40, 3, 3}, 33, {1, 1}, {1, 1}, {0, 0}, {1, 1}),
      make({1, 5, 4, 6, 7}, 9, {3, 2, 3}, {2, 1, 2}, {1, 0, 1}, {1, 1, 1}),
      make({2, 9, 37}, 17, {5}, {3}, {2}, {2}),
      make({1, 4, 9, 9}, 3, {3, 3}, {4, 4}, {1, 1}, {2, 2}),  // results without taps
  };
}

TEST_F(Convolutions, OfAnyGeometry) {
  int number = 0;
  for (const int round : {0, 1, 2})
    for (Case c : geometries())
      for (const auto kind :
           {LibraryCall::Kind::conv, LibraryCall::Kind::conv_input_grad, LibraryCall::Kind::conv_weight_grad}) {
        if (round > 0 && (kind == LibraryCall::Kind::conv_weight_grad)) continue;
        c.hopper = round > 0;
        c.shape = round > 0 ? number % 4 : -1;
        c.kind = kind;
        c.transposed = number % 2 == 1;
        for (int i = 0; i < 3; ++i) c.last[i] = (number >> i) % 3 == 1;
        c.bias = kind == LibraryCall::Kind::conv;
        fill(c, [&](int, size_t) { return normal(); });
        EXPECT_LT(error(c), tf32) << "case " << number;
        ++number;
      }
}

// Each shape of blocks, more rows, channels and images than one has.
TEST_F(Convolutions, OfAnyShapeOfBlocks) {
  for (int shape = 0; shape < static_cast<int>(fw::conv_shape_count); ++shape) {
    Case c = make({3, 24, 10, 14}, 70, {3, 3}, {1, 1}, {1, 1}, {1, 1});
    c.shape = shape;
    fill(c, [&](int, size_t) { return normal(); });
    EXPECT_LT(error(c), tf32) << "shape " << shape;
  }
  for (int shape = 0; shape < static_cast<int>(fw::conv_hopper_shape_count); ++shape) {
    Case c = make({3, 72, 10, 14}, 150, {3, 3}, {1, 1}, {1, 1}, {1, 1});
    c.hopper = true;
    c.shape = shape;
    fill(c, [&](int, size_t) { return normal(); });
    EXPECT_LT(error(c), tf32) << "shape on Hopper " << shape;
  }
  for (int shape = 0; shape < static_cast<int>(fw::conv_weight_shape_count); ++shape) {
    Case c = make({3, 40, 10, 14}, 70, {3, 3}, {1, 1}, {1, 1}, {1, 1});
    c.kind = LibraryCall::Kind::conv_weight_grad;
    c.shape = shape;
    fill(c, [&](int, size_t) { return normal(); });
    EXPECT_LT(error(c), tf32) << "shape of weights " << shape;
  }
}

// Images whose numbers differ by more than halves carry: results that see only the small ones.
TEST_F(Convolutions, KeepSmallNumbersBesideLargeOnes) {
  for (const bool hopper : {false, true})
    for (const auto kind :
         {LibraryCall::Kind::conv, LibraryCall::Kind::conv_input_grad, LibraryCall::Kind::conv_weight_grad}) {
      if (hopper && kind == LibraryCall::Kind::conv_weight_grad) continue;
      Case c = make({2, 20, 9, 16}, 24, {3, 3}, {1, 1}, {1, 1}, {1, 1});
      c.kind = kind;
      c.hopper = hopper;
      c.shape = hopper ? 2 : -1;
      fill(c, [&](int of, size_t i) {
        const float spread = of == 2 || kind == LibraryCall::Kind::conv_weight_grad ? 1.0f : 1e12f;
        return normal() * (i % 16 < 8 ? spread : 1 / spread);
      });
      EXPECT_LT(error(c), tf32);
      // Later channels larger than the first by more than halves or even floats with one scale carry.
      const int read = kind == LibraryCall::Kind::conv_input_grad ? 0 : 1;
      fill(c, [&](int of, size_t i) { return normal() * (of == read && i / 144 % 20 >= 16 ? 1e30f : 1e-8f); });
      EXPECT_LT(error(c), tf32);
      // Weights of one row.
      fill(c, [&](int of, size_t i) { return normal() * (of == 2 && i % 180 < 90 ? 1e-12f : 1.0f); });
      EXPECT_LT(error(c), tf32);
    }
}

// What is not finite reaches the results that read it, and no others.
TEST_F(Convolutions, KeepInfinitiesWhereTheyAre) {
  for (const bool hopper : {false, true}) {
    Case c = make({1, 3, 6, 20}, 5, {3, 3}, {1, 1}, {1, 1}, {1, 1});
    c.hopper = hopper;
    c.shape = hopper ? 0 : -1;
    fill(c, [&](int, size_t) { return 1 + normal() / 8; });
    wide->data[1 * 120 + 2 * 20 + 10] = std::numeric_limits<float>::infinity();
    error(c);
    for (int64_t y = 0; y < 6; ++y)
      for (int64_t x = 0; x < 20; ++x) {
        const float result = dense->data[dense->place(0, 2, {0, y, x})];
        EXPECT_EQ(std::isfinite(result), !(std::abs(y - 2) <= 1 && std::abs(x - 10) <= 1)) << y << " " << x;
      }
  }
}

TEST_F(Convolutions, AddUpPartsOfAWeightsGradientInOneOrder) {
  Case c = make({6, 8, 16, 16}, 16, {3, 3}, {1, 1}, {1, 1}, {1, 1});
  c.kind = LibraryCall::Kind::conv_weight_grad;
  fill(c, [&](int, size_t) { return normal(); });
  EXPECT_LT(error(c), tf32);
  EXPECT_GT(splits, 1u);
  const std::vector<float> first = weight->data.copy();
  const Seed other(11);
  error(c);
  EXPECT_EQ(weight->data.copy(), first);
}

}  // namespace
}  // namespace fwemu::testing
