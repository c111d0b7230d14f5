// Kernels in the style of the project's own that are right: they give the right numbers, for every seed.
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "emulator/harness.h"

namespace fwemu::testing {
namespace {

struct Pointers {
  const void* x;
  const void* y;
  void* out;
  int rows, columns;
};
const std::string args = R"(
namespace {
struct Args {
  const void* x;
  const void* y;
  void* out;
  int rows, columns;
};
}
)";

float wave(size_t i) { return std::sin(0.37f * static_cast<float>(i % 9973)) * 3; }

// ---- reductions ----

const std::string layernorm = args + R"(
template <int warps>
FW_FN float block_sum(float x, float* partial) {
  for (int offset = 16; offset > 0; offset /= 2) x += fw::shuffle_xor(x, offset);
  if (fw::lane_index() == 0) partial[fw::warp_index()] = x;
  fw::barrier();
  float sum = 0;
  for (int i = 0; i < warps; ++i) sum += partial[i];
  fw::barrier();
  return sum;
}

extern "C" __global__ void __launch_bounds__(256) layernorm(const __grid_constant__ Args a) {
  float* partial = reinterpret_cast<float*>(fw::shared_memory());
  const float* row = static_cast<const float*>(a.x) + fw::i64(fw::block_index()) * a.columns;
  float v[4];
  fw::load_vector(row + 4 * fw::thread_index(), fw::read_only, v);
  const float mean = block_sum<8>(v[0] + v[1] + v[2] + v[3], partial) / a.columns;
  float square = 0;
  for (int i = 0; i < 4; ++i) v[i] -= mean, square += v[i] * v[i];
  const float scale = fw::rsqrt(block_sum<8>(square, partial) / a.columns + 1e-5f);
  for (int i = 0; i < 4; ++i) v[i] *= scale;
  fw::store_vector<4>(static_cast<float*>(a.out) + fw::i64(fw::block_index()) * a.columns + 4 * fw::thread_index(), v);
}
)";

TEST(EmulatedKernels, LayernormForManySeeds) {
  const Program program(layernorm);
  const int rows = 256, columns = 1024;
  const DeviceArray<float> x(rows * columns, wave), out(rows * columns);
  std::vector<float> first;
  for (unsigned seed : {1, 2, 3, 77, 123456}) {
    const Seed scope(seed);
    const auto start = std::chrono::steady_clock::now();
    ASSERT_EQ(program.launch("layernorm", rows, 256, 32, Pointers{x.data(), nullptr, out.data(), rows, columns}), "");
    const auto time = std::chrono::steady_clock::now() - start;
    RecordProperty("milliseconds",
                   static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(time).count()));
    if (first.empty()) first = out.copy();
    ASSERT_EQ(out.copy(), first) << seed;
  }
  for (int row = 0; row < rows; ++row) {
    double mean = 0, square = 0;
    for (int i = 0; i < columns; ++i) mean += x[row * columns + i];
    mean /= columns;
    for (int i = 0; i < columns; ++i) square += std::pow(x[row * columns + i] - mean, 2);
    const double scale = 1 / std::sqrt(square / columns + 1e-5);
    for (int i = 0; i < columns; ++i) {
      ASSERT_NEAR(first[row * columns + i], (x[row * columns + i] - mean) * scale, 1e-5) << row << " " << i;
    }
  }
}

TEST(EmulatedKernels, ShufflesAndBallots) {
  const Program program(args + R"(
extern "C" __global__ void exchange(const Args a) {
  const int lane = fw::lane_index();
  fw::i64* out = static_cast<fw::i64*>(a.out) + 10 * fw::thread_index();
  *out++ = fw::shuffle_xor(lane, 5);
  *out++ = fw::i64(fw::shuffle_xor(lane + 0.5, 16) * 2);
  *out++ = fw::i64(fw::shuffle(lane + 0.25f, 7) * 4);
  *out++ = fw::shuffle_xor(fw::i64(lane) << 40, 3);
  *out++ = fw::shuffle_xor(lane % 3 == 0, 1);
  *out++ = fw::ballot(lane % 2 == 1);
  *out++ = fw::shuffle_down(lane, 30);
  *out++ = __shfl_xor_sync(~0u, lane, 1, 4);
  *out++ = __shfl_up_sync(~0u, lane, 2, 8);
  // Half warps for themselves.
  *out++ = lane < 16 ? __shfl_sync(0xffffu, lane, 3) : __shfl_sync(0xffff0000u, lane, 20);
}
)");
  const DeviceArray<int64_t> out(64 * 10);
  ASSERT_EQ(program.launch("exchange", 1, 64, 0, Pointers{nullptr, nullptr, out.data(), 0, 0}), "");
  for (int thread = 0; thread < 64; ++thread) {
    const int lane = thread % 32;
    const std::vector<int64_t> expected = {
        lane ^ 5,   (lane ^ 16) * 2 + 1,         29,       int64_t{lane ^ 3} << 40,        (lane ^ 1) % 3 == 0,
        0xaaaaaaaa, lane < 2 ? lane + 30 : lane, lane ^ 1, lane % 8 < 2 ? lane : lane - 2, lane < 16 ? 3 : 20};
    for (int i = 0; i < 10; ++i) EXPECT_EQ(out[thread * 10 + i], expected[i]) << thread << " " << i;
  }
}

