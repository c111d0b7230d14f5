// The host of a program without PyTorch: our thread pool, plain memory, contractions as loops that are easy to believe.
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "fusewright/host.h"
#include "ir/error.h"
#include "kernels/prelude.h"
#include "runtime/thread_pool.h"

namespace fusewright {
namespace {

double read(const Tensor& t, int64_t offset) {
  switch (t.dtype) {
    case DType::f16:
      return fw::to_float(static_cast<const fw::half*>(t.data)[offset]);
    case DType::bf16:
      return fw::to_float(static_cast<const fw::bfloat16*>(t.data)[offset]);
    case DType::f32:
      return static_cast<const float*>(t.data)[offset];
    case DType::f64:
      return static_cast<const double*>(t.data)[offset];
    default:
      fail("contractions need a floating type");
  }
}

void write(Tensor& t, int64_t offset, double value) {
  switch (t.dtype) {
    case DType::f16:
      static_cast<fw::half*>(t.data)[offset] = fw::to_half(static_cast<float>(value));
      break;
    case DType::bf16:
      static_cast<fw::bfloat16*>(t.data)[offset] = fw::to_bfloat16(static_cast<float>(value));
      break;
    case DType::f32:
      static_cast<float*>(t.data)[offset] = static_cast<float>(value);
      break;
    default:
      static_cast<double*>(t.data)[offset] = value;
  }
}

using Index = std::array<int64_t, max_rank>;

int64_t offset_of(const Tensor& t, const Index& index) {
  int64_t offset = 0;
  for (size_t d = 0; d < static_cast<size_t>(t.rank); ++d) offset += index[d] * t.strides[d];
  return offset;
}

template <class Body>
void over(const int64_t* sizes, int rank, Index& index, Body body, int d = 0) {
  if (d == rank) return body();
  for (index[static_cast<size_t>(d)] = 0; index[static_cast<size_t>(d)] < sizes[d]; ++index[static_cast<size_t>(d)])
    over(sizes, rank, index, body, d + 1);
}

// What a result starts from; the bias has one number for each position of dimension d.
double start(const Tensor* bias, const Index& index, size_t d) {
  return bias ? read(*bias, index[d] * bias->strides[0]) : 0;
}

void matmul(const Tensor& a, const Tensor& b, const Tensor* bias, Tensor& y) {
  Index index{};
  size_t m = static_cast<size_t>(y.rank - 2), n = m + 1;
  over(y.sizes.data(), y.rank, index, [&] {
    double total = start(bias, index, n);
    Index ia = index, ib = index;
    for (int64_t k = 0; k < a.sizes[n]; ++k) {
      ia[n] = ib[m] = k;
      total += read(a, offset_of(a, ia)) * read(b, offset_of(b, ib));
    }
    write(y, offset_of(y, index), total);
  });
}

// Every product x[n, ci, p] * w * y[n, co, q] of a convolution, whichever of the three is wanted. For a transposed
// convolution the roles of x and y in the relation p = q * stride - padding + k * dilation are swapped.
struct ConvWalk {
  const LibraryCall& call;
  const int64_t *x_sizes, *y_sizes, *w_sizes;
  int space;

  template <class Body>
  void run(Body body) const {
    bool t = call.transposed;
    const int64_t *wide = t ? y_sizes : x_sizes, *narrow = t ? x_sizes : y_sizes;
    int64_t wide_channels = wide[1] / call.groups, narrow_channels = narrow[1] / call.groups;
    Index q{}, k{};
    for (int64_t n = 0; n < x_sizes[0]; ++n)
      for (int64_t g = 0; g < call.groups; ++g)
        for (int64_t cn = 0; cn < narrow_channels; ++cn)
          for (int64_t cw = 0; cw < wide_channels; ++cw)
            over(narrow + 2, space, q, [&] {
              over(w_sizes + 2, space, k, [&] {
                Index at_wide{n, g * wide_channels + cw}, at_narrow{n, g * narrow_channels + cn};
                Index at_w{g * narrow_channels + cn, cw};
                for (size_t d = 0; d < static_cast<size_t>(space); ++d) {
                  int64_t p = q[d] * call.stride[d] - call.padding[d] + k[d] * call.dilation[d];
                  if (p < 0 || p >= wide[d + 2]) return;
                  at_wide[d + 2] = p;
                  at_narrow[d + 2] = q[d];
                  at_w[d + 2] = k[d];
                }
                t ? body(at_narrow, at_w, at_wide) : body(at_wide, at_w, at_narrow);
              });
            });
  }
};

class PlainHost : public Host {
 public:
  void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) override {
    fusewright::parallel_for(n, grain, body);
  }

