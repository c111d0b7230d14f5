// The kernels of a float32 matrix product, all four launches, against float64.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "emulator/harness.h"
#include "runtime/contraction/product_kernels.h"

namespace fwemu::testing {
namespace {

using fusewright::ProductPlan;
using fusewright::ProductProblem;

struct Matrix {
  int64_t rows, depth;
  bool along_rows;  // neighbours in memory are rows
  DeviceArray<float> data;

  template <class Make>
  Matrix(int64_t r, int64_t d, bool rows_first, Make make)
      : rows(r), depth(d), along_rows(rows_first), data(static_cast<size_t>(r * d), [](size_t) { return 0.0f; }) {
    for (int64_t i = 0; i < r; ++i)
      for (int64_t k = 0; k < d; ++k) data[place(i, k)] = make(i, k);
  }
  size_t place(int64_t i, int64_t k) const { return static_cast<size_t>(along_rows ? k * rows + i : i * depth + k); }
  float at(int64_t i, int64_t k) const { return data[place(i, k)]; }
  ProductProblem::Operand operand() const { return {data.data(), along_rows ? 1 : depth, along_rows ? rows : 1, 0}; }
};

class Products : public ::testing::Test {
 protected:
  // The product, computed by `processors` blocks.
  static std::vector<float> product(const Matrix& a, const Matrix& b, const std::vector<float>& bias = {},
                                    int processors = 3, int64_t large = int64_t{64} << 20, int64_t batches = 1) {
    static const Program program(fusewright::ProductKernels::source());
    ProductProblem problem;
    problem.a = a.operand();
    problem.b = b.operand();
    problem.rows = a.rows / batches;
    problem.columns = b.rows / batches;
    problem.depth = a.depth;
    problem.batches = batches;
    if (batches > 1) {
      problem.a.batch_stride = problem.rows * a.depth;
      problem.b.batch_stride = problem.columns * b.depth;
    }
    const DeviceArray<float> given_bias(bias.size() + 1, [&](size_t i) { return i < bias.size() ? bias[i] : 0; });
    if (!bias.empty()) problem.bias = given_bias.data();
    const ProductPlan plan(problem, processors, large);
    strips = plan.strips();
    const DeviceArray<char> workspace(static_cast<size_t>(plan.workspace_bytes()) + 1024);
    char* aligned = workspace.data();
    while (reinterpret_cast<uintptr_t>(aligned) % 1024 != 0) ++aligned;
    const DeviceArray<float> result(static_cast<size_t>(a.rows * problem.columns));
    for (size_t number = 0; number < plan.strips(); ++number) {
      const ProductPlan::Strip s = plan.strip(number, aligned, result.data());
      EXPECT_EQ(program.launch("fw_matmul_pack", s.pack_blocks, fw::pack_threads, fw::pack_shared_bytes, s.pack), "");
      EXPECT_EQ(
          program.launch("fw_matmul_check", s.check_blocks, fw::product_threads, fw::product_shared_bytes, s.product),
          "");
      EXPECT_EQ(
          program.launch("fw_matmul", s.multiply_blocks, fw::product_threads, fw::product_shared_bytes, s.product), "");
      flagged = 0;
      for (uint32_t i = 0; i < s.pack.flag_count; ++i) flagged += s.pack.flags[i];
      EXPECT_EQ(
          program.launch("fw_matmul_finish", s.finish_blocks, fw::finish_threads, fw::finish_shared_bytes, s.product),
          "");
    }
    return result.copy();
  }

  // The largest error of an element, as a part of the sum of its terms' magnitudes.
  static double error(const Matrix& a, const Matrix& b, const std::vector<float>& result,
                      const std::vector<float>& bias = {}, int64_t batches = 1) {
    double worst = 0;
    const int64_t rows = a.rows / batches, columns = b.rows / batches;
    for (int64_t i = 0; i < a.rows; ++i)
      for (int64_t column = 0; column < columns; ++column) {
        const int64_t j = i / rows * columns + column;
        double sum = bias.empty() ? 0 : bias[static_cast<size_t>(column)], size = std::fabs(sum);
        for (int64_t k = 0; k < a.depth; ++k) {
          const double term = double(a.at(i, k)) * b.at(j, k);
          sum += term;
          size += std::fabs(term);
        }
        const double off = std::fabs(result[static_cast<size_t>(i * columns + column)] - sum);
        if (!(off <= worst * size)) worst = size > 0 ? off / size : off;
      }
    return worst;
  }

