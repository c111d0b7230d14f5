// The printed form, and what the parser says about text that is none.
#include "support/graphs.h"

namespace fusewright::testing {
namespace {

TEST(Print, ReadsLikeThis) {
  Graph graph = parse(R"(
    graph(%x: f32[n, c, h, w]@0231, %m: f32[c, 1, 1], %s: scalar f32[]) {
      %a = mul(%x, %m)
      %k: f32[] = constant() {value = 0.1, runtime = 1}
      %b = mul(%a, %k)
      %c = sum(%b) {dims = (0, 2, 3), keepdim = 0}
      %d = mul(%b, %s)
      return %d@0231, total = %c!
    })");
  EXPECT_EQ(print(graph),
            "graph(%x: f32[n, c, h, w]@0231, %m: f32[c, 1, 1], %s: scalar f32[]) {\n"
            "  %3: f32[n, c, h, w] = mul(%x, %m)\n"
            "  %4: f32[] = constant() {runtime = 1, value = 0.1}\n"
            "  %5: f32[n, c, h, w] = mul(%3, %4)\n"
            "  %6: f32[c] = sum(%5) {dims = (0, 2, 3), keepdim = 0}\n"
            "  %7: f32[n, c, h, w] = mul(%5, %s)\n"
            "  return %7@0231, total = %6!\n"
            "}\n");
  EXPECT_EQ(print(parse(print(graph))), print(graph));
}

TEST(Print, ResultsThatReplaceInputs) {
  const char* text =
      "graph(%x: f32[n, c], %m: f32[c]) {\n"
      "  %2: f32[c] = sum(%x) {dims = (0), keepdim = 0}\n"
      "  %3: f32[c] = add(%2, %m)\n"
      "  return %2, next = %3! -> %m\n"
      "}\n";
  EXPECT_EQ(print(parse(text)), text);
  EXPECT_EQ(parse(text).outputs[1].into, 1);
}

TEST(Print, InputsThatSomethingElseReplaces) {
  const char* text =
      "graph(%x: f32[n, c], %m: changing f32[c]) {\n"
      "  %2: f32[n, c] = add(%x, %m)\n"
      "  return %2\n"
      "}\n";
  EXPECT_EQ(print(parse(text)), text);
  EXPECT_EQ(parse(text).changing, std::set<int>{1});
}

TEST(Print, NumbersReadBackExactly) {
  for (double value :
       {0.0, -0.0, 1.0, 0.1, 1.0 / 3, 1e-30, 1e300, -2.5, 123456789.0, 9.0e15,
        std::numeric_limits<double>::denorm_min(), static_cast<double>(INFINITY), -static_cast<double>(INFINITY)}) {
    Graph graph;
    Builder b(graph);
    b.output(b.constant(value, DType::f64));
    const Node back = parse(print(graph)).nodes[0];
    EXPECT_EQ(back.number("value"), value);
    EXPECT_EQ(std::signbit(back.number("value")), std::signbit(value));
    EXPECT_TRUE(std::holds_alternative<double>(back.attrs.at("value"))) << print(graph);
  }
}

TEST(Print, TextWithQuotesReadsBack) {
  for (std::string text : {"plain", "a \"quoted\" word", "back\\slash", "two\nlines", "%1 = exp(%x); }"}) {
    Graph graph = parse("graph(%x: f32[n]) { %y = gelu(%x) {approximate = \"none\"} return %y }");
    graph.nodes[1].attrs["approximate"] = text;
    EXPECT_EQ(parse(print(graph)).nodes[1].text("approximate"), text) << print(graph);
  }
}

TEST(Parse, TypesMayBeStatedAndAreChecked) {
  EXPECT_NO_THROW(parse("graph(%x: f32[n]) { %y: f32[n] = neg(%x) return %y }"));
  EXPECT_ERROR(parse("graph(%x: f32[n]) {\n %y: f64[n] = neg(%x)\n return %y }"),
               "neg: type is f32[n], the text says f64[n]");
}

struct Bad {
  const char *text, *message;
};
void PrintTo(const Bad& c, std::ostream* out) { *out << c.message; }

class BadText : public ::testing::TestWithParam<Bad> {};

TEST_P(BadText, IsRefusedWithItsLine) { EXPECT_ERROR(parse(GetParam().text), GetParam().message); }

INSTANTIATE_TEST_SUITE_P(
    , BadText,
    ::testing::Values(Bad{"grph(%x: f32[n]) { return %x }", "line 1: expected 'graph', found 'grph'"},
                      Bad{"graph(%x: f32[n]) {\n  %y = nog(%x)\n  return %y }", "line 2: no operation 'nog'"},
                      Bad{"graph(%x: f32[n]) {\n  %y = neg(%z)\n  return %y }", "line 2: %z is not defined"},
                      Bad{"graph(%x: f32[n]) {\n  %x = neg(%x)\n  return %x }", "line 2: %x is defined twice"},
                      Bad{"graph(%x: f32[n],\n %x: f32[n]) {\n return %x }", "line 2: %x is defined twice"},
                      Bad{"graph(%x: f32[n]) {\n\n  %y = exp(%x, %x)\n  return %y }", "line 3: exp: 2 operands given"},
                      Bad{"graph(%x: q32[n]) { return %x }", "line 1: no element type 'q32'"},
                      Bad{"graph(%x: f32[n]) {\n %y = cast(%x) {dtype = f33} return %y }",
                          "line 2: no element type 'f33'"},
                      Bad{"graph(%x: f32[n +]) { return %x }", "line 1: size 'n +'"},
                      Bad{"graph(%x: f32[n) { return %x }", "line 1: "},
                      Bad{"graph(%x: f32[n]) {\n %y = sum(%x) {dims = (0.5), keepdim = 0} return %y }",
                          "line 2: an integer expected"},
                      Bad{"graph(%x: f32[n]) {\n %y = clamp(%x) {min = 1.2.3} return %y }",
                          "line 2: a number expected, found '1.2.3'"},
                      Bad{"graph(%x: f32[n]) {\n %y = gelu(%x) {approximate = \"none} return %y }", "unfinished text"},
                      Bad{"graph(%x: f32[n]) {\n %y = neg(%x)\n", "line 3: a name expected"},
                      Bad{"graph(%x: f32[n]) { return %x } more", "text after the graph"},
                      Bad{"graph(%x: f32[n]@01) { return %x }", "line 1: memory order"},
                      Bad{"graph(%x: f32[n, m]@00) { return %x }", "line 1: memory order"},
                      Bad{"graph(%x: f32[n]) {\n %k: f32[] = constant()\n return %k }",
                          "line 2: constant: attribute 'value' is missing"},
                      Bad{"graph(%x: f32[n]) {\n %k: i64[n] = iota() {size = []}\n return %k }", "line 2: iota"},
                      Bad{"", "line 1: a name expected"}));

}  // namespace
}  // namespace fusewright::testing