  void allocate(Tensor& tensor) override {
    size_t bytes = static_cast<size_t>(std::max<int64_t>(tensor.elements() * size_of(tensor.dtype), 1));
    void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!memory) throw std::bad_alloc();
    tensor.data = memory;
    tensor.owner = std::shared_ptr<void>(memory, std::free);
  }

  Tensor call(const LibraryCall& call, const std::vector<Tensor>& operands) override {
    Tensor y = make(call, operands[0].dtype);
    const Tensor* bias = operands.size() == 3 ? &operands[2] : nullptr;
    if (call.kind == LibraryCall::Kind::matmul) {
      matmul(operands[0], operands[1], bias, y);
      return y;
    }
    // Sums are formed in double, then rounded once.
    Tensor sums = make(call, DType::f64);
    Index index{};
    over(y.sizes.data(), y.rank, index,
         [&] { static_cast<double*>(sums.data)[offset_of(sums, index)] = start(bias, index, 1); });
    auto add = [&](const Index& at, double value) { static_cast<double*>(sums.data)[offset_of(sums, at)] += value; };
    const Tensor &a = operands[0], &b = operands[1];
    int space = y.rank - 2;
    switch (call.kind) {
      case LibraryCall::Kind::conv:
        ConvWalk{call, a.sizes.data(), y.sizes.data(), b.sizes.data(), space}.run(
            [&](const Index& x, const Index& w, const Index& out) {
              add(out, read(a, offset_of(a, x)) * read(b, offset_of(b, w)));
            });
        break;
      case LibraryCall::Kind::conv_input_grad:
        ConvWalk{call, y.sizes.data(), a.sizes.data(), b.sizes.data(), space}.run(
            [&](const Index& x, const Index& w, const Index& out) {
              add(x, read(a, offset_of(a, out)) * read(b, offset_of(b, w)));
            });
        break;
      default:
        ConvWalk{call, b.sizes.data(), a.sizes.data(), y.sizes.data(), space}.run(
            [&](const Index& x, const Index& w, const Index& out) {
              add(w, read(a, offset_of(a, out)) * read(b, offset_of(b, x)));
            });
    }
    over(y.sizes.data(), y.rank, index,
         [&] { write(y, offset_of(y, index), static_cast<double*>(sums.data)[offset_of(sums, index)]); });
    return y;
  }

 private:
  Tensor make(const LibraryCall& call, DType dtype) {
    Tensor tensor;
    tensor.dtype = dtype;
    tensor.rank = call.rank;
    tensor.sizes = call.sizes;
    int64_t stride = 1;
    for (int d = call.rank; d-- > 0;) {
      tensor.strides[static_cast<size_t>(d)] = stride;
      stride *= std::max<int64_t>(tensor.sizes[static_cast<size_t>(d)], 1);
    }
    allocate(tensor);
    return tensor;
  }
};

}  // namespace

void Host::copy(const Tensor& from, Tensor& to) {
  int64_t bytes = size_of(from.dtype);
  Index index{};
  over(from.sizes.data(), from.rank, index, [&] {
    std::copy_n(static_cast<const char*>(from.data) + offset_of(from, index) * bytes, bytes,
                static_cast<char*>(to.data) + offset_of(to, index) * bytes);
  });
}

void Host::clear(Tensor& tensor) {
  int64_t bytes = size_of(tensor.dtype);
  Index index{};
  over(tensor.sizes.data(), tensor.rank, index,
       [&] { std::fill_n(static_cast<char*>(tensor.data) + offset_of(tensor, index) * bytes, bytes, char{0}); });
}

Host& plain_host() {
  static PlainHost host;
  return host;
}

}  // namespace fusewright
