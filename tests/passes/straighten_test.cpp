// One memory order for each kernel with a reduction: what is copied, what is left to a pointwise kernel, what is kept.
#include "support/graphs.h"

namespace fusewright::testing {
namespace {

// `@0231` behind a type: channels last.
constexpr const char* norm =
    "%m = sum(%x) {dims = (1), keepdim = 1} %d = sub(%x, %m) %q = square(%d) %s = sum(%q) {dims = (1), keepdim = 1} "
    "%y = mul(%d, %s) ";

// A norm over the channels, of 8x64x32x32: 2 MB.
std::string over_channels(const std::string& in, const std::string& out, const std::string& type = "f32") {
  return "graph(%x: " + type + "[8, 64, 32, 32]" + in + ") { " + norm + "return %y" + out + " }";
}

// A norm over groups of 8 channels.
std::string over_groups(const std::string& in, const std::string& out) {
  return "graph(%v: f32[8, 64, 32, 32]" + in +
         ") { %x = reshape(%v) {sizes = [8, 8, 8, 32, 32]} %m = sum(%x) {dims = (2, 3, 4), keepdim = 1} "
         "%d = sub(%x, %m) %q = square(%d) %s = sum(%q) {dims = (2, 3, 4), keepdim = 1} %e = mul(%d, %s) "
         "%y = reshape(%e) {sizes = [8, 64, 32, 32]} %z = neg(%y) return %z" +
         out + " }";
}

// Returns the kinds of the kernels, in the order in which they run: "copy", "pointwise", "row" or "column" by the
// innermost axis of what they read.
std::vector<std::string> kinds(const Graph& graph, const Fusion& fusion) {
  std::vector<std::string> result;
  for (const Group& group : fusion.groups) {
    const Kernel& kernel = group.kernel;
    const Step* largest = nullptr;
    for (const Step& step : kernel.steps)
      if (step.role == Step::Role::load && (!largest || graph.bytes(step.value) > graph.bytes(largest->value)))
        largest = &step;
    const int innermost = loops_in_memory(graph, kernel, *largest).back();
    if (kernel.reduces())
      result.push_back(kernel.axes[static_cast<size_t>(innermost)].reduced ? "row" : "column");
    else
      result.push_back(is_layout_copy(graph, kernel.steps.back().value) ? "copy" : "pointwise");
  }
  return result;
}
using Kinds = std::vector<std::string>;

Kinds forward_kinds(const std::string& text, bool cuda = true) {
  const Program program = fused(text, {}, cuda);
  return kinds(program.forward, program.forward_fusion);
}

bool is_used(const Program& program) {
  return std::find(program.rewrites.begin(), program.rewrites.end(), "one_memory_order") != program.rewrites.end();
}

TEST(Straighten, AResultThatLiesAcrossHasAPointwiseKernel) {
  EXPECT_EQ(forward_kinds(over_channels("", "")), (Kinds{"column"}));
  EXPECT_EQ(forward_kinds(over_channels("@0231", "@0231")), (Kinds{"row"}));
  EXPECT_EQ(forward_kinds(over_channels("", "@0231")), (Kinds{"column", "pointwise"}));
  EXPECT_EQ(forward_kinds(over_channels("@0231", "")), (Kinds{"row", "pointwise"}));
}

TEST(Straighten, OnlyOnAGpuOnlyLargeTensorsAndOnlyIfWanted) {
  const std::string text = over_channels("", "@0231");
  EXPECT_EQ(forward_kinds(text, false), (Kinds{"column"}));
  std::string small = text;
  small.replace(small.find("[8, 64"), 6, "[3, 64");
  EXPECT_EQ(forward_kinds(small), (Kinds{"column"}));  // 768 kB
  Program program = program_of(text);
  program.options.cuda = true;
  program.options.disabled_rewrites = {"one_memory_order"};
  run_pipeline(program);
  EXPECT_EQ(kinds(program.forward, program.forward_fusion), (Kinds{"column"}));
  EXPECT_FALSE(is_used(program));
}

TEST(Straighten, OperandsThatLieAcrossEachOtherAreCopied) {
  const std::string two = "graph(%a: f32[8, 64, 32, 32], %b: f32[8, 64, 32, 32]@0231) { %x = add(%a, %b) ";
  // The one that goes with the result stays: two copied bytes for each, or a copy and the data read once more.
  EXPECT_EQ(forward_kinds(two + norm + "return %y }"), (Kinds{"copy", "column"}));
  EXPECT_EQ(forward_kinds(two + norm + "return %y@0231 }"), (Kinds{"copy", "row"}));
  // One that is the same for all images is read as it lies, large as it is.
  EXPECT_EQ(forward_kinds("graph(%a: f32[8, 64, 64, 128], %b: f32[1, 64, 64, 128]@0231) { %x = add(%a, %b) " +
                          std::string(norm) + "return %y }"),
            (Kinds{"column"}));
}

TEST(Straighten, RowsInShortPiecesAreCopied) {
  // Eight channels of a pixel are 32 bytes: half of what memory gives at a time.
  EXPECT_EQ(forward_kinds(over_groups("", "")), (Kinds{"row"}));
  EXPECT_EQ(forward_kinds(over_groups("@0231", "")), (Kinds{"row", "pointwise"}));
  // One channel to a group, but for any number: the kernel walks rows, of which nothing lies together.
  std::string single = over_groups("@0231", "");
  auto replace = [&](const std::string& from, const std::string& to) {
    for (size_t at; (at = single.find(from)) != std::string::npos;) single.replace(at, from.size(), to);
  };
  replace("[8, 8, 8, 32", "[8, 64, g, 32");
  replace("[8, 64, 32", "[8, 64*g, 32");
  Program program = program_of(single);
  program.forward.hints["g"] = 1;
  program.options.cuda = true;
  run_pipeline(program);
  EXPECT_EQ(kinds(program.forward, program.forward_fusion), (Kinds{"copy", "row"})) << print(program.forward);
}

TEST(Straighten, WhatLongRowsInShortPiecesWriteIsLeftToAPointwiseKernel) {
  const std::string held = over_groups("@0231", "@0231");
  std::string longer = held;
  for (size_t at; (at = longer.find("32, 32]")) != std::string::npos;) longer.replace(at, 7, "128, 128]");
  EXPECT_EQ(forward_kinds(held), (Kinds{"row"}));
  EXPECT_EQ(forward_kinds(longer), (Kinds{"row", "pointwise"}));
  // Sixteen channels are 64 bytes.
  for (size_t at; (at = longer.find("8, 8, 8,")) != std::string::npos;) longer.replace(at, 8, "8, 4, 16,");
  EXPECT_EQ(forward_kinds(longer), (Kinds{"row"}));
}

TEST(Straighten, APointwiseKernelReadsRootsAndQuotientsOfRows) {
  const std::string text =
      "graph(%x: f32[8, 64, 32, 32]@0231) { %m = sum(%x) {dims = (1), keepdim = 1} %n: f32[] = extent() {size = [64]} "
      "%a = div(%m, %n) %d = sub(%x, %a) %q = square(%d) %s = sum(%q) {dims = (1), keepdim = 1} %r = rsqrt(%s) "
      "%y = mul(%d, %r) return %y }";
  for (bool training : {false, true}) {
    const Program program = fused(text, training ? std::vector<std::string>{"x"} : std::vector<std::string>{}, true);
    for (const auto* half : {&program.forward, &program.backward}) {
      const Fusion& fusion = half == &program.forward ? program.forward_fusion : program.backward_fusion;
      ASSERT_EQ(fusion.groups.empty(), half == &program.backward && !training);
      for (const Group& group : fusion.groups) {
        const bool pointwise = !group.kernel.reduces();
        for (const Step& step : group.kernel.steps) {
          const Op op = (*half)[step.value].op;
          EXPECT_FALSE(pointwise && step.role == Step::Role::compute && (op == Op::rsqrt || op == Op::div))
              << print(*half);
        }
      }
      if (half == &program.forward) {
        EXPECT_EQ(kinds(*half, fusion), (Kinds{"row", "pointwise"}));
      }
    }
  }
}

TEST(Straighten, ACopyThatBothDirectionsNeedIsKeptInsteadOfTheInput) {
  const Program program = fused(over_groups("@0231", ""), {"v"}, true);
  ASSERT_TRUE(is_used(program));
  EXPECT_EQ(kinds(program.forward, program.forward_fusion), (Kinds{"copy", "row"}));
  // The gradient comes as the result lies, and goes as the input lies.
  EXPECT_EQ(kinds(program.backward, program.backward_fusion), (Kinds{"row", "pointwise"}));
  for (size_t i = 0; i < program.saved.size(); ++i) {
    EXPECT_FALSE(program.saved[i].is_input && !program.saved[i].sizes_only);
    if (program.saved[i].is_input) continue;
    const Output& output = program.forward.outputs.at(static_cast<size_t>(program.saved[i].index));
    EXPECT_EQ(program.backward.type(program.backward.inputs[i]).order, output.order);
    EXPECT_EQ(program.backward.shape(program.backward.inputs[i]), program.forward.shape(output.value));
  }
  EXPECT_EQ(count_ops(program.backward, Op::cast), 0) << print(program.backward);
}

TEST(Straighten, AnInputThatTheBackwardReadsElsewhereIsNotKeptTwice) {
  // The gradient of the weight is a product of the library, of the input as it lies.
  std::string text = over_groups("@0231", "");
  text.replace(text.find(") {"), 3, ", %w: f32[64, 64, 1, 1]) {");
  text.replace(
      text.find("return %z"), 9,
      "%c: f32[8, 64, 32, 32] = conv(%v, %w) {dilation = (1, 1), groups = 1, output_padding = (0, 0), padding = "
      "(0, 0), stride = (1, 1), transposed = 0} return %c, %z");
  const Program program = fused(text, {"v", "w"}, true);
  const bool kept = std::any_of(program.saved.begin(), program.saved.end(), [](const Program::Saved& saved) {
    return saved.is_input && saved.index == 0 && !saved.sizes_only;
  });
  EXPECT_TRUE(kept);
  for (const Program::Saved& saved : program.saved) {
    if (saved.is_input) continue;
    const Value v = program.forward.outputs.at(static_cast<size_t>(saved.index)).value;
    EXPECT_FALSE(is_layout_copy(program.forward, v)) << print(program.forward);
  }
}

TEST(Straighten, AnotherKernelThatComputesTheSameReadsWhatItDid) {
  // The sum over channels reads %x as a copy; the softmax along the lines, which computes %t for itself, does not.
  const Program program = fused(
      "graph(%x: f32[8, 64, 32, 32], %c: f32[8, 64, 32, 32]@0231, %d: f32[8, 64, 32, 32]@0231) { %t = exp(%x) "
      "%a = add(%t, %c) %b = add(%a, %d) %s = sum(%b) {dims = (1), keepdim = 0} "
      "%m = sum(%t) {dims = (3), keepdim = 1} %y = div(%t, %m) return %s, %y }",
      {}, true);
  EXPECT_EQ(kinds(program.forward, program.forward_fusion), (Kinds{"copy", "row", "row"})) << print(program.forward);
  const Kernel& last = program.forward_fusion.groups.back().kernel;
  for (const Step& step : last.steps)
    if (step.role == Step::Role::load) {
      EXPECT_EQ(step.value, program.forward.inputs[0]);
    }
}

TEST(Straighten, AValueThatIsReadAlongAndAcrossIsCopiedForTheLatter) {
  const Program program = fused(
      "graph(%x: f32[1024, 1024]) { %t = permute(%x) {dims = (1, 0)} %a = add(%x, %t) "
      "%s = sum(%a) {dims = (1), keepdim = 1} %y = mul(%a, %s) return %y }",
      {}, true);
  EXPECT_EQ(kinds(program.forward, program.forward_fusion), (Kinds{"copy", "row"}));
  int along = 0, across = 0;
  for (const Step& step : program.forward_fusion.groups.back().kernel.steps)
    if (step.role == Step::Role::load) ++(step.value == program.forward.inputs[0] ? along : across);
  EXPECT_EQ(along, 1);
  EXPECT_EQ(across, 1);
}

TEST(Straighten, WhatHasToBeInMemoryBeforeItIsCopied) {
  // A reshape that no loops follow, and a chain that is too long for one kernel.
  EXPECT_EQ(forward_kinds("graph(%x: f32[600, 700], %y: f32[700, 600]@10, %z: f32[700, 600]@10) { %e = exp(%x) "
                          "%r = reshape(%e) {sizes = [700, 600]} %a = add(%y, %z) %b = add(%a, %r) "
                          "%s = sum(%b) {dims = (1), keepdim = 0} return %s }"),
            (Kinds{"pointwise", "copy", "column"}));
  std::string text = "graph(%x: f32[8, 64, 32, 32], %c: f32[8, 64, 32, 32]@0231, %d: f32[8, 64, 32, 32]@0231) { ";
  for (int i = 0; i < 450; ++i) text += "%" + std::to_string(i) + " = sin(%" + (i ? std::to_string(i - 1) : "x") + ") ";
  text += "%a = add(%c, %449) %b = add(%a, %d) %s = sum(%b) {dims = (1), keepdim = 0} return %s }";
  EXPECT_EQ(forward_kinds(text), (Kinds{"pointwise", "copy", "row"}));
}

}  // namespace
}  // namespace fusewright::testing
