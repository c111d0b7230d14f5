#pragma once
// Plain arrays of doubles, and their way into and out of tensors of any type and layout.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "fusewright/tensor.h"
#include "ir/error.h"
#include "kernels/prelude.h"

namespace fusewright::testing {

using Sizes = std::vector<int64_t>;

inline int64_t count_of(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

struct Array {
  DType dtype = DType::f64;
  Sizes sizes;
  std::vector<double> data;  // row-major

  Array() = default;
  Array(DType type, Sizes shape, std::vector<double> values)
      : dtype(type), sizes(std::move(shape)), data(std::move(values)) {
    require(static_cast<int64_t>(data.size()) == count_of(sizes), "test: wrong number of values");
  }
  Array(DType type, Sizes shape, double value = 0) : dtype(type), sizes(std::move(shape)) {
    data.assign(static_cast<size_t>(count_of(sizes)), value);
  }
  int rank() const { return static_cast<int>(sizes.size()); }
  size_t size() const { return data.size(); }

  int64_t offset(const Sizes& index) const {
    int64_t at = 0;
    for (size_t d = 0; d < sizes.size(); ++d) at = at * sizes[d] + index[d];
    return at;
  }
  double& operator()(const Sizes& index) { return data[static_cast<size_t>(offset(index))]; }
  double operator()(const Sizes& index) const { return data[static_cast<size_t>(offset(index))]; }
};

// body(index) for every index of a space, last dimension fastest.
template <class Body>
void for_each_index(const Sizes& sizes, Body body) {
  if (count_of(sizes) == 0) return;
  Sizes index(sizes.size(), 0);
  while (true) {
    body(static_cast<const Sizes&>(index));
    size_t d = sizes.size();
    while (d > 0 && ++index[d - 1] == sizes[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

// body(at) for every index of a space, last dimension fastest: at[k] is the offset by strides[k].
template <class Body>
void walk(const Sizes& sizes, const std::vector<Sizes>& strides, Body body) {
  if (count_of(sizes) == 0) return;
  Sizes index(sizes.size(), 0), at(strides.size(), 0);
  while (true) {
    body(static_cast<const Sizes&>(at));
    size_t d = sizes.size();
    while (d > 0) {
      --d;
      for (size_t k = 0; k < at.size(); ++k) at[k] += strides[k][d];
      if (++index[d] < sizes[d]) break;
      for (size_t k = 0; k < at.size(); ++k) at[k] -= strides[k][d] * sizes[d];
      index[d] = 0;
      if (d == 0) return;
    }
    if (sizes.empty()) return;
  }
}

// Strides of a row-major array of these sizes that is broadcast to `rank` dimensions: 0 where it is repeated.
inline Sizes broadcast_strides(const Sizes& sizes, size_t rank) {
  Sizes strides(rank, 0);
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] != 1) strides[d + rank - sizes.size()] = stride;
    stride *= sizes[d];
  }
  return strides;
}

// A number as it reads back from an element type.
inline double rounded(double value, DType dtype) {
  switch (dtype) {
    case DType::f16:
      return fw::to_float(fw::to_half(static_cast<float>(value)));
    case DType::bf16:
      return fw::to_float(fw::to_bfloat16(static_cast<float>(value)));
    case DType::f32:
      return static_cast<float>(value);
    case DType::f64:
      return value;
    case DType::b8:
      return value != 0;
    default:
      return std::trunc(value);
  }
}

inline Array random_array(DType dtype, const Sizes& sizes, std::mt19937& random, double low = -2, double high = 2) {
  Array result(dtype, sizes);
  std::uniform_real_distribution<double> uniform(low, high);
  for (double& value : result.data) value = rounded(uniform(random), dtype);
  return result;
}

template <class Body>
void with_storage_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::f16:
      return body(fw::half{});
    case DType::bf16:
      return body(fw::bfloat16{});
    case DType::f32:
      return body(float{});
    case DType::f64:
      return body(double{});
    case DType::i8:
      return body(fw::i8{});
    case DType::u8:
      return body(fw::u8{});
    case DType::i16:
      return body(fw::i16{});
    case DType::i32:
      return body(fw::i32{});
    case DType::i64:
      return body(fw::i64{});
    case DType::b8:
      return body(bool{});
  }
}

// Where tensors of tests lie. Plain memory, unless a GPU must reach it (fuzz/gpu_host.h).
struct Memory {
  virtual ~Memory() = default;
  virtual std::shared_ptr<void> bytes(size_t count) { return {std::malloc(count), std::free}; }
  virtual void wait() {}  // until what kernels write is there

