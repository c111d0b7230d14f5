// Tests the type that each kind of operation infers, and the operands it refuses, naming the operation and the shapes.
#include "support/graphs.h"

namespace fusewright::testing {
namespace {

std::string type_of(const std::string& inputs, const std::string& expression) {
  Graph graph = parse("graph(" + inputs + ") { %y = " + expression + " return %y }");
  const Type& type = graph.type(graph.outputs[0].value);
  return std::string(name_of(type.dtype)) + str(type.shape);
}

#define REFUSES(inputs, expression, part) EXPECT_ERROR(type_of(inputs, expression), part)

TEST(InferPointwise, Broadcasts) {
  EXPECT_EQ(type_of("%x: f32[n, c, h], %m: f32[c, 1]", "mul(%x, %m)"), "f32[n, c, h]");
  EXPECT_EQ(type_of("%x: f32[n, 1], %m: f32[c]", "add(%x, %m)"), "f32[n, c]");
  EXPECT_EQ(type_of("%x: f32[], %m: f32[c]", "add(%x, %m)"), "f32[c]");
}

TEST(InferPointwise, ComparisonsAreBoolean) {
  EXPECT_EQ(type_of("%x: f32[n], %m: f32[n]", "lt(%x, %m)"), "b8[n]");
  EXPECT_EQ(type_of("%x: i32[n]", "cast(%x) {dtype = bf16}"), "bf16[n]");
}

TEST(InferPointwise, Refuses) {
  REFUSES("%x: f32[n, 4], %m: f32[3]", "mul(%x, %m)", "mul(f32[1000003, 4], f32[3]): size 4 is not 3");
  REFUSES("%x: f32[n], %m: f64[n]", "add(%x, %m)", "operands differ in type; casts are explicit");
  REFUSES("%x: i64[n]", "exp(%x)", "exp(i64[1000003]): needs a floating type");
  REFUSES("%x: f32[n]", "logical_not(%x)", "needs b8");
  REFUSES("%c: f32[n], %x: f32[n]", "select(%c, %x, %x)", "the condition must be b8");
  REFUSES("%x: f32[n]", "cast(%x)", "attribute 'dtype' is missing");
  REFUSES("%x: f32[n]", "add(%x)", "add: 1 operands given, 2 needed");
}

TEST(InferReduce, KeepsOrDrops) {
  EXPECT_EQ(type_of("%x: f32[n, c, h]", "sum(%x) {dims = (-1, 0), keepdim = 0}"), "f32[c]");
  EXPECT_EQ(type_of("%x: f32[n, c, h]", "sum(%x) {dims = (0, 2), keepdim = 1}"), "f32[1, c, 1]");
  EXPECT_EQ(type_of("%x: f32[n, c]", "argmax(%x) {dims = (1), keepdim = 0}"), "i64[n]");
  EXPECT_EQ(type_of("%x: f32[]", "sum(%x) {dims = (0), keepdim = 0}"), "f32[]");
  EXPECT_EQ(type_of("%x: f32[]", "mean(%x) {dims = (-1), keepdim = 1}"), "f32[]");
}

TEST(InferReduce, Refuses) {
  REFUSES("%x: f32[n, c]", "sum(%x) {dims = (2), keepdim = 0}", "dimension 2 is out of range");
  REFUSES("%x: f32[n, c]", "sum(%x) {dims = (1, -1), keepdim = 0}", "a dimension is named twice");
  REFUSES("%x: f32[n, c]", "sum(%x) {keepdim = 0}", "attribute 'dims' is missing");
  REFUSES("%x: f32[n, c]", "argmax(%x) {dims = (0, 1), keepdim = 0}", "takes one dimension");
}

std::string pool(const std::string& kernel, const std::string& stride, const std::string& padding, int ceil_mode = 0) {
  return "max_pool(%x) {kernel = (" + kernel + "), stride = (" + stride + "), padding = (" + padding +
         "), dilation = (1), ceil_mode = " + std::to_string(ceil_mode) + "}";
}

TEST(InferWindow, Sizes) {
  EXPECT_EQ(type_of("%x: f32[c, 7]", pool("3", "2", "1")), "f32[c, 4]");
  EXPECT_EQ(type_of("%x: f32[c, 8]", pool("3", "2", "0")), "f32[c, 3]");
  EXPECT_EQ(type_of("%x: f32[c, 8]", pool("3", "2", "0", 1)), "f32[c, 4]");
  EXPECT_EQ(type_of("%x: f32[c, 1]", pool("2", "2", "1", 1)), "f32[c, 1]");  // the last window must start inside
  EXPECT_EQ(type_of("%x: f32[c, h]", pool("2", "2", "0")), "f32[c, floordiv(h, 2)]");
  EXPECT_EQ(type_of("%x: f32[c, 20]",
                    "max_pool_index(%x) {kernel = (17), stride = (1), padding = (0), dilation = (1), ceil_mode = 0}"),
            "u8[c, 4]");
  EXPECT_EQ(type_of("%x: f32[c, 20, 20]",
                    "max_pool_index(%x) {kernel = (17, 17), stride = (1, 1), padding = (0, 0), dilation = (1, 1), "
                    "ceil_mode = 0}"),
            "i32[c, 4, 4]");
}

TEST(InferWindow, Refuses) {
  REFUSES("%x: f32[c, 7]", pool("2", "2", "2"), "padding is larger than half the kernel");
  REFUSES("%x: f32[c, 7]", pool("2", "2", "-1"), "padding");
  REFUSES("%x: f32[c, 7]", pool("2", "0", "0"), "kernel and stride must be positive");
  REFUSES("%x: f32[c, 2]", pool("3", "1", "0"), "the output would be empty");
  REFUSES("%x: f32[7]", pool("2", "2", "0"), "window dimensions");
  REFUSES("%x: f32[c, 7]", pool("2", "2, 2", "0"), "window attributes differ in length");
  REFUSES("%x: f32[c, 7]", "max_pool(%x) {kernel = (2), stride = (2), padding = (0), dilation = (0), ceil_mode = 0}",
          "dilation");
}

TEST(InferShift, Sizes) {
  EXPECT_EQ(type_of("%x: f32[n, 7]", "shift(%x) {start = (0, -2), sizes = [n, 12]}"), "f32[n, 12]");
  EXPECT_EQ(type_of("%x: f32[n, 7]", "shift(%x) {start = (0, 3), sizes = [n, 0]}"), "f32[n, 0]");
  EXPECT_EQ(type_of("%x: f32[n, 7], %u: f32[n, 2]", "cat(%x, %u, %x) {dim = -1}"), "f32[n, 16]");
  REFUSES("%x: f32[n, 7]", "shift(%x) {start = (1), sizes = [n, 7]}", "an entry for each dimension");
  REFUSES("%x: f32[n, 7], %u: f32[n]", "cat(%x, %u) {dim = 1}", "differ in rank");
  REFUSES("%x: f32[n, 7], %u: f32[n, 2]", "cat(%x, %u) {dim = 2}", "dimension 2 is out of range");
}

TEST(InferContraction, Sizes) {
  EXPECT_EQ(type_of("%x: f32[b, m, k], %w: f32[b, k, n]", "matmul(%x, %w)"), "f32[b, m, n]");
  const std::string rest = "dilation = (1), output_padding = (1)}";
  EXPECT_EQ(type_of("%x: f32[n, 4, 9], %w: f32[6, 2, 3]",
                    "conv(%x, %w) {stride = (2), padding = (1), groups = 2, transposed = 0, " + rest),
            "f32[n, 6, 5]");
  EXPECT_EQ(type_of("%x: f32[n, 4, 9], %w: f32[4, 3, 3]",
                    "conv(%x, %w) {stride = (2), padding = (1), groups = 2, transposed = 1, " + rest),
            "f32[n, 6, 18]");
}

TEST(InferContraction, Refuses) {
  REFUSES("%x: f32[m, 3], %w: f32[4, n]", "matmul(%x, %w)", "size 3 is not 4");
  REFUSES("%x: f32[m, 3], %w: f32[n]", "matmul(%x, %w)", "both operands need the same rank");
  REFUSES("%x: i64[m, 3], %w: i64[3, n]", "matmul(%x, %w)", "operands need one floating type");
  REFUSES("%x: f32[m, 3], %w: f32[3, 4], %b: f32[5]", "matmul(%x, %w, %b)", "size 5 is not 4");
  REFUSES("%x: f32[m, 3], %w: f32[3, n], %b: f32[m, n]", "matmul(%x, %w, %b)", "operand 2 must be a vector");
  REFUSES("%x: f32[m, 3], %w: f32[3, n], %b: f64[n]", "matmul(%x, %w, %b)", "operands need one floating type");
  REFUSES("%x: f32[b, m, 3], %w: f32[b, 3, n], %b: f32[n]", "matmul(%x, %w, %b)", "only a product of two matrices");
  auto conv = [](const std::string& attrs) { return "conv(%x, %w) {" + attrs + "}"; };
  const std::string good = "stride = (1), padding = (0), dilation = (1), output_padding = (0), transposed = 0, ";
  REFUSES("%x: f32[n, 4, 9], %w: f32[6, 3, 3]", conv(good + "groups = 1"), "size 4 is not 3");
  REFUSES("%x: f32[n, 4, 2], %w: f32[6, 4, 3]", conv(good + "groups = 1"), "kernel is larger than the padded input");
  REFUSES("%x: f32[n, 4, 9], %w: f32[6, 4, 3]", conv(good + "groups = 0"), "groups must be positive");
  REFUSES("%x: f32[n, 4, 9], %w: f32[6, 4]", conv(good + "groups = 1"), "a matching weight");
  REFUSES("%x: f32[n, 4, 9], %w: f32[6, 4, 3]",
          conv("stride = (1, 1), padding = (0), dilation = (1), output_padding = (0), transposed = 0, groups = 1"),
          "attribute 'stride' has the wrong length");
}

TEST(InferMovement, Sizes) {
  EXPECT_EQ(type_of("%x: f32[n, c, h]", "permute(%x) {dims = (-1, 0, 1)}"), "f32[h, n, c]");
  EXPECT_EQ(type_of("%x: f32[n, 1], %m: f32[b, c]", "expand(%x) {sizes = [b, n, c]}"), "f32[b, n, c]");
  EXPECT_EQ(type_of("%x: f32[n, 2*c]", "reshape(%x) {sizes = [n, 2, c]}"), "f32[n, 2, c]");
  EXPECT_EQ(type_of("%x: f32[n, c, h]", "reshape(%x) {sizes = [n, c*h]}"), "f32[n, c*h]");
  EXPECT_EQ(type_of("%x: f32[1]", "reshape(%x) {sizes = []}"), "f32[]");
}

TEST(InferMovement, Refuses) {
  REFUSES("%x: f32[n, 4]", "reshape(%x) {sizes = [n, 3]}", "cannot become [n, 3]");
  REFUSES("%x: f32[n, c]", "permute(%x) {dims = (0, 0)}", "is not a permutation");
  REFUSES("%x: f32[n, c]", "permute(%x) {dims = (0)}", "names 1 dimensions");
  REFUSES("%x: f32[n, 2]", "expand(%x) {sizes = [n, 3]}", "size 2 is not 1");
  REFUSES("%x: f32[n, 2]", "expand(%x) {sizes = [2]}", "cannot lose dimensions");
}

TEST(InferComposite, Refuses) {
  REFUSES("%x: f32[n, 6]", "group_norm(%x) {groups = 4, eps = 0.1}", "6 channels do not divide into 4 groups");
  REFUSES("%x: f32[n]", "group_norm(%x) {groups = 1, eps = 0.1}", "needs at least 2 dimensions");
  REFUSES("%x: f32[n, 6], %w: f32[5]", "layer_norm(%x, %w) {axes = 1, eps = 0.1, has_weight = 1}", "size 5 is not 6");
  REFUSES("%x: f32[n, 6], %w: f32[6]", "layer_norm(%x, %w) {axes = 2, eps = 0.1, has_weight = 1}", "layer_norm");
  REFUSES("%x: f32[n, 6], %w: f32[6]", "layer_norm(%x, %w) {axes = 1, eps = 0.1}", "has_weight");
  REFUSES("%x: f32[n, 6], %w: f32[]", "batch_norm(%x, %w) {eps = 0.1, has_weight = 1}", "batch_norm");
  REFUSES("%x: f32[n, 6], %w: f32[4, 6], %b: f32[]", "linear(%x, %w, %b)", "linear");
  REFUSES("%x: f32[n, 6]", "softmax(%x) {dim = 2}", "dimension 2 is out of range");
  REFUSES("%x: i64[n, 6]", "gelu(%x) {approximate = \"none\"}", "needs a floating type");
  REFUSES("%x: f32[n, 6], %w: f32[4, 5]", "linear(%x, %w)", "size 6 is not 5");
}

}  // namespace
}  // namespace fusewright::testing