  static inline size_t strips = 0;
  static inline uint32_t flagged = 0;  // blocks that the last product computed once more
  std::mt19937 random{7};
  float normal() { return std::normal_distribution<float>()(random); }
};

constexpr double float32 = 1.2e-7;

TEST_F(Products, OfAnyLayoutAndSize) {
  for (const bool a_along_rows : {false, true})
    for (const bool b_along_rows : {false, true}) {
      const Matrix a(131, 70, a_along_rows, [&](int64_t, int64_t) { return normal(); });
      const Matrix b(259, 70, b_along_rows, [&](int64_t, int64_t) { return normal(); });
      std::vector<float> bias;
      for (int j = 0; j < 259; ++j) bias.push_back(normal());
      EXPECT_LT(error(a, b, product(a, b, bias), bias), 2 * float32) << a_along_rows << b_along_rows;
      EXPECT_EQ(flagged, 0u);
    }
}

TEST_F(Products, AddUpPartsOfTheDepthInOneOrder) {
  const Matrix a(40, 1100, false, [&](int64_t, int64_t) { return normal(); });
  const Matrix b(33, 1100, false, [&](int64_t, int64_t) { return normal(); });
  std::vector<float> bias(33, 0.0f);
  const std::vector<float> first = product(a, b, bias, 4);
  EXPECT_LT(error(a, b, first), 2 * float32);
  const Seed other(11);
  EXPECT_EQ(first, product(a, b, bias, 4));
}

// The larger operand is cut: columns of the product, or rows.
TEST_F(Products, CutLargeOperandsIntoStrips) {
  for (const bool cuts_rows : {false, true}) {
    const int64_t rows = cuts_rows ? 400 : 60, columns = cuts_rows ? 60 : 700;
    const Matrix a(rows, 40, false, [&](int64_t, int64_t) { return normal(); });
    const Matrix b(columns, 40, !cuts_rows, [&](int64_t, int64_t) { return normal(); });
    std::vector<float> bias;
    for (int64_t j = 0; j < columns; ++j) bias.push_back(normal());
    EXPECT_LT(error(a, b, product(a, b, bias, 1, 1), bias), 2 * float32);
    EXPECT_EQ(strips, cuts_rows ? 4u : 3u);
  }
}

// Rows whose numbers differ by more than a pair of halves can carry, and sums that only see the small ones.
TEST_F(Products, KeepSmallNumbersBesideLargeOnes) {
  const Matrix a(20, 64, false, [&](int64_t, int64_t k) { return k == 0 ? 1.0f : k == 1 ? 1e-13f * normal() : 0.0f; });
  const Matrix b(20, 64, false, [&](int64_t, int64_t k) { return k == 0 ? 1e-13f : k == 1 ? 1.0f : 0.0f; });
  EXPECT_LT(error(a, b, product(a, b)), 2 * float32);
  EXPECT_EQ(flagged, 1u);
}

// The terms that make up most of a sum lie where the sample does not look, and all others would vanish in halves.
TEST_F(Products, KeepWhatTheSampleMisses) {
  for (const int64_t at : {int64_t{0}, int64_t{733}, int64_t{1999}}) {
    const Matrix a(1, 2048, false, [&](int64_t, int64_t k) { return k == at ? 1.0f : 0x1p-39f; });
    const Matrix b(1, 2048, false, [&](int64_t, int64_t k) { return k == at ? 0x1p-10f : 1.0f; });
    EXPECT_LT(error(a, b, product(a, b)), 6e-7) << at;
    EXPECT_EQ(flagged, 1u) << at;
  }
}

// Numbers that the sample misses are no reason to compute a block once more, where the largest numbers make up the
// sums.
TEST_F(Products, AreNotComputedTwiceForNumbersInFewPlaces) {
  const auto weight = [&](int64_t, int64_t) { return normal(); };
  const Matrix b(40, 2048, true, weight),
      one_hot(30, 2048, false, [](int64_t i, int64_t k) { return k == (i * 67 + 5) % 2048 ? 1.0f : 0.0f; });
  EXPECT_LT(error(one_hot, b, product(one_hot, b)), 2 * float32);
  EXPECT_EQ(flagged, 0u);
  // Only the second half of each 512 has numbers.
  const Matrix masked(30, 2048, true, [&](int64_t, int64_t k) { return k % 512 < 256 ? 0.0f : normal(); });
  EXPECT_LT(error(masked, b, product(masked, b)), 2 * float32);
  EXPECT_EQ(flagged, 0u);
}

// Each batch by itself, in groups that are computed one after the other, and with parts of the depth.
TEST_F(Products, OfBatches) {
  const Matrix a(5 * 70, 90, false, [&](int64_t i, int64_t) { return std::ldexp(normal(), int(i / 70)); });
  const Matrix b(5 * 33, 90, false, [&](int64_t, int64_t) { return normal(); });
  for (const int64_t large : {int64_t{1}, int64_t{64} << 20}) {
    EXPECT_LT(error(a, b, product(a, b, {}, 2, large, 5), {}, 5), 2 * float32);
    EXPECT_EQ(strips, large == 1 ? 3u : 1u);
  }
  const Matrix long_a(2 * 20, 600, false, [&](int64_t, int64_t) { return normal(); });
  const Matrix long_b(2 * 30, 600, false, [&](int64_t, int64_t) { return normal(); });
  EXPECT_LT(error(long_a, long_b, product(long_a, long_b, {}, 8, int64_t{64} << 20, 2), {}, 2), 2 * float32);
}

// Blocks that are computed once more while others add up parts of the depth; the bias is added once to all.
TEST_F(Products, ComputeBlocksOnceMoreBesidePartsOfTheDepth) {
  const Matrix a(150, 600, false, [&](int64_t i, int64_t k) {
    return i < 128 ? normal() : k == 0 ? 1.0f : k == 1 ? 1e-13f * normal() : 0.0f;
  });
  const Matrix b(20, 600, false, [&](int64_t, int64_t k) { return k == 0 ? 1e-13f : normal(); });
  std::vector<float> bias;
  for (int j = 0; j < 20; ++j) bias.push_back(normal());
  EXPECT_LT(error(a, b, product(a, b, bias, 8), bias), 2 * float32);
  EXPECT_EQ(flagged, 1u);
}

TEST_F(Products, GiveWhatFloat32GivesForInfinitiesAndNaN) {
  const float infinite = std::numeric_limits<float>::infinity();
  const Matrix a(150, 40, false, [&](int64_t i, int64_t k) {
    return i == 3 && k == 5 ? infinite : i == 140 && k == 1 ? std::nanf("") : 1 + normal() / 8;
  });
  const Matrix b(30, 40, true, [&](int64_t, int64_t) { return 1 + normal() / 8; });
  const std::vector<float> result = product(a, b);
  for (size_t j = 0; j < 30; ++j) {
    EXPECT_EQ(result[3 * 30 + j], infinite);
    EXPECT_TRUE(std::isnan(result[140 * 30 + j]));
    EXPECT_TRUE(std::isfinite(result[10 * 30 + j]));
  }
}

TEST_F(Products, ScaleEachRowByItself) {
  const Matrix a(10, 33, false, [&](int64_t i, int64_t) { return std::ldexp(normal(), int(12 * i - 60)); });
  const Matrix b(12, 33, true, [&](int64_t j, int64_t) { return std::ldexp(normal(), int(40 - 8 * j)); });
  EXPECT_LT(error(a, b, product(a, b)), 2 * float32);
  EXPECT_EQ(flagged, 0u);
}

TEST_F(Products, OfZerosAndWithABias) {
  const Matrix a(5, 32, false, [&](int64_t, int64_t) { return 0.0f; });
  const Matrix b(7, 32, false, [&](int64_t, int64_t) { return normal(); });
  const std::vector<float> result = product(a, b, {1, 2, 3, 4, 5, 6, 7});
  for (size_t i = 0; i < 5; ++i)
    for (size_t j = 0; j < 7; ++j) EXPECT_EQ(result[i * 7 + j], float(j + 1));
}

}  // namespace
}  // namespace fwemu::testing
