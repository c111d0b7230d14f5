// The real NVRTC, which needs no GPU: from the test extra (`make setup`), or from torch's packages.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "codegen/kernel_code.h"
#include "nvrtc_places.h"
#include "passes/program.h"
#include "runtime/compiler/compile_error.h"
#include "runtime/cuda/nvrtc.h"
#include "test_support.h"

namespace fusewright {
namespace {

using namespace testing;
using cuda::Nvrtc;
using cuda::Target;

constexpr const char* kernel = R"(
struct Arguments {
  const float* x;
  float* y;
  long long n;
};
extern "C" __global__ void __launch_bounds__(256) scale(const __grid_constant__ Arguments arguments) {
  extern __shared__ float scratch[];
  scratch[threadIdx.x] = threadIdx.x;
  __syncthreads();
  const long long i = blockIdx.x * 256ll + threadIdx.x;
#if WITH_WGMMA
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
  if (i < arguments.n) arguments.y[i] = arguments.x[i] * scratch[0] + 1.0f;
}
)";

class NvrtcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* chosen = std::getenv("FUSEWRIGHT_NVRTC_LIBRARY");
    std::string why_not;
    nvrtc = Nvrtc::open(chosen != nullptr ? chosen : "", package_directories(), 0, why_not);
    if (nvrtc == nullptr) GTEST_SKIP() << why_not;
  }

  std::shared_ptr<const Nvrtc> nvrtc;
};

// Machine code is an ELF file of machine type 190 (EM_CUDA) that names its kernels.
void expect_cubin(const std::vector<std::byte>& bytes) {
  ASSERT_GT(bytes.size(), 64u);
  EXPECT_EQ(std::memcmp(bytes.data(),
                        "\x7f"
                        "ELF",
                        4),
            0);
  EXPECT_EQ(std::to_integer<int>(bytes[18]), 190);
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  EXPECT_NE(text.find(".text.scale"), std::string::npos);
}

TEST_F(NvrtcTest, MachineCodeForEachArchitecture) {
  for (const auto& [architecture, name] : {std::pair<cuda::Architecture, const char*>{{8, 0}, "sm_80"},
                                           {{8, 6}, "sm_86"},
                                           {{8, 9}, "sm_89"},
                                           {{9, 0}, "sm_90a"},
                                           {{10, 0}, "sm_100a"},
                                           {{12, 0}, "sm_120a"}}) {
    const Target target = nvrtc->target(architecture);
    if (target.ptx) continue;  // an older NVRTC
    EXPECT_EQ(target.name, name);
    expect_cubin(nvrtc->compile(kernel, target));
  }
  // Without the letter, too: cubins of sm_100 are what a test of all kernels may compare.
  if (!nvrtc->target({10, 0}).ptx) expect_cubin(nvrtc->compile(kernel, {"sm_100", false}));
}

// Operands through tiles: loads and stores, of any width, with vectors and without.
TEST_F(NvrtcTest, TiledKernelsForEachArchitecture) {
  Program program;
  program.forward = parse(
      "graph(%x: f32[n, c, h, w]@0231, %y: f16[n, c, h, w], %b: b8[n, c, h, w], %m: f32[c, 1, 1]) { %1 = mul(%x, %m) "
      "%2 = cast(%y) {dtype = f32} %3 = select(%b, %1, %2) %4 = exp(%3) return %3, %4@0231 }");
  fuse(program);
  ASSERT_EQ(program.forward_fusion.groups.size(), 1u);
  const KernelCode code = emit_cuda(program.forward, program.forward_fusion.groups[0].kernel);
  ASSERT_NE(code.cuda.tiled_text, "");
  for (const char* name : {"sm_80", "sm_90a", "sm_100"}) {
    for (const char* variant : {"4\n#define FW_ACROSS_VECTOR 4\n#define FW_WIDE 0\n#define FW_TILED 17ull",
                                "4\n#define FW_ACROSS_VECTOR 1\n#define FW_WIDE 0\n#define FW_TILED 17ull",
                                "1\n#define FW_ACROSS_VECTOR 4\n#define FW_WIDE 0\n#define FW_TILED 14ull",
                                "1\n#define FW_ACROSS_VECTOR 1\n#define FW_WIDE 1\n#define FW_TILED 14ull"}) {
      try {
        const auto image =
            nvrtc->compile("#define FW_ROW 0\n#define FW_ITEMS 4\n#define FW_ACROSS 1\n#define FW_VECTOR " +
                               std::string(variant) + "\n" + cuda_tile_prelude() + code.cuda.tiled_text,
                           {name, false});
        EXPECT_GT(image.size(), 1000u);
      } catch (const CompileError& error) {
        if (std::string(error.what()).find("invalid value for --gpu-architecture") != std::string::npos) continue;
        ADD_FAILURE() << error.what();
      }
    }
  }
}

// The letter is what opens Hopper's own instructions.
TEST_F(NvrtcTest, HopperInstructionsNeedTheLetter) {
  if (nvrtc->target({9, 0}).name != "sm_90a") GTEST_SKIP() << "NVRTC " << nvrtc->version() << " has no sm_90a";
  const std::string source = std::string("#define WITH_WGMMA 1\n") + kernel;
  expect_cubin(nvrtc->compile(source, nvrtc->target({9, 0})));
  EXPECT_THROW(nvrtc->compile(source, {"sm_90", false}), CompileError);
}

TEST_F(NvrtcTest, PtxForAnArchitectureOfTheFuture) {
  const Target target = nvrtc->target({99, 0});
  EXPECT_TRUE(target.ptx);
  const std::vector<std::byte> bytes = nvrtc->compile(kernel, target);
  ASSERT_FALSE(bytes.empty());
  EXPECT_EQ(bytes.back(), std::byte(0));
  const std::string text(reinterpret_cast<const char*>(bytes.data()));
  EXPECT_NE(text.find(".target sm_" + target.name.substr(target.name.find('_') + 1)), std::string::npos) << text;
  EXPECT_NE(text.find(".entry scale("), std::string::npos);
  EXPECT_NE(text.find("fma.rn.f32"), std::string::npos);  // --fmad=true
  EXPECT_EQ(text.find(".ftz"), std::string::npos);
}

TEST_F(NvrtcTest, ErrorHasTheLog) {
  try {
    nvrtc->compile("extern \"C\" __global__ void k(float* x) { x[0] = no_such_name; }\n", nvrtc->target({8, 0}));
    FAIL();
  } catch (const CompileError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("NVRTC_ERROR_COMPILATION"), std::string::npos) << text;
    EXPECT_NE(text.find("kernel.cu(1): error: identifier \"no_such_name\" is undefined"), std::string::npos) << text;
  }
}

// No directory is searched for headers: what a kernel needs is in its text.
TEST_F(NvrtcTest, NoHeaders) {
  for (const char* header : {"<cuda_fp16.h>", "<stdint.h>", "\"kernel.h\""}) {
    EXPECT_THROW(nvrtc->compile(std::string("#include ") + header + "\n", nvrtc->target({8, 0})), CompileError);
  }
}

TEST_F(NvrtcTest, SameTextSameCode) {
  EXPECT_EQ(nvrtc->compile(kernel, nvrtc->target({8, 0})), nvrtc->compile(kernel, nvrtc->target({8, 0})));
}

TEST_F(NvrtcTest, ManyThreads) {
  const Target target = nvrtc->target({8, 0});
  std::vector<std::vector<std::byte>> results(8);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = nvrtc->compile(kernel, target); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
}

}  // namespace
}  // namespace fusewright
