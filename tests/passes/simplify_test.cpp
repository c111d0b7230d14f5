// One test a rule: text before, text after.
#include "support/graphs.h"

namespace fusewright::testing {
namespace {

void expect_simplified(std::string_view before, std::string_view after, const std::vector<std::string>& wrt = {}) {
  Program program = program_of(before, wrt);
  simplify(program);
  verify(program.forward);
  expect_graph(program.forward, after);
}
void expect_unchanged(std::string_view text) { expect_simplified(text, text); }

TEST(Simplify, EqualOperationsAreOne) {
  expect_simplified("graph(%x: f32[n]) { %1 = exp(%x) %2 = exp(%x) %3 = add(%1, %2) return %3 }",
                    "graph(%x: f32[n]) { %1 = exp(%x) %2 = add(%1, %1) return %2 }");
}

TEST(Simplify, DifferentAttributesStayApart) {
  expect_unchanged(
      "graph(%x: f32[n, c]) { %1 = sum(%x) {dims = (0), keepdim = 1} %2 = sum(%x) {dims = (1), keepdim = 1} "
      "%3 = add(%1, %2) return %3 }");
  expect_unchanged(
      "graph(%x: f32[n]) { %1: f32[] = constant() {value = 0.0} %2: f32[] = constant() {value = -0.0} "
      "%3 = add(%x, %1) %4 = mul(%3, %2) return %4 }");
}

TEST(Simplify, ViewsOfViews) {
  expect_simplified(
      "graph(%x: f32[n, c, h]) { %1 = reshape(%x) {sizes = [n, c*h]} %2 = reshape(%1) {sizes = [c*h*n]} return %2 }",
      "graph(%x: f32[n, c, h]) { %1 = reshape(%x) {sizes = [c*h*n]} return %1 }");
  expect_simplified(
      "graph(%x: f32[1, c, 1], %y: f32[n, c, h]) { %1 = expand(%x) {sizes = [1, c, h]} %2 = expand(%1) {sizes = [n, c, "
      "h]} return %2 }",
      "graph(%x: f32[1, c, 1], %y: f32[n, c, h]) { %1 = expand(%x) {sizes = [n, c, h]} return %1 }");
  expect_simplified(
      "graph(%x: f32[a, b, c]) { %1 = permute(%x) {dims = (1, 2, 0)} %2 = permute(%1) {dims = (1, 0, 2)} return %2 }",
      "graph(%x: f32[a, b, c]) { %1 = permute(%x) {dims = (2, 1, 0)} return %1 }");
}

TEST(Simplify, ViewsThatDoNothing) {
  for (const char* view : {"reshape(%1) {sizes = [n, c]}", "expand(%1) {sizes = [n, c]}", "permute(%1) {dims = (0, 1)}",
                           "cast(%1) {dtype = f32}", "shift(%1) {start = (0, 0), sizes = [n, c]}"})
    expect_simplified(std::string("graph(%x: f32[n, c]) { %1 = exp(%x) %2 = ") + view + " return %2 }",
                      "graph(%x: f32[n, c]) { %1 = exp(%x) return %1 }");
}

TEST(Simplify, TwoPermutationsCancel) {
  expect_simplified(
      "graph(%x: f32[n, c]) { %1 = exp(%x) %2 = permute(%1) {dims = (1, 0)} %3 = permute(%2) {dims = (1, 0)} return %3 "
      "}",
      "graph(%x: f32[n, c]) { %1 = exp(%x) return %1 }");
}

TEST(Simplify, ATransposedProductIsTheProductOfTheTransposed) {
  expect_simplified(
      "graph(%x: f32[m, k], %w: f32[k, n]) { %1 = matmul(%x, %w) %2 = permute(%1) {dims = (1, 0)} return %2 }",
      "graph(%x: f32[m, k], %w: f32[k, n]) { %1 = permute(%w) {dims = (1, 0)} %2 = permute(%x) {dims = (1, 0)} "
      "%3 = matmul(%1, %2) return %3 }");
}

TEST(Simplify, ExpandsThatTheOperationDoesAnyway) {
  expect_simplified(
      "graph(%x: f32[n, c], %m: f32[1, c]) { %1 = expand(%m) {sizes = [n, c]} %2 = mul(%x, %1) return %2 }",
      "graph(%x: f32[n, c], %m: f32[1, c]) { %1 = mul(%x, %m) return %1 }");
  // Needed: nothing else has that size.
  expect_unchanged(
      "graph(%x: f32[1, c], %m: f32[1, c], %y: f32[n]) { %1 = expand(%m) {sizes = [n, c]} %2 = mul(%x, %1) return %2 "
      "}");
}

TEST(Simplify, UnitFactors) {
  for (const char* op : {"mul(%1, %k)", "mul(%k, %1)", "div(%1, %k)"})
    expect_simplified(std::string("graph(%x: f32[n]) { %1 = exp(%x) %k: f32[] = constant() {value = 1.0} %2 = ") + op +
                          " return %2 }",
                      "graph(%x: f32[n]) { %1 = exp(%x) return %1 }");
  // A number of the user's is an argument, not part of the program.
  expect_unchanged(
      "graph(%x: f32[n]) { %k: f32[] = constant() {value = 1.0, runtime = 1} %1 = mul(%x, %k) return %1 }");
  // Adding zero is no rule: -0.0 + 0.0 is +0.0.
  expect_unchanged("graph(%x: f32[n]) { %k: f32[] = constant() {value = 0.0} %1 = add(%x, %k) return %1 }");
}

TEST(Simplify, NegationsCancelAndEqualBranchesJoin) {
  expect_simplified("graph(%x: f32[n]) { %1 = exp(%x) %2 = neg(%1) %3 = neg(%2) return %3 }",
                    "graph(%x: f32[n]) { %1 = exp(%x) return %1 }");
  expect_simplified("graph(%x: f32[n], %y: f32[n]) { %c = lt(%x, %y) %1 = exp(%x) %2 = select(%c, %1, %1) return %2 }",
                    "graph(%x: f32[n], %y: f32[n]) { %1 = exp(%x) return %1 }");
}

TEST(Simplify, ReductionsOverNothing) {
  expect_simplified("graph(%x: f32[n, 1]) { %1 = sum(%x) {dims = (1), keepdim = 0} return %1 }",
                    "graph(%x: f32[n, 1]) { %1 = reshape(%x) {sizes = [n]} return %1 }");
  expect_simplified("graph(%x: f32[n, 1]) { %1 = exp(%x) %2 = amax(%1) {dims = (1), keepdim = 1, tie = 0} return %2 }",
                    "graph(%x: f32[n, 1]) { %1 = exp(%x) return %1 }");
  expect_simplified("graph(%x: f32[]) { %1 = exp(%x) %2 = sum(%1) {dims = (0), keepdim = 0} return %2 }",
                    "graph(%x: f32[]) { %1 = exp(%x) return %1 }");
}

TEST(Simplify, MasksOfOneConditionMeet) {
  expect_simplified(
      "graph(%x: f32[n], %a: f32[n], %b: f32[n]) { %z: f32[] = constant() {value = 0.0} %c = lt(%x, %z) "
      "%1 = select(%c, %a, %z) %2 = select(%c, %z, %b) %3 = add(%1, %2) return %3 }",
      "graph(%x: f32[n], %a: f32[n], %b: f32[n]) { %z: f32[] = constant() {value = 0.0} %c = lt(%x, %z) "
      "%1 = select(%c, %a, %b) return %1 }");
  expect_simplified(
      "graph(%x: f32[n], %a: f32[n]) { %z: f32[] = constant() {value = 0.0} %k: f32[] = constant() {value = 2.0} "
      "%c = lt(%x, %z) %1 = select(%c, %a, %z) %2 = mul(%1, %k) return %2 }",
      "graph(%x: f32[n], %a: f32[n]) { %z: f32[] = constant() {value = 0.0} %k: f32[] = constant() {value = 2.0} "
      "%c = lt(%x, %z) %1 = mul(%a, %k) %2 = select(%c, %1, %z) return %2 }");
  // 0 times a value that may be infinite is NaN: only a finite constant may pass the mask.
  expect_unchanged(
      "graph(%x: f32[n], %a: f32[n]) { %z: f32[] = constant() {value = 0.0} %c = lt(%x, %z) %1 = select(%c, %a, %z) "
      "%2 = mul(%1, %x) return %2 }");
  expect_unchanged(
      "graph(%x: f32[n], %a: f32[n], %b: f32[n]) { %z: f32[] = constant() {value = 0.0} %c = lt(%x, %z) %d = gt(%x, "
      "%z) "
      "%1 = select(%c, %a, %z) %2 = select(%d, %z, %b) %3 = add(%1, %2) return %3 }");
}

TEST(Simplify, StopGradientLeavesWhenItHasDoneItsWork) {
  const char* text = "graph(%x: f32[n]) { %1 = exp(%x) %2 = stop_gradient(%1) return %2 }";
  expect_simplified(text, "graph(%x: f32[n]) { %1 = exp(%x) return %1 }");
  expect_simplified(text, text, {"x"});  // gradients are still to be built
}

TEST(Simplify, RoundingCastsStay) {
  expect_unchanged("graph(%x: f32[n]) { %1 = cast(%x) {dtype = f16} %2 = cast(%1) {dtype = f32} return %2 }");
}

}  // namespace
}  // namespace fusewright::testing
