// Memory orders: what follows its operand, and when convolutions move to channels last.
#include <cstdlib>

#include "support/graphs.h"

namespace fusewright::testing {
namespace {

// `@0231` behind a type: channels last.
const std::string conv_attributes =
    " {dilation = (1, 1), groups = 1, output_padding = (0, 0), padding = (1, 1), stride = (1, 1), transposed = 0} ";

std::string text(const std::string& inputs, const std::string& body) { return "graph(" + inputs + ") {" + body + "}"; }

const std::string image = "%x: f32[8, 16, 32, 32], %w: f32[16, 16, 3, 3]";
const std::string mul_in_place =
    text(image + ", %m: f32[16, 1, 1]",
         "%y: f32[8, 16, 32, 32] = conv(%x, %w)" + conv_attributes + "%z = mul(%y, %m) return %z");

Program laid_out(std::string_view before, const std::vector<std::string>& wrt = {}, bool tf32 = true) {
  Program program = program_of(before, wrt);
  program.options.cuda = true;
  program.options.tf32_convolution = tf32;
  reach(program);
  differentiate(program);
  remember(program);
  simplify(program);
  layout(program);
  verify(program.forward);
  return program;
}
bool chosen(const Program& program) { return program.rewrites == std::vector<std::string>{"channels_last"}; }
bool is_chosen(const std::string& before, bool tf32 = true) { return chosen(laid_out(before, {}, tf32)); }

TEST(Layout, AConvolutionRunsInChannelsLastAndItsChainWritesRowMajor) {
  Program program = laid_out(mul_in_place);
  expect_graph(program.forward, text(image + ", %m: f32[16, 1, 1]",
                                     "%a: f32[8, 16, 32, 32]@0231 = cast(%x) {dtype = f32} "
                                     "%b: f32[16, 16, 3, 3]@0231 = cast(%w) {dtype = f32} "
                                     "%y: f32[8, 16, 32, 32]@0231 = conv(%a, %b)" +
                                         conv_attributes + "%z = mul(%y, %m) return %z"));
  EXPECT_TRUE(chosen(program));
}

TEST(Layout, AChainInFrontWritesChannelsLastItself) {
  Program program = laid_out(
      text(image, "%v = exp(%x) %y: f32[8, 16, 32, 32] = conv(%v, %w)" + conv_attributes + "%z = exp(%y) return %z"));
  expect_graph(program.forward, text(image,
                                     "%v: f32[8, 16, 32, 32]@0231 = exp(%x) "
                                     "%b: f32[16, 16, 3, 3]@0231 = cast(%w) {dtype = f32} "
                                     "%y: f32[8, 16, 32, 32]@0231 = conv(%v, %b)" +
                                         conv_attributes + "%z: f32[8, 16, 32, 32] = exp(%y) return %z"));
}

TEST(Layout, ConvolutionsInARowStayInChannelsLast) {
  Program program =
      laid_out(text(image + ", %u: f32[16, 16, 3, 3]", "%y: f32[8, 16, 32, 32] = conv(%x, %w)" + conv_attributes +
                                                           "%z = exp(%y) " + "%t: f32[8, 16, 32, 32] = conv(%z, %u)" +
                                                           conv_attributes + "%r = exp(%t) return %r"));
  EXPECT_EQ(count_ops(program.forward, Op::cast), 3);  // the image and two weights
}

TEST(Layout, ResultsThatNoPointwiseKernelWritesAreCopied) {
  // A bare convolution: its input and its result would be copied, as the library does it, which takes longer.
  Program bare = laid_out(text(image, "%y: f32[8, 16, 32, 32] = conv(%x, %w)" + conv_attributes + "return %y"));
  EXPECT_EQ(count_ops(bare.forward, Op::cast), 3);
  // A norm over the channels stays row-major: three copies for one of the library's two.
  EXPECT_FALSE(is_chosen(text("%x: f32[8, 4, 32, 32], %w: f32[16, 4, 3, 3]",
                              "%y: f32[8, 16, 32, 32] = conv(%x, %w)" + conv_attributes +
                                  "%s = sum(%y) {dims = (1, 2, 3), keepdim = 1} %z = mul(%y, %s) return %z")));
}

TEST(Layout, OnlyWhereTensorCoresWouldBeUsed) {
  EXPECT_TRUE(is_chosen(mul_in_place));
  EXPECT_FALSE(is_chosen(mul_in_place, false));  // no TF32
  auto with = [](std::string before, const std::string& from, const std::string& to) {
    for (size_t at; (at = before.find(from)) != std::string::npos;) before.replace(at, from.size(), to);
    return before;
  };
  EXPECT_TRUE(is_chosen(with(mul_in_place, "f32", "f16"), false));
  EXPECT_FALSE(is_chosen(with(mul_in_place, "f32", "f64")));
  EXPECT_FALSE(is_chosen(with(mul_in_place, "16", "18")));
  EXPECT_TRUE(is_chosen(with(mul_in_place, "16", "20")));
  EXPECT_FALSE(is_chosen(with(with(mul_in_place, "16", "20"), "f32", "bf16")));
  EXPECT_FALSE(is_chosen(text("%x: f32[8, 16, 32, 32], %w: f32[16, 8, 3, 3]",
                              "%y: f32[8, 16, 32, 32] = conv(%x, %w) {dilation = (1, 1), groups = 2, output_padding = "
                              "(0, 0), padding = (1, 1), stride = (1, 1), transposed = 0} %z = exp(%y) return %z")));
}

TEST(Layout, WhatIsInChannelsLastStaysAsItIs) {
  const std::string before = text("%x: f32[8, 16, 32, 32]@0231, %w: f32[16, 16, 3, 3]@0231",
                                  "%y: f32[8, 16, 32, 32]@0231 = conv(%x, %w)" + conv_attributes +
                                      "%z: f32[8, 16, 32, 32]@0231 = exp(%y) return %z@0231");
  Program program = laid_out(before);
  expect_graph(program.forward, before);
  EXPECT_FALSE(chosen(program));
}

TEST(Layout, TheBackwardReadsWhatTheForwardSaved) {
  Program program = laid_out(mul_in_place, {"x", "w", "m"});
  EXPECT_TRUE(chosen(program));
  const Graph& backward = program.backward;
  const Order channels_last = {0, 2, 3, 1};
  for (Value v : backward.inputs) {
    if (backward[v].text("name").rfind("saved", 0) == 0) {
      EXPECT_EQ(backward.type(v).order, channels_last);
    }
  }
  for (const Node& node : backward.nodes) {
    if (node.kind() != Kind::contraction) continue;
    for (Value v : node.operands) EXPECT_EQ(backward.type(v).order, channels_last) << print(backward);
  }
  for (const Output& output : backward.outputs)
    EXPECT_EQ(backward.type(output.value).order, Order{}) << output.name << "\n" << print(backward);
  // The sum that is the gradient of m reads one order, too: the incoming gradient is copied.
  EXPECT_EQ(count_ops(backward, Op::cast), 5);  // dL_dy, x and w; back: dL_dx and dL_dw
  fuse(program);
  int alone = 0;
  for (const Group& group : program.backward_fusion.groups)
    for (const Step& step : group.kernel.steps)
      if (step.role == Step::Role::compute && backward[step.value].op == Op::cast) {
        EXPECT_EQ(group.kernel.steps.size(), 2u);
        ++alone;
      }
  EXPECT_EQ(alone, 5);
}

TEST(Layout, TheChoiceHasASwitch) {
  Program program = program_of(mul_in_place);
  program.options.cuda = program.options.tf32_convolution = true;
  program.options.disabled_rewrites = {"channels_last"};
  layout(program);
  expect_graph(program.forward, mul_in_place);
  program.options.disabled_rewrites.clear();
  setenv("FUSEWRIGHT_DISABLE", "channels_last", 1);
  layout(program);
  unsetenv("FUSEWRIGHT_DISABLE");
  expect_graph(program.forward, mul_in_place);
}

const std::string transposed_attributes =
    " {dilation = (1, 1), groups = 1, output_padding = (0, 0), padding = (1, 1), stride = (2, 2), transposed = 1} ";
const std::string volume_attributes =
    " {dilation = (1, 1, 1), groups = 1, output_padding = (0, 0, 0), padding = (1, 1, 1), stride = (1, 1, 1), "
    "transposed = 0} ";

// Copies into another memory order, without those of weights.
int copies_of_images(const Graph& graph) {
  int count = 0;
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    count += is_layout_copy(graph, static_cast<Value>(i)) && graph.bytes(static_cast<Value>(i)) > 1 << 17;
  return count;
}

TEST(Layout, TransposedConvolutionsAndReductionsOverChannelsTakePart) {
  Program program = laid_out(text("%x: f32[8, 64, 32, 32], %w: f32[64, 32, 4, 4]",
                                  "%y: f32[8, 32, 64, 64] = conv(%x, %w)" + transposed_attributes +
                                      "%m = amax(%y) {dims = (1), keepdim = 1, tie = 0} %z = sub(%y, %m) return %z"));
  EXPECT_TRUE(chosen(program));
  EXPECT_EQ(copies_of_images(program.forward), 1) << print(program.forward);  // x
}

// Volumes in f32 take part with steps of two, even with few channels, but not with longer steps or more taps.
TEST(Layout, TransposedVolumesTakePartInShortSteps) {
  auto with = [](const std::string& step, const std::string& taps, const std::string& type) {
    const std::string all = "(" + step + ", " + step + ", " + step + ")", n = taps + ", " + taps + ", " + taps;
    const auto side = [&](int from) { return std::to_string((from - 1) * std::stoi(step) + std::stoi(taps)); };
    return text("%x: " + type + "[8, 16, 9, 9, 9], %w: " + type + "[16, 32, " + n + "]",
                "%y: " + type + "[8, 32, " + side(9) + ", " + side(9) + ", " + side(9) +
                    "] = conv(%x, %w) {dilation = (1, 1, 1), groups = 1, output_padding = (0, 0, 0), padding = (0, 0, "
                    "0), stride = " +
                    all + ", transposed = 1} %z = exp(%y) return %z");
  };
  EXPECT_TRUE(is_chosen(with("2", "3", "f32")));
  EXPECT_FALSE(is_chosen(with("3", "3", "f32")));
  EXPECT_FALSE(is_chosen(with("2", "5", "f32")));
  EXPECT_TRUE(is_chosen(with("3", "3", "bf16")));
}

TEST(Layout, DepthwiseConvolutionsTakePart) {
  auto with = [](const std::string& results, const std::string& taps, const std::string& type) {
    return text("%x: " + type + "[8, 16, 32, 32], %w: " + type + "[" + results + ", 1, " + taps + ", " + taps + "]",
                "%y: " + type + "[8, " + results +
                    ", 32, 32] = conv(%x, %w) {dilation = (1, 1), groups = 16, "
                    "output_padding = (0, 0), padding = (" +
                    std::to_string(std::stoi(taps) / 2) + ", " + std::to_string(std::stoi(taps) / 2) +
                    "), stride = (1, 1), transposed = 0} %z = exp(%y) return %z");
  };
  for (const char* taps : {"1", "3", "7"}) EXPECT_TRUE(is_chosen(with("16", taps, "f32"))) << taps;
  EXPECT_TRUE(is_chosen(with("16", "3", "bf16")));
  EXPECT_FALSE(is_chosen(with("32", "3", "f32")));  // two results of each channel
  // The gradient of a weight of many taps stays row-major in f32.
  for (const char* type : {"f32", "bf16"}) {
    const Program program = laid_out(with("16", "7", type), {"x", "w"});
    ASSERT_TRUE(chosen(program));
    for (const Node& node : program.backward.nodes) {
      if (node.op != Op::conv_weight_grad) continue;
      for (Value v : node.operands)
        EXPECT_EQ(program.backward.type(v).order.empty(), std::string(type) == "f32") << print(program.backward);
    }
  }
}

// As captured models have them: every size is a symbol.
TEST(Layout, DepthwiseConvolutionsOfSymbolsTakePart) {
  auto with_results = [](int64_t results) {
    Program program =
        program_of(text("%x: f32[n, 16*c, h, w], %w: f32[o, c, 3, 3]",
                        "%y: f32[n, o, h, w] = conv(%x, %w) {dilation = (1, 1), groups = 16, output_padding = (0, 0), "
                        "padding = (1, 1), stride = (1, 1), transposed = 0} %z = exp(%y) return %z"),
                   {});
    program.forward.hints = {{"n", 8}, {"c", 1}, {"h", 32}, {"w", 32}, {"o", results}};
    program.options.cuda = program.options.tf32_convolution = true;
    layout(program);
    return program;
  };
  EXPECT_TRUE(chosen(with_results(16)));
  EXPECT_FALSE(chosen(with_results(32)));
}

TEST(Layout, AnImageOfFewChannelsIsMadeRowMajor) {
  const Program program =
      laid_out(text(image + ", %u: f32[3, 16, 3, 3]", "%y: f32[8, 16, 32, 32] = conv(%x, %w)" + conv_attributes +
                                                          "%v = exp(%y) %t: f32[8, 3, 32, 32] = conv(%v, %u)" +
                                                          conv_attributes + "%z = exp(%t) return %z"));
  EXPECT_TRUE(chosen(program));
  for (const Node& node : program.forward.nodes) {
    if (node.kind() == Kind::contraction) {
      EXPECT_EQ(node.type.order.empty(), node.type.shape[1].is(3)) << print(program.forward);
    }
  }
}

TEST(Layout, VolumesTakePart) {
  auto with_channels = [](const std::string& n, const std::string& type, const std::string& attributes) {
    const std::string weight = type + "[32, " + n + ", 3, 3, 3]";
    return text("%x: " + type + "[8, " + n + ", 8, 32, 32], %w: " + weight,
                "%y: " + type + "[8, 32, 8, 32, 32] = conv(%x, %w)" + attributes +
                    "%z = exp(%y) %s = sum(%z) {dims = (2, 3, 4), keepdim = 1} return %s");
  };
  EXPECT_FALSE(is_chosen(with_channels("16", "f32", volume_attributes)));
  EXPECT_TRUE(is_chosen(with_channels("16", "f16", volume_attributes)));
  Program program = laid_out(with_channels("32", "f32", volume_attributes));
  EXPECT_TRUE(chosen(program));
  EXPECT_EQ(copies_of_images(program.forward), 1);
  for (const Node& node : program.forward.nodes) {
    if (node.op == Op::conv) {
      EXPECT_EQ(node.type.order, (Order{0, 2, 3, 4, 1}));
    }
  }
}

// Reshapes of channels into groups and back, and permutations into rows of channels.
TEST(Layout, ViewsThatKeepTheOrderTakePart) {
  const std::string conv = "%y: f32[8, 16, 32, 32] = conv(%x, %w)" + conv_attributes;
  const std::string again = " %t: f32[8, 16, 32, 32] = conv(%z, %w)" + conv_attributes + "%r = exp(%t) return %r";
  for (const char* views :
       {"%g = reshape(%y) {sizes = [8, 2, 8, 32, 32]} %e = exp(%g) %z = reshape(%e) {sizes = [8, 16, 32, 32]}",
        "%p = permute(%y) {dims = (0, 2, 3, 1)} %e = exp(%p) %z = permute(%e) {dims = (0, 3, 1, 2)}"}) {
    Program program = laid_out(text(image, conv + views + again));
    EXPECT_TRUE(chosen(program)) << views;
    EXPECT_EQ(copies_of_images(program.forward), 1) << print(program.forward);  // x
  }
  // Rows of channels for a linear layer, behind a stride: sizes are sums.
  Program rows =
      laid_out(text("%x: f32[8, 16, h, w], %w: f32[16, 16, 3, 3]",
                    "%y: f32[8, 16, floordiv(h - 1, 2) + 1, floordiv(w - 1, 2) + 1] = conv(%x, %w) {dilation "
                    "= (1, 1), groups = 1, output_padding = (0, 0), padding = (1, 1), stride = (2, 2), "
                    "transposed = 0} %f = reshape(%y) {sizes = [8, 16, floordiv(h - "
                    "1, 2)*floordiv(w - 1, 2) + floordiv(h - 1, 2) + floordiv(w - 1, 2) + 1]} "
                    "%p = permute(%f) {dims = (0, 2, 1)} %q = exp(%p) return %q"));
  EXPECT_TRUE(chosen(rows));
  EXPECT_EQ(copies_of_images(rows.forward), 1) << print(rows.forward);
  // One that mixes channels with pixels needs them row-major.
  Program program = laid_out(text(
      image, conv + "%g = reshape(%y) {sizes = [8, 128, 128]} %e = exp(%g) %z = reshape(%e) {sizes = [8, 16, 32, 32]}" +
                 again));
  for (const Node& node : program.forward.nodes) {
    if (node.op == Op::reshape) {
      EXPECT_EQ(node.type.order, Order{});
    }
  }
}

TEST(Layout, FewChannelsStayRowMajor) {
  auto convolution = [&](int inputs, int outputs) {
    const std::string i = std::to_string(inputs), o = std::to_string(outputs);
    return text("%x: f32[8, " + i + ", 32, 32], %w: f32[" + o + ", " + i + ", 3, 3]",
                "%y: f32[8, " + o + ", 32, 32] = conv(%x, %w)" + conv_attributes + "%z = exp(%y) return %z");
  };
  EXPECT_TRUE(is_chosen(convolution(64, 64)));
  EXPECT_FALSE(is_chosen(convolution(3, 64)));
  EXPECT_FALSE(is_chosen(convolution(12, 64)));
  EXPECT_FALSE(is_chosen(convolution(64, 3)));
}

// The library multiplies matrices for it, without a transpose; between others it takes channels last as it comes.
TEST(Layout, ConvolutionsOfOneTapAreNoReason) {
  const std::string inputs = "%x: f32[8, 48, 32, 32], %a: f32[48, 48, 1, 1], %b: f32[48, 48, 3, 3]";
  std::string one_tap = conv_attributes;
  one_tap.replace(one_tap.find("padding = (1, 1)"), 16, "padding = (0, 0)");
  const std::string first = "%y: f32[8, 48, 32, 32] = conv(%x, %a)" + one_tap + "%z = exp(%y) ";
  EXPECT_FALSE(is_chosen(text(inputs, first + "return %z")));
  const Program program =
      laid_out(text(inputs, first + "%t: f32[8, 48, 32, 32] = conv(%z, %b)" + conv_attributes + "%u = exp(%t)" +
                                "%v: f32[8, 48, 32, 32] = conv(%u, %a)" + one_tap + "%r = exp(%v) return %r"));
  EXPECT_TRUE(chosen(program));
  EXPECT_EQ(copies_of_images(program.forward), 0) << print(program.forward);
}

// A gradient of a weight with five taps is as fast row-major; the gradient of the input is not.
TEST(Layout, GradientsOfLargeKernelsAreNoReason) {
  auto backward_of = [&](const std::string& taps, const std::string& padding) {
    std::string attributes = conv_attributes;
    attributes.replace(attributes.find("padding = (1, 1)"), 16, "padding = (" + padding + ", " + padding + ")");
    return laid_out(text("%x: f32[8, 16, 32, 32], %w: f32[16, 16, " + taps + ", " + taps + "]",
                         "%y: f32[8, 16, 32, 32] = conv(%x, %w)" + attributes + "return %y"),
                    {"w"});
  };
  auto order_of_gradient = [](const Program& program) {
    for (const Node& node : program.backward.nodes)
      if (node.op == Op::conv_weight_grad) return node.type.order;
    return Order{};
  };
  EXPECT_EQ(order_of_gradient(backward_of("3", "1")), (Order{0, 2, 3, 1}));
  EXPECT_EQ(order_of_gradient(backward_of("5", "2")), Order{});
}

TEST(Layout, TheProcessorsConvolutionsStayAsTheyAre) {
  Program program = program_of(mul_in_place);
  program.options.tf32_convolution = true;
  layout(program);
  expect_graph(program.forward, mul_in_place);
}

}  // namespace
}  // namespace fusewright::testing
