#include "ir/size.h"

#include "support/graphs.h"

namespace fusewright::testing {
namespace {

Size size(const char* text) { return Size::parse(text); }
const Size n = Size::symbol("n"), h = Size::symbol("h");

TEST(Size, HasOneNormalForm) {
  const std::pair<const char*, const char*> forms[] = {
      {"2 + h", "h + 2"},
      {"w*h*2*n", "2*h*n*w"},
      {"h + h", "2*h"},
      {"h - h", "0"},
      {"(n + 1)*(n - 1)", "n*n - 1"},
      {"0*n", "0"},
      {"-h + 3", "-1*h + 3"},
      {"h + -1*n", "h - n"},
      {"floordiv(32*c + 64, 32)", "c + 2"},
      {"floordiv(32*c + 5, 32)", "c"},
      {"floordiv(4*c + h, 4)", "c + floordiv(h, 4)"},
      {"floordiv(n, 1)", "n"},
      {"floordiv(n, n)", "1"},
      {"floordiv(-3, 2)", "-2"},
      {"mod(4*c, 4)", "0"},
      {"mod(-1, 4)", "3"},
      {"mod(n, 1)", "0"},
      {"min(n, n)", "n"},
      {"min(2, 5)", "2"},
      {"max(2, 5)", "5"},
      {"max(h - 1, n)", "max(h - 1, n)"},
  };
  for (const auto& [text, normal] : forms) {
    EXPECT_EQ(size(text).str(), normal) << text;
    EXPECT_EQ(size(normal).str(), normal) << "reads back";
  }
}

TEST(Size, CopiesShareTheExpression) {
  const Size size = Size::floordiv(Size::symbol("h") - 1, 2) + 1, copy = size;
  EXPECT_EQ(copy.str().data(), size.str().data());
}

TEST(Size, EqualSizesCompareEqual) {
  EXPECT_EQ(n * h + Size(2), Size(2) + h * n);
  EXPECT_FALSE(n == h);
  EXPECT_TRUE(size("3*n - n - 2*n + 4").is(4));
  EXPECT_EQ(size("mod(n, 3)"), n - Size::floordiv(n, 3) * Size(3));
}

TEST(Size, ScaledSymbol) {
  EXPECT_EQ(size("6*n").scaled_symbol(), std::make_pair(int64_t{6}, std::string("n")));
  EXPECT_FALSE(size("6*n + 1").scaled_symbol());
  EXPECT_FALSE(size("n*h").scaled_symbol());
  EXPECT_FALSE(size("floordiv(n, 2)").scaled_symbol());
}

TEST(Size, LinearSymbolsOccurNowhereElse) {
  auto linear = size("2*a + b + b*c + floordiv(d, 2) + 7").linear_symbols();
  ASSERT_EQ(linear.size(), 1u);
  EXPECT_EQ(linear[0].symbol, "a");
  EXPECT_EQ(linear[0].coefficient, 2);
}

TEST(Size, SubstitutesEverywhereAndNormalisesAgain) {
  EXPECT_EQ(size("c*h + floordiv(c, 32)").substitute("c", Size(32) * n).str(), "32*h*n + n");
  EXPECT_EQ(size("min(c, 8)").substitute("c", 5).str(), "5");
  EXPECT_EQ(size("n*n").substitute("n", h + Size(1)).str(), "2*h + h*h + 1");
  EXPECT_EQ(size("n").substitute("m", 5).str(), "n");
}

TEST(Size, Evaluates) {
  auto at = [](const char* text) {
    return size(text).evaluate([](const std::string& name) { return name == "n" ? 7 : 3; });
  };
  EXPECT_EQ(at("floordiv(n - 10, 2)"), -2);
  EXPECT_EQ(at("n*n*h - 1"), 146);
  EXPECT_EQ(at("max(n, h)*min(n, h) + mod(n, h)"), 22);
}

TEST(Size, ProgramsGiveWhatExpressionsGive) {
  const std::map<std::string, int> slots = {{"n", 0}, {"h", 1}, {"c", 2}};
  std::mt19937 random(1);
  for (const char* text : {"0", "5", "n", "2*n + h - 4", "n*h*c", "floordiv(n - h, 3)", "mod(n + c, 4)*h",
                           "min(n, h) + max(floordiv(c, 2), n - 1)", "floordiv(floordiv(n, 2) + 1, 3) - 2*h"}) {
    SizeProgram program(size(text), slots);
    for (int round = 0; round < 20; ++round) {
      int64_t values[3];
      for (int64_t& value : values) value = static_cast<int64_t>(random() % 20) + 1;
      EXPECT_EQ(program.run(values), size(text).evaluate([&](const std::string& name) {
        return values[slots.at(name)];
      })) << text;
    }
  }
}

TEST(Size, ExactQuotient) {
  auto quotient = [](const char* a, const char* b) {
    auto result = Size::exact_quotient(size(a), size(b));
    return result ? result->str() : "none";
  };
  EXPECT_EQ(quotient("n*n*h", "n"), "h*n");
  EXPECT_EQ(quotient("4*n + 2*h", "2"), "h + 2*n");
  EXPECT_EQ(quotient("6*n*floordiv(h, 2)", "3*floordiv(h, 2)"), "2*n");
  EXPECT_EQ(quotient("n + 1", "n + 1"), "1");
  EXPECT_EQ(quotient("n + 1", "n"), "none");
  EXPECT_EQ(quotient("3*n", "2"), "none");
  EXPECT_EQ(quotient("n*h", "n + h"), "none");
}

TEST(Size, SaturatesInsteadOfOverflowing) {
  constexpr int64_t most = std::numeric_limits<int64_t>::max(), least = std::numeric_limits<int64_t>::min();
  const std::map<std::string, int64_t> values = {{"big", most}, {"half", most / 2 + 1}, {"small", least}, {"n", 3}};
  const std::map<std::string, int> slots = {{"big", 0}, {"half", 1}, {"small", 2}, {"n", 3}};
  const int64_t in_order[] = {most, most / 2 + 1, least, 3};
  auto expect = [&](const char* text, int64_t value) {
    EXPECT_EQ(size(text).evaluate([&](const std::string& name) { return values.at(name); }), value) << text;
    EXPECT_EQ(SizeProgram(size(text), slots).run(in_order), value) << text;
  };
  expect("big*n", most);
  expect("big*big", most);
  expect("big + n", most);
  expect("half + half", most);
  expect("half*4", most);
  expect("-2*big", least);
  expect("small - n", least);
  expect("small*big", least);
  expect("floordiv(small, -1)", most);
  expect("floordiv(big*n, n)", most / 3);
  // The numbers of an expression itself.
  EXPECT_EQ(size("9223372036854775807*9").str(), "9223372036854775807");
  EXPECT_EQ(size("9223372036854775807 + 9").str(), "9223372036854775807");
  EXPECT_EQ(size("n - 9223372036854775807 - 9").str(), "n - 9223372036854775807");
}

TEST(Size, Errors) {
  EXPECT_ERROR(size("n +"), "a number or symbol expected");
  EXPECT_ERROR(size("n m"), "unexpected 'm'");
  EXPECT_ERROR(size("sqrt(n, 2)"), "no function 'sqrt'");
  EXPECT_ERROR(size("min(n)"), "expected ','");
  EXPECT_ERROR(size("99999999999999999999"), "number");
  EXPECT_ERROR(SizeProgram(size("q + 1"), {}), "symbol 'q' is not bound by any input");
  EXPECT_ERROR(size("floordiv(n, h)").evaluate([](const std::string&) { return 0; }), "divides by zero");
}

}  // namespace
}  // namespace fusewright::testing
