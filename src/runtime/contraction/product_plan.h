#pragma once
// How a float32 matrix product is computed by the kernels of kernels/contract: what follows from its sizes and strides.
#include <cstdint>
#include <optional>
#include <vector>

#include "fusewright/tensor.h"
#include "kernels/prelude.h"

#include "kernels/contract/arguments.h"

namespace fusewright {

// c[batch, row, column] = sum over depth of a[batch, row, depth] b[batch, depth, column] + bias[column]
struct ProductProblem {
  struct Operand {
    const float* data = nullptr;
    int64_t row_stride = 0, depth_stride = 0, batch_stride = 0;  // rows of b are columns of the product
    bool operator==(const Operand&) const = default;
  };
  Operand a, b;
  int64_t rows = 0, columns = 0, depth = 0, batches = 1;
  const float* bias = nullptr;

  double operations() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(depth) *
           static_cast<double>(batches);
  }
};

// Nothing: operands that only the library takes. `operands`: a, b and perhaps a bias, then the result's sizes.
std::optional<ProductProblem> product_of(const std::vector<const Tensor*>& operands);

// The launches of a problem. A large operand is packed and multiplied in strips of its rows, or many batches in groups,
// one after the other, so that the packed form takes little memory.
class ProductPlan {
 public:
  // `large`: bytes of an operand from which on it is cut.
  ProductPlan(const ProductProblem& problem, int processors, int64_t large = int64_t{64} << 20);

  int64_t workspace_bytes() const { return workspace_; }
  // What it should take, by a model of an H200.
  double microseconds() const { return microseconds_; }

  struct Strip {
    fw::PackArgs pack;
    fw::ProductArgs product;
    uint32_t pack_blocks, check_blocks, multiply_blocks, finish_blocks;
  };
  size_t strips() const { return strips_; }
  // `result`: row-major. `workspace` is aligned to 1024 bytes.
  Strip strip(size_t number, char* workspace, float* result) const;

 private:
  struct Places {  // in the workspace
    int64_t blocks, sample, exponents, loss, mass, largest;
  };
  Places place(int64_t blocks);
  static fw::Packed packed(const Places& places, char* workspace);
  int64_t take(int64_t bytes);
  double choose_splits(int processors);

  ProductProblem problem_;
  size_t strips_ = 1;
  int64_t strip_batches_, strip_rows_, strip_columns_;  // of the product; all but one of them are whole
  fw::PackedShape shape_a_{}, shape_b_{};               // of a strip
  uint32_t splits_ = 1;
  Places a_{}, b_{};
  int64_t flags_ = 0, partial_ = 0, workspace_ = 0;
  double microseconds_ = 0;
  int processors_;
};

}  // namespace fusewright
