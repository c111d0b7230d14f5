// Tests the inputs that a Plan refuses before it computes anything, and how it uses memory.
#include "runtime/plan/plan.h"

#include "support/execute.h"

namespace fusewright::testing {
namespace {

// Compiled without a compiler's help: these tests never reach a kernel.
Plan plan_of(const std::string& text) {
  Program program = program_of(text);
  run_pipeline(program);
  return Plan(program.forward, program.forward_fusion);
}

const char* const matched =
    "graph(%x: f32[n, 2*g, h], %w: f32[2*g]) { %1 = group_norm(%x, %w) {groups = 2, eps = 0.1, has_weight = 1} return "
    "%1 }";

Tensor tensor(const Sizes& sizes, DType dtype = DType::f32) { return to_tensor(Array(dtype, sizes)); }

TEST(PlanRefuses, WrongRankAndType) {
  Plan plan = plan_of(matched);
  EXPECT_ERROR(plan.run(plain_host(), {tensor({3, 4}), tensor({4})}, {}),
               "input 'x': f32[n, 2*g, h] is needed, not f32 of rank 2");
  EXPECT_ERROR(plan.run(plain_host(), {tensor({3, 4, 5}, DType::f64), tensor({4})}, {}),
               "input 'x': f32[n, 2*g, h] is needed, not f64 of rank 3");
}

TEST(PlanRefuses, SizesThatContradictEachOther) {
  Plan plan = plan_of(matched);
  EXPECT_ERROR(plan.run(plain_host(), {tensor({3, 4, 5}), tensor({6})}, {}),
               "input 'w': dimension 0 is 6, but 2*g = 4 is needed");
  EXPECT_ERROR(plan.run(plain_host(), {tensor({3, 5, 5}), tensor({5})}, {}),
               "input 'x': dimension 1 is 5, but 2*g = 4 is needed");
}

TEST(PlanRefuses, WrongNumberOfInputs) {
  Plan plan = plan_of(matched);
  EXPECT_ERROR(plan.run(plain_host(), {tensor({3, 4, 5})}, {}), "2 tensors are needed, not 1");
  EXPECT_ERROR(plan.run(plain_host(), {tensor({3, 4, 5}), tensor({4}), tensor({4})}, {}),
               "2 tensors are needed, not 3");
  EXPECT_ERROR(plan_of("graph(%x: f32[n], %s: scalar f32[]) { %1 = mul(%x, %s) return %1 }")
                   .run(plain_host(), {tensor({3})}, {}),
               "1 scalars are needed, not 0");
}

TEST(PlanRefuses, AWindowLargerThanTheInput) {
  Plan plan = plan_of(
      "graph(%x: f32[c, w]) { %1 = max_pool(%x) {kernel = (5), stride = (1), padding = (0), dilation = (1), ceil_mode "
      "= 0} return %1 }");
  EXPECT_ERROR(plan.run(plain_host(), {tensor({2, 3})}, {}), "max_pool(f32[c, w])");
}

TEST(PlanRefuses, SymbolsThatNoInputTells) {
  EXPECT_ERROR(plan_of("graph(%x: f32[n*m]) { %1 = exp(%x) return %1 }"), "is not bound by any input");
}

// Counts what is alive.
class CountingHost : public ForwardingHost {
 public:
  void allocate(Tensor& tensor) override {
    ForwardingHost::allocate(tensor);
    count(tensor);
  }
  Tensor call(const LibraryCall& call, const std::vector<Tensor>& operands) override {
    Tensor result = ForwardingHost::call(call, operands);
    count(result);
    return result;
  }
  int alive_ = 0, most_ = 0;

 private:
  void count(Tensor& tensor) {
    ++alive_, most_ = std::max(most_, alive_);
    tensor.owner = std::shared_ptr<void>(tensor.data, [this, memory = tensor.owner](void*) { --alive_; });
  }
};

TEST(PlanMemory, GoesBackAfterItsLastReader) {
  std::string body = "%0 = matmul(%x, %x) ";
  for (int i = 1; i < 6; ++i) body += "%" + std::to_string(i) + " = matmul(%" + std::to_string(i - 1) + ", %x) ";
  auto executable = Executable::compile(parse("graph(%x: f32[n, n]) { " + body + "return %5 }"), {});
  CountingHost host;
  {
    std::vector<Tensor> outputs = executable->forward().run(host, {tensor({4, 4})}, {});
    EXPECT_EQ(host.alive_, 1);
    EXPECT_EQ(host.most_, 2);
  }
  EXPECT_EQ(host.alive_, 0);
}

TEST(PlanMemory, TemporariesAreOneBlock) {
  // Three temporaries of kernels between four products, none of which lives when the next but one is made.
  const std::string text =
      "graph(%x: f32[n, n]) { %1 = matmul(%x, %x) %2 = exp(%1) %3 = matmul(%2, %x) %4 = exp(%3) %5 = matmul(%4, %x) "
      "%6 = exp(%5) %7 = matmul(%6, %x) return %7 }";
  const auto executable = compile(parse(text));
  class Host : public CountingHost {
   public:
    void allocate(Tensor& tensor) override {
      CountingHost::allocate(tensor);
      ++allocations;
    }
    int allocations = 0;
  } host;
  for (int call = 0; call < 2; ++call) {
    host.allocations = 0;
    executable->forward().run(host, {tensor({40, 40})}, {});
    EXPECT_EQ(host.allocations, 1);
    EXPECT_EQ(host.most_, 2) << "the block, and what a product reads or makes";
    EXPECT_EQ(host.alive_, 0);
  }
  expect_agrees(text, {{"n", 5}});
}

TEST(PlanMemory, ViewsKeepWhatTheyShow) {
  expect_agrees(
      "graph(%x: f64[n, n], %y: f64[n, n]) { %1 = matmul(%x, %y) %2 = permute(%1) {dims = (1, 0)} %3 = matmul(%2, %x) "
      "%4 = exp(%3) %5 = reshape(%1) {sizes = [n*n]} %6 = matmul(%4, %2) return %6, %5 }",
      {{"n", 3}});
}

TEST(PlanReports, KernelsAndCalls) {
  Plan plan = plan_of("graph(%x: f32[8, 4], %w: f32[4, 16]) { %1 = matmul(%x, %w) %2 = relu(%1) return %2 }");
  ASSERT_EQ(plan.kernels().size(), 1u);
  EXPECT_EQ(plan.kernels()[0].bytes_read, 8 * 16 * 4);
  EXPECT_EQ(plan.kernels()[0].bytes_written, 8 * 16 * 4);
  ASSERT_EQ(plan.library_calls().size(), 1u);
  EXPECT_EQ(plan.graph()[plan.library_calls()[0]].op, Op::matmul);
}

}  // namespace
}  // namespace fusewright::testing