TEST(EmulatedKernels, TranspositionThroughSharedMemory) {
  const Program program(args + R"(
extern "C" __global__ void transpose(const Args a) {
  fw::half(*tile)[33] = reinterpret_cast<fw::half(*)[33]>(fw::shared_memory());
  const int tiles = (a.columns + 31) / 32;
  const int row = fw::block_index() / tiles * 32, column = fw::block_index() % tiles * 32;
  const int x = fw::lane_index();
  for (int y = fw::warp_index(); y < 32; y += 8) {
    if (row + y < a.rows && column + x < a.columns) {
      tile[y][x] = fw::load(static_cast<const fw::half*>(a.x) + (row + y) * a.columns + column + x, fw::read_only);
    }
  }
  fw::barrier();
  for (int y = fw::warp_index(); y < 32; y += 8) {
    if (column + y < a.columns && row + x < a.rows) {
      fw::store(static_cast<fw::half*>(a.out) + (column + y) * a.rows + row + x, tile[x][y]);
    }
  }
}
)");
  const int rows = 77, columns = 131;
  const DeviceArray<uint16_t> x(rows * columns, [](size_t i) { return i * 7; }), out(rows * columns);
  const unsigned blocks = 3 * 5;
  ASSERT_EQ(
      program.launch("transpose", blocks, 256, 32 * 33 * 2, Pointers{x.data(), nullptr, out.data(), rows, columns}),
      "");
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) ASSERT_EQ(out[j * rows + i], x[i * columns + j]) << i << " " << j;
  }
}

TEST(EmulatedKernels, Atomics) {
  for (const char* races : {"0", "1"}) {
    setenv("FUSEWRIGHT_EMULATOR_RACES", races, 1);
    const Program program(args + R"(
extern "C" __global__ void count(const Args a) {
  atomicAdd(static_cast<float*>(a.out), 1.0f);
  atomicAdd(reinterpret_cast<unsigned*>(fw::shared_memory()), 1u - 0 * fw::thread_index());
  fw::barrier();
  atomicMax(static_cast<int*>(a.out) + 1, int(*reinterpret_cast<unsigned*>(fw::shared_memory())));
}
)");
    unsetenv("FUSEWRIGHT_EMULATOR_RACES");
    const DeviceArray<float> out(2, [](size_t) { return 0; });
    ASSERT_EQ(program.launch("count", 20, 96, 4, Pointers{nullptr, nullptr, out.data(), 0, 0}), "");
    EXPECT_EQ(out[0], 20 * 96);
    int most;
    std::memcpy(&most, &out[1], 4);
    EXPECT_EQ(most, 95);  // from poison, which is -1
  }
}

TEST(EmulatedKernels, DivisionByAnInvariant) {
  const Program program(R"(
struct Args {
  fw::Divider divider;
  unsigned* out;
};
extern "C" __global__ void divide(const Args a) {
  const fw::Division d = fw::divide(fw::block_index() * fw::block_threads() + fw::thread_index(), a.divider);
  a.out[2 * (fw::block_index() * fw::block_threads() + fw::thread_index())] = d.quotient;
  a.out[2 * (fw::block_index() * fw::block_threads() + fw::thread_index()) + 1] = d.remainder;
}
)");
  const DeviceArray<uint32_t> out(2 * 4 * 128);
  struct {
    uint32_t divisor, multiplier, shift;
    uint32_t* out;
  } arguments = {7, 0x92492493u, 3, out.data()};
  ASSERT_EQ(program.launch("divide", 4, 128, 0, arguments), "");
  for (uint32_t i = 0; i < 512; ++i) {
    EXPECT_EQ(out[2 * i], i / 7);
    EXPECT_EQ(out[2 * i + 1], i % 7);
  }
}

// ---- asynchronous copies ----

