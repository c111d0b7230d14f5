// Sizes that must agree are made equal by substituting symbols: unification.
#include "ir/builder.h"

#include "support/graphs.h"

namespace fusewright::testing {
namespace {

// A graph whose input sizes are symbols with known values, as an importer builds it.
struct Captured {
  Graph graph;
  Builder b{graph};
  int symbols = 0;

  Value input(const char* name, const Sizes& sizes, DType dtype = DType::f32) {
    Shape shape;
    for (int64_t size : sizes) {
      if (size <= 1)
        shape.push_back(size);
      else
        shape.push_back(Size::symbol("s" + std::to_string(symbols))),
            graph.hints["s" + std::to_string(symbols++)] = size;
    }
    return b.input(name, dtype, shape);
  }
  std::string shape(Value v) const { return str(graph.shape(v)); }
};

TEST(Unify, EqualSizesBecomeOneSymbol) {
  Captured c;
  Value x = c.input("x", {8, 4}), y = c.input("y", {8, 4});
  c.b.binary(Op::add, x, y);
  EXPECT_EQ(c.shape(x), c.shape(y));
  EXPECT_EQ(c.graph.hints.size(), 2u);
}

TEST(Unify, ABroadcastPinsTheOne) {
  Graph graph;
  graph.hints = {{"n", 8}, {"one", 1}};
  Builder b(graph);
  Value x = b.input("x", DType::f32, {Size::symbol("n")}), y = b.input("y", DType::f32, {Size::symbol("one")});
  Value sum = b.binary(Op::add, x, y);
  EXPECT_EQ(str(graph.shape(y)), "[1]");
  EXPECT_EQ(str(graph.shape(sum)), "[n]");
}

TEST(Unify, GroupsSplitASymbol) {
  Captured c;
  Value x = c.input("x", {5, 12, 3});
  Value y = c.b.op(Op::group_norm, {x}, {{"groups", int64_t{4}}, {"eps", 0.1}});
  ASSERT_EQ(c.graph.shape(x)[1].scaled_symbol()->first, 4);
  EXPECT_EQ(c.shape(x), c.shape(y));
  // A second norm with other groups: 4*g = 6*h, so both are multiples of 12.
  Value z = c.b.op(Op::group_norm, {y}, {{"groups", int64_t{6}}, {"eps", 0.1}});
  EXPECT_EQ(c.graph.shape(z)[1].scaled_symbol()->first, 12);
  EXPECT_EQ(c.graph.hint(c.graph.shape(x)[1]), 12);
  EXPECT_NO_THROW(verify(c.graph));
}

TEST(Unify, KernelSizesAreSpecialised) {
  Captured c;
  Value x = c.input("x", {2, 4, 9}), w = c.input("w", {6, 4, 3});
  Value y = c.b.op(Op::conv, {x, w},
                   {{"stride", Ints{1}},
                    {"padding", Ints{0}},
                    {"dilation", Ints{1}},
                    {"groups", int64_t{1}},
                    {"transposed", int64_t{0}},
                    {"output_padding", Ints{0}}});
  EXPECT_TRUE(c.graph.shape(w)[2].is(3));
  EXPECT_EQ(c.graph.shape(x)[1], c.graph.shape(w)[1]);
  EXPECT_EQ(c.shape(y), "[s0, s3, s2 - 2]");
}

TEST(Unify, DifferentSizesAreRefusedWithTheirValues) {
  Captured c;
  Value x = c.input("x", {8}), y = c.input("y", {9});
  EXPECT_ERROR(c.b.binary(Op::add, x, y), "add(f32[8], f32[9]): size s0 is not s1 (8 against 9)");
}

TEST(Unify, SolvesSums) {
  Captured c;
  Value x = c.input("x", {8}), y = c.input("y", {6});
  c.b.unify(c.graph.shape(x)[0], c.graph.shape(y)[0] + Size(2), "test");
  EXPECT_EQ(c.graph.shape(x)[0], c.graph.shape(y)[0] + Size(2));
}

TEST(Unify, ReshapeNumbersBecomeExpressions) {
  Captured c;
  Value x = c.input("x", {2, 3, 4});
  EXPECT_EQ(c.shape(c.b.reshape(x, {2, 12})), "[s0, s1*s2]");
  EXPECT_EQ(c.shape(c.b.reshape(x, {1, 2, 3, 4})), "[1, s0, s1, s2]");
  EXPECT_EQ(c.shape(c.b.reshape(x, {24})), "[s0*s1*s2]");
  Value split = c.b.reshape(x, {2, 3, 2, 2});
  EXPECT_EQ(c.graph.hint(c.graph.shape(split)[3]), 2);
  EXPECT_TRUE(c.graph.shape(split)[2].is(2));
  EXPECT_NO_THROW(verify(c.graph));
}

TEST(Builder, UnnamedSizesNeverAgreeByAccident) {
  // Symbols without a known value must stay different also after some were substituted away.
  Graph graph;
  Builder b(graph);
  Value x = b.input("x", DType::f32, {Size::symbol("a"), 8});
  EXPECT_ERROR(b.specialise(graph.shape(x)[0], "conv"), "conv: size a must be known when compiling");
  b.unify(graph.shape(x)[0], graph.hints["a"], "test");
  b.input("y", DType::f32, {Size::symbol("p")});
  b.input("z", DType::f32, {Size::symbol("q")});
  std::set<int64_t> values;
  for (const auto& [name, hint] : graph.hints) EXPECT_TRUE(values.insert(hint).second) << name;
  EXPECT_NE(graph.hints["p"], graph.hint(graph.shape(x)[0]));
}

TEST(Unify, WhatWasReadBeforeAReplacementCatchesUp) {
  // Gradient and index agree only where h is 2; input_sizes was written before that was known.
  Captured c;
  Graph& graph = c.graph;
  graph.hints["h"] = 2;
  Value g = c.b.input("g", DType::f32, {3, 1});
  Value i = c.b.input("i", DType::u8, {3, Size::floordiv(Size::symbol("h"), 2)});
  Value grad = c.b.op(Op::max_pool_grad, {g, i},
                      {{"kernel", Ints{2}},
                       {"stride", Ints{2}},
                       {"padding", Ints{0}},
                       {"dilation", Ints{1}},
                       {"ceil_mode", int64_t{0}},
                       {"input_sizes", Shape{3, Size::symbol("h")}}});
  EXPECT_EQ(str(graph.shape(grad)), "[3, 2]");
  EXPECT_EQ(str(graph[grad].sizes("input_sizes")), "[3, 2]");
  EXPECT_NO_THROW(verify(graph));
}

TEST(Unify, AOneIsExpandedToASizeThatIsOneNow) {
  Graph graph;
  graph.hints = {{"n", 1}};
  Builder b(graph);
  b.input("y", DType::f32, {Size::symbol("n")});
  EXPECT_EQ(str(graph.shape(b.expand(b.input("x", DType::f32, {1}), {Size::symbol("n")}))), "[n]");
}

TEST(Builder, RefusesOperandsThatDoNotExist) {
  Graph graph;
  Builder b(graph);
  EXPECT_ERROR(b.op(Op::neg, {3}), "neg: operand %3 does not exist");
  EXPECT_ERROR(b.op(Op::constant, {}), "sources have functions of their own");
}

// A gradient may be the incoming one, and two may be one tensor; what is saved is as it is; nothing else shares memory.
TEST(Outputs, BorrowedFromInputsAndOtherGradients) {
  const Graph graph = parse(
      "graph(%x: f32[n, c], %g: f32[c]) { %1 = reshape(%g) {sizes = [1, c]} %2 = sum(%x) {dims = (0), keepdim = 1} "
      "%3 = reshape(%2) {sizes = [c]} %4 = permute(%x) {dims = (1, 0)} "
      "return %4, %2, %2, saved0 = %2, dL_da = %g!, dL_db = %1!, dL_dc = %2!, dL_dd = %3!, dL_de = %2! }");
  EXPECT_EQ(graph.borrowed_outputs(), (std::vector<bool>{true, false, true, false, false, true, false, true, false}));
}

TEST(RemoveDead, KeepsInputsAndWhatOutputsNeed) {
  Graph graph = parse("graph(%x: f32[n], %unused: f32[n]) { %1 = exp(%x) %2 = log(%x) return %2 }");
  remove_dead(graph);
  expect_graph(graph, "graph(%x: f32[n], %unused: f32[n]) { %1 = log(%x) return %1 }");
}

}  // namespace
}  // namespace fusewright::testing