  static Memory*& of_tests() {
    static Memory* chosen = nullptr;
    return chosen;
  }
  static Memory& get() {
    static Memory plain;
    return of_tests() ? *of_tests() : plain;
  }
};

// How an array lies in memory.
struct Layout {
  std::vector<int> order;        // dimensions, outermost first; empty: row-major
  int64_t step = 1, offset = 0;  // between neighbours, and in front
  std::vector<bool> expanded;    // these dimensions have stride 0 (the array must not vary along them)
};

inline Tensor to_tensor(const Array& array, const Layout& layout = {}) {
  Tensor t;
  t.dtype = array.dtype;
  t.rank = array.rank();
  std::copy(array.sizes.begin(), array.sizes.end(), t.sizes.begin());
  int64_t stride = layout.step;
  for (int i = t.rank; i-- > 0;) {
    size_t d = static_cast<size_t>(layout.order.empty() ? i : layout.order[static_cast<size_t>(i)]);
    bool expanded = d < layout.expanded.size() && layout.expanded[d];
    t.strides[d] = expanded ? 0 : stride;
    if (!expanded) stride *= std::max<int64_t>(t.sizes[d], 1);
  }
  size_t bytes = static_cast<size_t>((stride + layout.offset + 1) * size_of(array.dtype));
  t.owner = Memory::get().bytes(bytes);
  std::memset(t.owner.get(), 0x7f, bytes);  // what lies between the elements must not matter
  t.data = static_cast<char*>(t.owner.get()) + layout.offset * size_of(array.dtype);
  size_t next = 0;
  for_each_index(array.sizes, [&](const Sizes& index) {
    int64_t at = 0;
    for (size_t d = 0; d < index.size(); ++d) at += index[d] * t.strides[d];
    double value = array.data[next++];
    with_storage_type(array.dtype, [&](auto kind) {
      using T = decltype(kind);
      static_cast<T*>(t.data)[at] = fw::convert<T>(value);
    });
  });
  return t;
}

inline Array to_array(const Tensor& t) {
  Array result(t.dtype, Sizes(t.sizes.begin(), t.sizes.begin() + t.rank));
  Memory::get().wait();
  size_t next = 0;
  for_each_index(result.sizes, [&](const Sizes& index) {
    int64_t at = 0;
    for (size_t d = 0; d < index.size(); ++d) at += index[d] * t.strides[d];
    with_storage_type(t.dtype, [&](auto kind) {
      using T = decltype(kind);
      result.data[next++] = fw::convert<double>(static_cast<const T*>(t.data)[at]);
    });
  });
  return result;
}

inline std::string text_of(const Sizes& sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + "]";
}

// Empty when the arrays agree: |a - b| <= absolute + relative * |b|, NaN with NaN, infinity with the same infinity.
inline std::string difference(const Array& a, const Array& b, double relative, double absolute) {
  if (a.sizes != b.sizes) return "sizes " + text_of(a.sizes) + " against " + text_of(b.sizes);
  if (a.dtype != b.dtype) return "element types differ";
  for (size_t i = 0; i < a.size(); ++i) {
    double x = a.data[i], y = b.data[i];
    bool same = (std::isnan(x) && std::isnan(y)) || x == y || std::abs(x - y) <= absolute + relative * std::abs(y);
    if (!same)
      return "element " + std::to_string(i) + " of " + text_of(a.sizes) + ": " + std::to_string(x) + " against " +
             std::to_string(y);
  }
  return "";
}

}  // namespace fusewright::testing
