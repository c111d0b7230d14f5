// A float32 matrix product as a step of a plan: kernels of our own, or the host's library.
#include "schedule/matrix_product.h"

#include "runtime/contraction/contest.h"
#include "runtime/contraction/product_kernels.h"
#include "runtime/cuda/tuner.h"

namespace fusewright {
namespace {

// What the library's products of float32 take, measured on an H200: operations in a microsecond, and a call.
constexpr double library_operations = 51e6, library_call_microseconds = 6;

class OwnProduct final : public OwnContraction {
 public:
  OwnProduct(const ProductProblem& problem, cuda::Device device)
      : problem_(problem), plan_(problem, device.multiprocessors), device_(std::move(device)) {}

  std::string what() const override {
    const ProductProblem& p = problem_;
    return "matrix products of " + (p.batches > 1 ? std::to_string(p.batches) + " x " : "") + std::to_string(p.rows) +
           " x " + std::to_string(p.columns) + " x " + std::to_string(p.depth);
  }
  std::string kernel() const override { return "fw_matmul"; }
  std::string version() const override { return cuda::key_of(ProductKernels::source(), device_.architecture); }
  uint64_t bucket() const override {
    uint64_t bucket = 0;
    for (int64_t size : {problem_.rows, problem_.columns, problem_.depth, problem_.batches}) mix_size(bucket, size);
    for (const ProductProblem::Operand* o : {&problem_.a, &problem_.b}) mix(bucket, o->depth_stride == 1);
    return bucket;
  }
  double own_microseconds() const override { return plan_.microseconds(); }
  double library_microseconds() const override {
    return problem_.operations() / library_operations + library_call_microseconds;
  }
  bool approximates() const override { return false; }
  bool ready(int device) const override { return ProductKernels::instance().ready(device); }
  bool settled(int device) const override { return ProductKernels::instance().settled(device); }
  int64_t workspace_bytes() const override { return plan_.workspace_bytes(); }
  void launch(Host& host, char* workspace, void* result) const override {
    ProductKernels::instance().run(plan_, workspace, static_cast<float*>(result), host.device(), host.stream());
  }

 private:
  const ProductProblem problem_;
  const ProductPlan plan_;
  const cuda::Device device_;
};

class MatrixProductLauncher final : public ContestLauncher {
 public:
  MatrixProductLauncher(const Graph& graph, const Kernel& kernel)
      : ContestLauncher(graph, kernel, matrix_product_schedule()) {}

 private:
  std::shared_ptr<const OwnContraction> own(Host& host, const std::vector<const Tensor*>& operands,
                                            const Tensor&) const override {
    const cuda::Device& device = cuda::device(host.device());
    if (!ProductKernels::serves(device.architecture) || !host.exact_matrix_products()) return nullptr;
    const std::optional<ProductProblem> problem = product_of(operands);
    return problem ? std::make_shared<OwnProduct>(*problem, device) : nullptr;
  }
  WantedVariant wanted() const override { return wanted_variant(product_variable); }
  Order result_order() const override { return {}; }
};

}  // namespace

std::unique_ptr<Launcher> MatrixProduct::launcher(const LauncherInputs& inputs) const {
  return std::make_unique<MatrixProductLauncher>(inputs.graph, inputs.kernel);
}

}  // namespace fusewright