// Sums tiles of 256 floats with two of them under way; the last tile is cut off and filled with zeros.
TEST(EmulatedKernels, PipelineOfAsyncCopies) {
  const Program program(args + R"(
extern "C" __global__ void pipeline(const Args a) {
  constexpr int stages = 3, tile = 256;
  float* buffer = reinterpret_cast<float*>(fw::shared_memory());
  const float* x = static_cast<const float*>(a.x);
  const int tiles = (a.columns + tile - 1) / tile, thread = fw::thread_index();
  const auto fetch = [&](int t) {
    const int at = t * tile + 4 * thread;
    const int left = a.columns - at;
    if (t < tiles) {
      const unsigned valid = left >= 4 ? 16 : left > 0 ? 4 * left : 0;
      fw::copy_async<16>(buffer + t % stages * tile + 4 * thread, valid ? x + at : x, valid);
    }
    fw::copy_async_commit();
  };
  fetch(0), fetch(1);
  float sum = 0;
  for (int t = 0; t < tiles; ++t) {
    fw::copy_async_wait<1>();
    fw::barrier();
    fetch(t + 2);
    for (int i = 0; i < 4; ++i) sum += buffer[t % stages * tile + (4 * thread + i + 77) % tile];
  }
  static_cast<float*>(a.out)[thread] = sum;
}
)");
  const int count = 9 * 256 + 101;
  const DeviceArray<float> x(count, [](size_t i) { return static_cast<float>(i % 100); }), out(64);
  for (unsigned seed : {1, 5, 9}) {
    const Seed scope(seed);
    ASSERT_EQ(program.launch("pipeline", 1, 64, 3 * 1024, Pointers{x.data(), nullptr, out.data(), 1, count}), "");
    for (int thread = 0; thread < 64; ++thread) {
      float sum = 0;
      for (int t = 0; t < 10; ++t) {
        for (int i = 0; i < 4; ++i) {
          const int at = t * 256 + (4 * thread + i + 77) % 256;
          if (at < count) sum += x[at];
        }
      }
      EXPECT_EQ(out[thread], sum) << thread;
    }
  }
}

// One warp fetches by bulk copies, the other three add up; `full` and `empty` barriers for each stage.
TEST(EmulatedKernels, PipelineOfBulkCopies) {
  const Program program(args + R"(
extern "C" __global__ void bulk(const Args a) {
  constexpr int stages = 3, tile = 96 * 4;
  float* buffer = reinterpret_cast<float*>(fw::shared_memory());
  fw::u64* full = reinterpret_cast<fw::u64*>(buffer + stages * tile);
  fw::u64* empty = full + stages;
  const int tiles = a.columns / tile, thread = fw::thread_index();
  if (thread == 0) {
    for (int i = 0; i < stages; ++i) fw::mbarrier_init(full + i, 1), fw::mbarrier_init(empty + i, 96);
    fw::mbarrier_fence();
  }
  fw::barrier();
  if (fw::warp_index() == 3) {
    if (fw::lane_index() == 0) {
      for (int t = 0; t < tiles; ++t) {
        const int stage = t % stages, round = t / stages;
        if (round > 0) fw::mbarrier_wait(empty + stage, (round - 1) & 1);
        fw::mbarrier_arrive_expect(full + stage, 4 * tile);
        const float* from = static_cast<const float*>(a.x) + t * tile;
        fw::copy_bulk(buffer + stage * tile, from, 2 * tile, full + stage);
        fw::copy_bulk(buffer + stage * tile + tile / 2, from + tile / 2, 2 * tile, full + stage);
      }
    }
    return;
  }
  float sum = 0;
  for (int t = 0; t < tiles; ++t) {
    const int stage = t % stages, round = t / stages;
    fw::mbarrier_wait(full + stage, round & 1);
    for (int i = 0; i < 4; ++i) sum += buffer[stage * tile + thread + 96 * i];
    fw::mbarrier_arrive(empty + stage);
  }
  static_cast<float*>(a.out)[thread] = sum;
}
)");
  const int tiles = 10, count = tiles * 384;
  const DeviceArray<float> x(count, [](size_t i) { return static_cast<float>(i % 91); }), out(96);
  for (unsigned seed : {1, 5, 9}) {
    const Seed scope(seed);
    ASSERT_EQ(program.launch("bulk", 1, 128, 3 * 384 * 4 + 48, Pointers{x.data(), nullptr, out.data(), 1, count}), "");
    for (int thread = 0; thread < 96; ++thread) {
      float sum = 0;
      for (int t = 0; t < tiles * 4; ++t) sum += x[t * 96 + thread];
      EXPECT_EQ(out[thread], sum) << thread;
    }
  }
}

