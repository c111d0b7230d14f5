#pragma once
// One small graph for every row of ops.def. Tests loop over all_ops() and look here: a new row without a sample fails.
#include <map>
#include <string>
#include <vector>

namespace fusewright::testing {

struct Sample {
  enum class Gradient { exact, stopped, refused };  // finite differences agree; zero by intent; no rule: an Error

  const char* op;
  std::string text;
  double low = -2, high = 2;  // inputs are drawn from here
  Gradient gradient = Gradient::exact;
};

// Symbols of the samples; others are 3.
inline const std::map<std::string, int64_t> sample_sizes = {{"n", 3}, {"c", 4}, {"h", 5}, {"w", 4}, {"g", 2}};

inline const std::vector<Sample>& samples() {
  using enum Sample::Gradient;
  auto unary = [](const std::string& op, const std::string& attrs = "") {
    return "graph(%x: f64[n, c]) { %y = " + op + "(%x) " + attrs + " return %y }";
  };
  auto binary = [](const std::string& op) {
    return "graph(%x: f64[n, c], %m: f64[c]) { %y = " + op + "(%x, %m) return %y }";
  };
  auto choice = [](const std::string& condition) {
    return "graph(%x: f64[n, c], %m: f64[c]) { " + condition + " %y = select(%k, %x, %m) return %y }";
  };
  auto norm = [](const std::string& op, const std::string& inputs, const std::string& operands,
                 const std::string& attrs) {
    return "graph(" + inputs + ") { %y = " + op + "(" + operands + ") {" + attrs + "} return %y }";
  };
  const std::string pool = "kernel = (3, 2), stride = (2, 2), padding = (1, 0)";
  const std::string conv =
      "stride = (2, 1), padding = (1, 0), dilation = (1, 2), groups = 2, transposed = 0, "
      "output_padding = (0, 0)";
  const std::string channels = "%x: f64[n, c, g, w], %a: f64[c], %b: f64[c]";
  static const std::vector<Sample> table = {
      {"input", unary("neg")},
      {"scalar_input", "graph(%x: f64[n], %s: scalar f64[]) { %y = mul(%x, %s) return %y }"},
      {"constant",
       "graph(%x: f64[n]) { %k: f64[] = constant() {value = 2.5, runtime = 1} %y = mul(%x, %k) return %y }"},
      {"extent", "graph(%x: f64[n, c]) { %k: f64[] = extent() {size = [n*c + 1]} %y = div(%x, %k) return %y }"},
      {"iota",
       "graph(%x: f64[n, c]) { %i: i64[c] = iota() {size = [c]} %k = cast(%i) {dtype = f64} "
       "%y = mul(%x, %k) return %y }"},

      {"neg", unary("neg")},
      {"abs", unary("abs")},
      {"sign", unary("sign")},
      {"exp", unary("exp")},
      {"expm1", unary("expm1")},
      {"log", unary("log"), 0.2, 3},
      {"log1p", unary("log1p"), -0.8, 3},
      {"erf", unary("erf")},
      {"normal_cdf", unary("normal_cdf")},
      {"tanh", unary("tanh")},
      {"sigmoid", unary("sigmoid")},
      {"sin", unary("sin")},
      {"cos", unary("cos")},
      {"sqrt", unary("sqrt"), 0.2, 3},
      {"rsqrt", unary("rsqrt"), 0.2, 3},
      {"reciprocal", unary("reciprocal"), 0.2, 3},
      {"square", unary("square")},
      {"floor", unary("floor")},
      {"ceil", unary("ceil")},
      {"round", unary("round")},
      {"trunc", unary("trunc")},
      {"isnan", choice("%k = isnan(%x)")},
      {"logical_not", choice("%a = gt(%x, %m) %k = logical_not(%a)")},
      {"cast",
       "graph(%x: f64[n, c]) { %i = cast(%x) {dtype = i64} %j = cast(%i) {dtype = f64} %y = mul(%x, %j) "
       "return %y }"},
      {"stop_gradient", unary("stop_gradient"), -2, 2, stopped},

      {"add", binary("add")},
      {"sub", binary("sub")},
      {"mul", binary("mul")},
      {"div", binary("div"), 0.5, 2},
      {"pow", binary("pow"), 0.3, 2},
      {"maximum", binary("maximum")},
      {"minimum", binary("minimum")},
      {"lt", choice("%k = lt(%x, %m)")},
      {"le", choice("%k = le(%x, %m)")},
      {"gt", choice("%k = gt(%x, %m)")},
      {"ge", choice("%k = ge(%x, %m)")},
      {"eq", choice("%k = eq(%x, %m)")},
      {"ne", choice("%k = ne(%x, %m)")},
      {"logical_and", choice("%p = lt(%x, %m) %q = gt(%x, %m) %k = logical_and(%p, %q)")},
      {"logical_or", choice("%p = lt(%x, %m) %q = gt(%x, %m) %k = logical_or(%p, %q)")},
      {"select", choice("%k = lt(%x, %m)")},

      {"sum", unary("sum", "{dims = (0), keepdim = 0}")},
      {"amax", unary("amax", "{dims = (1), keepdim = 1, tie = 0}")},
      {"amin", unary("amin", "{dims = (1), keepdim = 0, tie = 1}")},
      {"prod", unary("prod", "{dims = (0, 1), keepdim = 0}")},

      {"max_pool", "graph(%x: f64[n, h, w]) { %y = max_pool(%x) {" + pool +
                       ", dilation = (1, 2), ceil_mode = 1} "
                       "return %y }"},
      {"max_pool_index", "graph(%x: f64[n, h, w]) { %i = max_pool_index(%x) {" + pool +
                             ", dilation = (1, 1), ceil_mode = 0} %y = cast(%i) {dtype = f64} return %y }"},
      {"max_pool_grad",
       "graph(%x: f64[n, h, w], %g: f64[n, floordiv(h - 1, 2) + 1, floordiv(w, 2)]) { %i = max_pool_index(%x) {" +
           pool + ", dilation = (1, 1), ceil_mode = 0} %y = max_pool_grad(%g, %i) {" + pool +
           ", dilation = (1, 1), ceil_mode = 0, input_sizes = [n, h, w]} return %y }",
       -2, 2, refused},
      {"avg_pool", "graph(%x: f64[n, h, w]) { %y = avg_pool(%x) {" + pool +
                       ", ceil_mode = 1, count_include_pad = 0, divisor = 0} return %y }"},
      {"shift", "graph(%x: f64[n, 5, w]) { %y = shift(%x) {start = (0, -1, 0), sizes = [n, 4, w]} return %y }"},
      {"avg_pool_grad",
       "graph(%g: f64[n, floordiv(h - 1, 2) + 1, floordiv(w, 2)], %x: f64[n, h, w]) { "
       "%y = avg_pool_grad(%g) {" +
           pool + ", ceil_mode = 0, count_include_pad = 1, divisor = 0, input_sizes = [n, h, w]} return %y }",
       -2, 2, refused},

      {"matmul", "graph(%x: f64[n, c], %w: f64[c, h], %b: f64[h]) { %y = matmul(%x, %w, %b) return %y }"},
      {"conv", "graph(%x: f64[1, 4, h, w], %w: f64[6, 2, 3, 2], %b: f64[6]) { %y = conv(%x, %w, %b) {" + conv +
                   "} return %y }"},
      {"conv_input_grad",
       "graph(%x: f64[1, 4, h, w], %w: f64[6, 2, 3, 2], %g: f64[1, 6, floordiv(h - 1, 2) + 1, w - 2])"
       " { %y = conv_input_grad(%g, %w) {" +
           conv + ", input_sizes = [1, 4, h, w]} return %y }",
       -2, 2, refused},
      {"conv_weight_grad",
       "graph(%x: f64[1, 4, h, w], %g: f64[1, 6, floordiv(h - 1, 2) + 1, w - 2])"
       " { %y = conv_weight_grad(%g, %x) {" +
           conv + ", weight_sizes = [6, 2, 3, 2]} return %y }",
       -2, 2, refused},

      {"reshape",
       "graph(%x: f64[n, 2*g, h], %m: f64[g, h]) { %r = reshape(%x) {sizes = [n, 2, g, h]} "
       "%y = mul(%r, %m) return %y }"},
      {"permute",
       "graph(%x: f64[n, c, h], %m: f64[c, n]) { %r = permute(%x) {dims = (2, 1, 0)} %y = mul(%r, %m) "
       "return %y }"},
      {"expand",
       "graph(%x: f64[n, 1], %m: f64[h, n, c]) { %r = expand(%x) {sizes = [h, n, c]} %y = mul(%r, %m) "
       "return %y }"},

      {"relu", unary("relu")},
      {"leaky_relu", unary("leaky_relu", "{negative_slope = 0.1}")},
      {"gelu",
       "graph(%x: f64[n, c]) { %a = gelu(%x) {approximate = \"none\"} %b = gelu(%x) {approximate = \"tanh\"} "
       "return %a, %b }"},
      {"silu", unary("silu")},
      {"mish", unary("mish")},
      {"softplus", unary("softplus", "{beta = 1.5, threshold = 2.0}")},
      {"hardswish", unary("hardswish"), -5, 5},
      {"hardsigmoid", unary("hardsigmoid"), -5, 5},
      {"hardtanh", unary("hardtanh", "{min_val = -1.0, max_val = 0.5}")},
      {"clamp", unary("clamp", "{min = -1.0, max = 0.5}")},
      {"elu", unary("elu", "{alpha = 1.2, scale = 1.1, input_scale = 0.9}")},
      {"log_sigmoid", unary("log_sigmoid")},
      {"softsign", unary("softsign")},

      {"mean", unary("mean", "{dims = (0), keepdim = 1}")},
      {"var", unary("var", "{dims = (1), keepdim = 0, correction = 1}")},
      {"stddev", unary("stddev", "{dims = (1), keepdim = 0, correction = 1}")},
      {"vector_norm",
       "graph(%x: f64[n, c]) { %a = vector_norm(%x) {dims = (1), keepdim = 0, order = 1} "
       "%b = vector_norm(%x) {dims = (0), keepdim = 1, order = 2} return %a, %b }"},
      {"argmax",
       "graph(%x: f64[n, c]) { %i = argmax(%x) {dims = (1), keepdim = 0} %y = cast(%i) {dtype = f64} return %y }"},
      {"argmin",
       "graph(%x: f64[n, c]) { %i = argmin(%x) {dims = (0), keepdim = 1} %y = cast(%i) {dtype = f64} return %y }"},
      {"pick",
       "graph(%x: f64[n, c]) { %i = argmax(%x) {dims = (1), keepdim = 1} %y = pick(%x, %i) {dim = 1} return %y }"},
      {"logsumexp", unary("logsumexp", "{dims = (1), keepdim = 0}")},
      {"softmax", unary("softmax", "{dim = 1}")},
      {"cat",
       "graph(%x: f64[n, 3, w], %u: f64[n, 2, w], %v: f64[n, 4, w]) { %y = cat(%x, %u, %v) {dim = 1} return %y }"},
      {"log_softmax", unary("log_softmax", "{dim = 0}")},
      {"group_norm", norm("group_norm", "%x: f64[n, 2*g, h], %a: f64[2*g], %b: f64[2*g]", "%x, %a, %b",
                          "groups = 2, eps = 0.001, has_weight = 1, has_bias = 1")},
      {"instance_norm", norm("instance_norm", channels, "%x, %a, %b", "eps = 0.001, has_weight = 1, has_bias = 1")},
      {"layer_norm", norm("layer_norm", "%x: f64[n, c, w], %a: f64[c, w], %b: f64[c, w]", "%x, %a, %b",
                          "axes = 2, eps = 0.001, has_weight = 1, has_bias = 1")},
      {"rms_norm", norm("rms_norm", "%x: f64[n, c], %a: f64[c]", "%x, %a", "axes = 1, eps = 0.001, has_weight = 1")},
      {"batch_norm", norm("batch_norm", channels, "%x, %a, %b", "eps = 0.001, has_weight = 1, has_bias = 1")},
      {"batch_norm_inference",
       norm("batch_norm_inference", channels + ", %m: f64[c], %v: f64[c]", "%x, %m, %v, %a, %b",
            "eps = 0.001, has_weight = 1, has_bias = 1"),
       0.2, 2},
      {"batch_norm_running_mean",
       norm("batch_norm_running_mean", "%x: f64[n, c, h], %a: f64[c]", "%x, %a", "momentum = 0.1"), -2, 2, stopped},
      {"batch_norm_running_var",
       norm("batch_norm_running_var", "%x: f64[n, c, h], %a: f64[c]", "%x, %a", "momentum = 0.1"), -2, 2, stopped},

      {"linear", "graph(%x: f64[g, n, c], %w: f64[h, c], %b: f64[h]) { %y = linear(%x, %w, %b) return %y }"},
      {"convolution",
       "graph(%x: f64[g, 4, w], %w: f64[4, 2, 3], %b: f64[4]) { %y = convolution(%x, %w, %b) "
       "{stride = (2), padding = (1), dilation = (1), groups = 2, transposed = 1, output_padding = (1)} "
       "return %y }"},
  };
  return table;
}

inline const Sample* find_sample(const std::string& op) {
  for (const Sample& sample : samples())
    if (op == sample.op) return &sample;
  return nullptr;
}

}  // namespace fusewright::testing
