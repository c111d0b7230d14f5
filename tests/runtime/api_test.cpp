// The public C++ API, as a user without our sources sees it.
#include "fusewright/fusewright.h"

#include "support/execute.h"

namespace fusewright::testing {
namespace {

GraphBuilder scaled_sum() {
  GraphBuilder b;
  auto x = b.input("x", DType::f32, {"n", 3});
  auto s = b.scalar("s", DType::f32);
  b.output(b.op("sum", {b.op("mul", {b.op("square", {x}), s})}, {{"dims", {1}}, {"keepdim", false}}));
  return b;
}

TEST(Api, BuildsDifferentiatesAndRuns) {
  GraphBuilder b = scaled_sum();
  Function f = compile(b, {"x"});
  for (float s : {1.0f, 3.0f}) {
    Function::Result r = f.forward({make_tensor<float>({1, 2, 3, 4, 5, 6}, {2, 3})}, {s});
    EXPECT_EQ(to_vector<float>(r.outputs.at(0)), (std::vector<float>{14 * s, 77 * s}));
    auto gradients = f.backward(r.saved, {make_tensor<float>({1, 10}, {2})});
    EXPECT_EQ(to_vector<float>(gradients.at("x")), (std::vector<float>{2 * s, 4 * s, 6 * s, 80 * s, 100 * s, 120 * s}));
  }
}

TEST(Api, TextIsTheSameGraph) {
  GraphBuilder b = scaled_sum();
  EXPECT_EQ(GraphBuilder(b.text()).text(), b.text());
  GraphBuilder more(b.text());
  more.output(more.op("exp", {0}));  // and can be continued
  EXPECT_EQ(compile(more).forward({make_tensor<float>({0, 0, 0}, {1, 3})}, {1}).outputs.size(), 2u);
}

TEST(Api, MovedBuildersGoOn) {
  GraphBuilder a = scaled_sum(), b(std::move(a));
  EXPECT_NO_THROW(b.op("exp", {0}));
  a = std::move(b);
  EXPECT_NO_THROW(a.op("exp", {0}));
}

TEST(Api, InferenceSavesNothing) {
  GraphBuilder b = scaled_sum();
  Function f = compile(b);
  Function::Result r = f.forward({make_tensor<float>({1, 2, 3}, {1, 3})}, {1});
  EXPECT_EQ(r.saved.bytes(), 0);
  EXPECT_ERROR(f.backward(r.saved, {r.outputs[0]}), "compiled without gradients");
}

TEST(Api, AnEmptyGradientIsZero) {
  GraphBuilder b;
  auto x = b.input("x", DType::f64, {"n"});
  b.output(b.op("exp", {x}));
  b.output(b.op("square", {x}));
  Function f = compile(b, {"x"});
  auto r = f.forward({make_tensor<double>({1, 3}, {2})});
  EXPECT_EQ(to_vector<double>(f.backward(r.saved, {Tensor{}, make_tensor<double>({1, 1}, {2})}).at("x")),
            (std::vector<double>{2, 6}));
  EXPECT_EQ(to_vector<double>(f.backward(r.saved, {Tensor{}, Tensor{}}).at("x")), (std::vector<double>{0, 0}));
}

TEST(Api, SavedOutlivesTheFunctionAndTheInputs) {
  Function::Saved saved;
  Function g;
  {
    GraphBuilder b = scaled_sum();
    Function f = compile(b, {"x"});
    saved = f.forward({make_tensor<float>({1, 2, 3}, {1, 3})}, {2}).saved;
    g = f;
  }
  EXPECT_EQ(to_vector<float>(g.backward(saved, {make_tensor<float>({1}, {1})}).at("x")),
            (std::vector<float>{4, 8, 12}));
}

TEST(Api, SumsKeepOnlySizes) {
  GraphBuilder b;
  b.output(b.op("mean", {b.input("x", DType::f32, {"n", "c"})}, {{"dims", {0, 1}}, {"keepdim", 0}}));
  Function f = compile(b, {"x"});
  Tensor x = make_tensor<float>({1, 2, 3, 4}, {2, 2});
  std::weak_ptr<void> memory = x.owner;
  auto r = f.forward({x});
  x = {};
  EXPECT_TRUE(memory.expired());
  EXPECT_EQ(to_vector<float>(f.backward(r.saved, {make_tensor<float>({4}, {})}).at("x")),
            (std::vector<float>{1, 1, 1, 1}));
}

TEST(Api, NormsFindTheirOptionalOperands) {
  GraphBuilder b;
  auto x = b.input("x", DType::f32, {"n", "k"});
  auto w = b.input("w", DType::f32, {"k"});
  EXPECT_NO_THROW(b.output(b.op("layer_norm", {x, w, w}, {{"axes", 1}, {"eps", 1e-5}})));
  EXPECT_NE(b.text().find("has_bias = 1"), std::string::npos);
}

TEST(Api, Kernels) {
  GraphBuilder b;
  auto x = b.input("x", DType::f32, {"n", "k"});
  b.output(b.op("softmax", {b.op("silu", {x})}, {{"dim", 1}}));
  auto kernels = compile(b, {"x"}).kernels();
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0].phase, "forward");
  EXPECT_EQ(kernels[0].schedule, "row");
  EXPECT_EQ(kernels[0].operators, (std::vector<std::string>{"silu", "softmax"}));
  EXPECT_EQ(kernels[1].phase, "backward");
  EXPECT_NE(kernels[0].source.find(kernels[0].name), std::string::npos);
}