// ---- clusters ----

// Each block leaves a number in the shared memory of all blocks of its cluster.
TEST(Clusters, ReachIntoEachOther) {
  const Program program(R"(
namespace {
struct Args {
  float* out;
  unsigned cluster;
};
}
extern "C" __global__ void k(const Args a) {
  float* s = reinterpret_cast<float*>(fw::shared_memory());
  const unsigned rank = fw::block_index() % a.cluster;
  fw::cluster_arrive();
  float sum = 0;
  for (int round = 0; round < 3; ++round) {
    fw::cluster_wait();
    if (fw::thread_index() < a.cluster) *fw::cluster_pointer(s + rank, fw::thread_index()) = fw::block_index() + round;
    fw::cluster_arrive();
    fw::cluster_wait();
    for (unsigned i = 0; i < a.cluster; ++i) sum += s[i];
    fw::cluster_arrive();
  }
  fw::cluster_wait();
  a.out[fw::block_index() * 64 + fw::thread_index()] = sum;
}
)");
  ASSERT_EQ(program.log(), "");
  struct {
    float* out;
    unsigned cluster;
  } arguments;
  for (unsigned cluster : {1u, 2u, 4u, 8u}) {
    for (unsigned seed = 1; seed <= 4; ++seed) {
      const Seed scope(seed);
      const DeviceArray<float> out(16 * 64);
      arguments = {out.data(), cluster};
      ASSERT_EQ(program.launch("k", 16, 64, cluster * 4, arguments, cluster), "");
      for (unsigned i = 0; i < 16 * 64; ++i) {
        const unsigned first = i / 64 / cluster * cluster;
        float expected = 0;
        for (unsigned b = first; b < first + cluster; ++b) expected += 3.0f * static_cast<float>(b) + 3;
        ASSERT_EQ(out[i], expected) << i;
      }
    }
  }
}

// Each block sends a number to all blocks of its cluster, six times: through two places in turn, by stores that
// barriers count. Only the first exchange has a barrier of the cluster before it.
TEST(Clusters, StoreIntoEachOther) {
  const Program program(R"(
namespace {
struct Args {
  float* out;
  unsigned cluster;
};
}
extern "C" __global__ void k(const Args a) {
  fw::u64* arrived = reinterpret_cast<fw::u64*>(fw::shared_memory());
  const unsigned rank = fw::block_index() % a.cluster, t = fw::thread_index();
  if (t == 0) {
    fw::mbarrier_init(arrived, 1);
    fw::mbarrier_init(arrived + 1, 1);
    fw::mbarrier_fence();
  }
  fw::cluster_arrive();
  fw::cluster_wait();
  float sum = 0;
  for (unsigned round = 0; round < 6; ++round) {
    fw::u32* slots = reinterpret_cast<fw::u32*>(fw::shared_memory()) + 4 + (round & 1) * a.cluster * 4;
    fw::barrier();
    if (t == 0) fw::mbarrier_arrive_expect(arrived + (round & 1), a.cluster * 16);
    const fw::u32 words[4] = {fw::block_index(), round, 1, 2};
    if (t < a.cluster) fw::store_async<1>(slots + rank * 4, words, arrived + (round & 1), t);
    fw::mbarrier_wait_cluster(arrived + (round & 1), (round >> 1) & 1);
    for (unsigned i = 0; i < a.cluster; ++i)
      sum += slots[i * 4] * 8 + slots[i * 4 + 1] + slots[i * 4 + 2] * slots[i * 4 + 3];
  }
  a.out[fw::block_index() * 64 + t] = sum;
}
)");
  ASSERT_EQ(program.log(), "");
  struct {
    float* out;
    unsigned cluster;
  } arguments;
  for (unsigned cluster : {1u, 2u, 4u, 8u}) {
    for (unsigned seed = 1; seed <= 8; ++seed) {
      const Seed scope(seed);
      const DeviceArray<float> out(16 * 64);
      arguments = {out.data(), cluster};
      ASSERT_EQ(program.launch("k", 16, 64, 16 + cluster * 32, arguments, cluster), "");
      for (unsigned i = 0; i < 16 * 64; ++i) {
        const unsigned first = i / 64 / cluster * cluster;
        float expected = 0;
        for (unsigned b = first; b < first + cluster; ++b) expected += 6 * (8 * static_cast<float>(b) + 2) + 15;
        ASSERT_EQ(out[i], expected) << i << ", clusters of " << cluster << ", seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace fwemu::testing
