// Products on emulated tensor cores, against sums in double.
#include <cmath>
#include <cstring>

#include "emulator/harness.h"
#include "kernels/prelude.h"

namespace fwemu::testing {
namespace {

struct Arguments {
  const void* a;
  const void* b;
  float* c;
  int size;
};

// 64 x 64 of the product by a block of 4 warps; slices of 32 along K come by cp.async, two buffers.
const std::string gemm = R"(
namespace {
struct Args {
  const void* a;
  const void* b;
  float* c;
  int size;
};
}
template <class T>
FW_FN void gemm(const Args& args) {
  constexpr int tile = 64, depth = 32, pitch_a = depth + 8, pitch_b = tile + 8;
  constexpr int buffer = tile * pitch_a + depth * pitch_b;
  T* shared = reinterpret_cast<T*>(fw::shared_memory());
  const T *a = static_cast<const T*>(args.a), *b = static_cast<const T*>(args.b);
  const int n = args.size, tiles = n / tile;
  const int row0 = fw::block_index() / tiles * tile, column0 = fw::block_index() % tiles * tile;
  const int thread = fw::thread_index(), lane = fw::lane_index(), warp = fw::warp_index();
  const int row1 = warp / 2 * 32, column1 = warp % 2 * 32;
  const auto fetch = [&](int k) {
    T* to = shared + k / depth % 2 * buffer;
    for (int i = thread; i < tile * depth / 8; i += 128) {
      const int row = i / (depth / 8), column = i % (depth / 8) * 8;
      fw::copy_async<16>(to + row * pitch_a + column, a + (row0 + row) * n + k + column);
    }
    to += tile * pitch_a;
    for (int i = thread; i < depth * tile / 8; i += 128) {
      const int row = i / (tile / 8), column = i % (tile / 8) * 8;
      fw::copy_async<16>(to + row * pitch_b + column, b + (k + row) * n + column0 + column);
    }
    fw::copy_async_commit();
  };
  float c[2][4][4] = {};
  fetch(0);
  for (int k = 0; k < n; k += depth) {
    fw::copy_async_wait<0>();
    fw::barrier();
    if (k + depth < n) fetch(k + depth);
    const T* from_a = shared + k / depth % 2 * buffer;
    const T* from_b = from_a + tile * pitch_a;
    for (int kk = 0; kk < depth; kk += 16) {
      fw::u32 ra[2][4], rb[4][2];
      for (int i = 0; i < 2; ++i)
        fw::load_matrices<4>(ra[i], from_a + (row1 + 16 * i + lane % 16) * pitch_a + kk + lane / 16 * 8);
      for (int j = 0; j < 4; ++j)
        fw::load_matrices<2, true>(rb[j], from_b + (kk + lane % 16) * pitch_b + column1 + 8 * j);
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j) fw::mma<T>(c[i][j], ra[i], rb[j]);
    }
  }
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 4; ++j)
      for (int h = 0; h < 2; ++h) {
        const float pair[2] = {c[i][j][2 * h], c[i][j][2 * h + 1]};
        const int row = row0 + row1 + 16 * i + 8 * h + lane / 4, column = column0 + column1 + 8 * j + lane % 4 * 2;
        fw::store_vector<2>(args.c + row * n + column, pair);
      }
}
extern "C" __global__ void __launch_bounds__(128) gemm_half(const Args a) { gemm<fw::half>(a); }
extern "C" __global__ void __launch_bounds__(128) gemm_bfloat16(const Args a) { gemm<fw::bfloat16>(a); }
)";

uint16_t bfloat16_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>(bits >> 16);
}

TEST(EmulatedTensorCores, Gemm) {
  const Program program(gemm);
  constexpr int n = 128;
  // Small multiples of 1/16: exact in both types.
  const auto value = [](size_t i) { return static_cast<float>(static_cast<int>(i * 7919 % 33) - 16) / 16; };
  for (const bool bf16 : {false, true}) {
    const auto encode = [&](size_t i) {
      const float x = value(i);
      if (bf16) return bfloat16_of(x);
      return fw::to_half(x).bits;  // not _Float16, which GCC 11 lacks
    };
    const DeviceArray<uint16_t> a(n * n, encode), b(n * n, [&](size_t i) { return encode(i * 3 + 1); });
    const DeviceArray<float> c(n * n);
    for (unsigned seed : {1, 2}) {
      const Seed scope(seed);
      ASSERT_EQ(program.launch(bf16 ? "gemm_bfloat16" : "gemm_half", 4, 128, 2 * 2 * (64 * 40 + 32 * 72),
                               Arguments{a.data(), b.data(), c.data(), n}),
                "");
      for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n; ++j) {
          double sum = 0;
          for (int k = 0; k < n; ++k) sum += double(value(i * n + k)) * value((k * n + j) * 3 + 1);
          ASSERT_EQ(c[i * n + j], static_cast<float>(sum)) << i << " " << j;
        }
      }
    }
  }
}

TEST(EmulatedTensorCores, Tf32) {
  const Program program(R"(
struct Args {
  const float* a;
  const float* b;
  float* c;
  int size;
};
extern "C" __global__ void product(const Args args) {
  const int g = fw::lane_index() / 4, t = fw::lane_index() % 4;
  fw::u32 a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = fw::to_tf32(args.a[(g + i % 2 * 8) * 8 + t + i / 2 * 4]).bits;
  for (int i = 0; i < 2; ++i) b[i] = fw::to_tf32(args.b[(t + 4 * i) * 8 + g]).bits;
  float c[4] = {1, 1, 1, 1};
  fw::mma<fw::tf32>(c, a, b);
  for (int i = 0; i < 4; ++i) args.c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = c[i];
}
)");
  const auto wave = [](size_t i) { return std::sin(0.7f * static_cast<float>(i)); };
  const auto round = [](float x) {
    return std::ldexp(std::round(std::ldexp(x, 11 - std::ilogb(x) - 1)), std::ilogb(x) - 10);
  };
  const DeviceArray<float> a(16 * 8, wave), b(8 * 8, [&](size_t i) { return wave(i + 1000); }), c(16 * 8);
  ASSERT_EQ(program.launch("product", 1, 32, 0, Arguments{a.data(), b.data(), c.data(), 0}), "");
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      double sum = 1;
      for (int k = 0; k < 8; ++k) {
        const float x = a[i * 8 + k], y = b[k * 8 + j];
        sum += double(x == 0 ? 0 : round(x)) * (y == 0 ? 0 : round(y));
      }
      EXPECT_FLOAT_EQ(c[i * 8 + j], static_cast<float>(sum)) << i << " " << j;
    }
  }
}

}  // namespace
}  // namespace fwemu::testing
