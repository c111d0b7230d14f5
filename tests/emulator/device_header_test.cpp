// Every wrapper of cuda_device.h, for every architecture: with the real NVRTC, which needs no GPU, and in the emulator.
#include "emulator/harness.h"
#include "runtime/compiler/compile_error.h"
#include "runtime/nvrtc_places.h"

namespace fwemu::testing {
namespace {

const std::string all_wrappers = R"(
struct Args {
  const float* x;
  float* y;
  const fw::half* h;
  double* d;
  fw::i64* l;
  unsigned char* b;
  fw::Divider divider;
  fw::ReadOnly reads;
};
template <int N, class T, class How>
FW_FN void copy(const T* from, How how, T* to) {
  T v[N];
  fw::load_vector(from, how, v);
  fw::store_vector<N>(to, v);
}
template <class How>
FW_FN void copies(const Args& a, How how) {
  fw::half* s = reinterpret_cast<fw::half*>(fw::shared_memory() + 8192 + 32 * fw::thread_index());
  copy<1>(a.h, how, s), copy<2>(a.h, how, s), copy<4>(a.h, how, s), copy<8>(a.h, how, s), copy<16>(a.h, how, s);
  copy<1>(a.x, how, a.y), copy<8>(a.x, how, a.y), copy<2>(a.d, how, a.d), copy<4>(a.l, how, a.l);
  copy<1>(a.b, how, a.b), copy<16>(a.b, how, a.b);
  fw::store(a.y, fw::load(a.x, how));
}
extern "C" __global__ void __launch_bounds__(256) everything(const __grid_constant__ Args a) {
  using namespace fw;
  char* s = shared_memory();
  const u32 i = thread_index() + block_index() * block_threads() + 0 * block_count();
  copies(a, plain);
  copies(a, a.reads);
  copies(a, ReadAgain{a.reads}), copies(a, ReadLast{{evict_normal}});
  Vector<half, 8> aligned = {};
  static_assert(alignof(Vector<half, 8>) == 16 && alignof(Vector<float, 2>) == 8 && alignof(Vector<float, 8>) == 16, "");
  float sum = to_float(aligned[i % 8]);
  sum += shuffle_xor(sum, 16) + shuffle(sum, 3) + shuffle_down(sum, 2);
  a.d[0] = shuffle_xor(double(sum), 4) + shuffle(double(sum), 1) + shuffle_down(double(sum), 1);
  a.l[0] = shuffle_xor(i64(i), 8) + shuffle(i64(i), 1) + shuffle_down(i64(i), 1) + shuffle_xor(int(i), 1);
  a.l[0] += fw::ballot(shuffle_xor(sum > 0, 1) || shuffle(sum > 1, 1) || shuffle_down(sum > 2, 1));
  copy_async<16>(s + 16 * thread_index(), a.x + 4 * i), copy_async<16>(s, a.x, 16, a.reads);
  copy_async<8>(s + 16 * thread_index(), a.x, i < 3 ? 8 : 0);
  copy_async<4>(s + 16 * thread_index(), a.x);
  copy_async_commit();
  copy_async_wait<1>();
  copy_async_wait<0>();
  barrier();
  warp_barrier();
  float c[4] = {0, 0, 0, 0};
  u32 ra[4], rb[2], r1[1];
  load_matrices<4>(ra, s + 16 * lane_index()), load_matrices<4, true>(ra, s + 16 * lane_index());
  load_matrices<2>(rb, s + 16 * lane_index()), load_matrices<2, true>(rb, s + 16 * lane_index());
  load_matrices<1>(r1, s + 16 * lane_index()), load_matrices<1, true>(r1, s + 16 * lane_index());
  mma<half>(c, ra, rb), mma<bfloat16>(c, ra, rb);
  ra[0] = to_tf32(sum).bits + r1[0];
  mma<tf32>(c, ra, rb);
#if FW_SM90
  u64* full = reinterpret_cast<u64*>(s + 4096);
  if (thread_index() == 0) {
    mbarrier_init(full, 1);
    mbarrier_fence();
  }
  barrier();
  if (thread_index() == 0) {
    fence_async();
    mbarrier_expect(full, 256);
    mbarrier_arrive_expect(full, 256);
    copy_bulk(s, a.x, 512, full);
  }
  while (!mbarrier_try_wait(full, 0)) {
  }
  mbarrier_wait(full, 0);
  barrier();  // the next phase may not end before all have seen this one's end
  if (thread_index() == 0) mbarrier_arrive(full);
  u32 words[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  if (thread_index() == 0) {
    mbarrier_arrive_expect(full, 32);
    store_async<2>(s, words, full, 0);
  }
  mbarrier_wait_cluster(full, 0);
#endif
  cluster_arrive();
  cluster_wait();
  cluster_arrive_relaxed();
  cluster_wait();
  c[0] += *cluster_pointer(s, 0);
  store_vector<4>(a.y + 4 * i, c);
  const Division q = divide(i, a.divider);
  a.l[i] = q.quotient * q.remainder;
}
)";

TEST(DeviceHeader, RealNvrtcTakesEveryWrapper) {
  const char* chosen = std::getenv("FUSEWRIGHT_REAL_NVRTC_LIBRARY");
  std::string why_not;
  const auto nvrtc = fusewright::cuda::Nvrtc::open(chosen != nullptr ? chosen : "",
                                                   fusewright::testing::package_directories(), 0, why_not);
  if (nvrtc == nullptr) GTEST_SKIP() << why_not;
  for (const char* architecture : {"sm_80", "sm_90a", "sm_100"}) {
    try {
      EXPECT_GT(nvrtc->compile(with_headers(all_wrappers), {architecture, false}).size(), 1000u);
    } catch (const fusewright::CompileError& error) {
      if (std::string(error.what()).find("invalid value for --gpu-architecture") != std::string::npos) continue;
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(DeviceHeader, EmulatorTakesEveryWrapper) {
  EXPECT_EQ(Program(all_wrappers, "sm_80").log(), "");
  const Program program(all_wrappers);
  ASSERT_EQ(program.log(), "");
  const DeviceArray<float> x(1024), y(1024);
  const DeviceArray<uint16_t> h(16);
  const DeviceArray<double> d(16);
  const DeviceArray<int64_t> l(256);
  const DeviceArray<uint8_t> b(16);
  const struct {
    const float* x;
    float* y;
    const uint16_t* h;
    double* d;
    int64_t* l;
    uint8_t* b;
    uint32_t divisor, multiplier, shift;
  } arguments = {x.data(), y.data(), h.data(), d.data(), l.data(), b.data(), 1, 1u << 31, 0};
  EXPECT_EQ(program.launch("everything", 1, 256, 2 * 8192, arguments), "");
}

}  // namespace
}  // namespace fwemu::testing