TEST(Api, Refuses) {
  GraphBuilder b;
  auto x = b.input("x", DType::f32, {"n", "c", 9});
  EXPECT_ERROR(b.input("x", DType::f32, {"n"}), "input 'x' is declared twice");
  EXPECT_ERROR(b.input("a b\n;", DType::f32, {"n"}), "a name has letters");
  EXPECT_ERROR(b.input("5", DType::f32, {"n"}), "a name has letters");
  EXPECT_ERROR(b.input("y", DType::f32, {"n +"}), "size 'n +'");
  EXPECT_ERROR(b.input("y", DType::f32, {-3}), "negative size -3");
  EXPECT_ERROR(b.input("y", DType::f32, {"n", "c"}, {0, 0}), "memory order");
  EXPECT_ERROR(b.op("expp", {x}), "no operation 'expp'");
  EXPECT_ERROR(b.op("exp", {7}), "exp: value 7 is not of this graph");
  EXPECT_ERROR(b.op("sum", {x}, {{"dims", {5}}, {"keepdim", 0}}), "dimension 5 is out of range");
  EXPECT_ERROR(b.output(9), "output: value 9 is not of this graph");
  EXPECT_ERROR(compile(b), "the graph has no output");
  auto w = b.input("w", DType::f32, {"o", "c", "k"});
  EXPECT_ERROR(b.op("conv", {x, w},
                    {{"stride", {1}},
                     {"padding", {0}},
                     {"dilation", {1}},
                     {"groups", 1},
                     {"transposed", 0},
                     {"output_padding", {0}}}),
               "size k must be known when compiling");
  b.output(b.op("exp", {x}));
  EXPECT_ERROR(compile(b, {"z"}), "no input 'z' to take a gradient of");
  EXPECT_ERROR(make_tensor<float>({1, 2}, {3}), "make_tensor: 2 values for 3 elements");
  EXPECT_ERROR(to_vector<double>(make_tensor<float>({1}, {1})), "the tensor is f32, not f64");
  EXPECT_ERROR(GraphBuilder("graph("), "line 1");
}

TEST(Api, RefusesTensorsThatDoNotFit) {
  GraphBuilder b = scaled_sum();
  Function f = compile(b, {"x"});
  EXPECT_ERROR(f.forward({make_tensor<float>({1, 2}, {1, 2})}, {1}),
               "input 'x': dimension 1 is 2, but 3 = 3 is needed");
  EXPECT_ERROR(f.forward({}, {1}), "1 tensors are needed, not 0");
  EXPECT_ERROR(f.forward({make_tensor<float>({1, 2, 3}, {1, 3})}), "1 scalars are needed, not 0");
  auto r = f.forward({make_tensor<float>({1, 2, 3}, {1, 3})}, {1});
  EXPECT_ERROR(f.backward(r.saved, {}), "1 gradients are needed, not 0");
  EXPECT_ERROR(f.backward(r.saved, {make_tensor<float>({1, 2}, {2})}), "input 'dL_dy0': dimension 0 is 2");
  EXPECT_ERROR(compile(b, {"x"}).backward(r.saved, {r.outputs[0]}), "belongs to another Function");
}

}  // namespace
}  // namespace fusewright::testing
