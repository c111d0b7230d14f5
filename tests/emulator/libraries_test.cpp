// Tests the messages of the fake libraries about mistakes that are not a kernel's.
#include "emulator/harness.h"

namespace fwemu::testing {
namespace {

TEST(Emulator, DeviceIsAnSm90) {
  const Libraries& call = Libraries::get();
  int major = 0, processors = 0, shared = 0;
  call.cuDeviceGetAttribute(&major, fusewright::cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
  call.cuDeviceGetAttribute(&processors, fusewright::cuda::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
  call.cuDeviceGetAttribute(&shared, fusewright::cuda::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 0);
  EXPECT_EQ(major, 9);
  EXPECT_EQ(processors, 132);
  EXPECT_EQ(shared, 232448);
}

TEST(Emulator, CompilersWordsComeBack) {
  const Program program("struct Args {};\nextern \"C\" __global__ void k(const Args a) { no_such_thing(); }\n");
  EXPECT_NE(program.log().find("no_such_thing"), std::string::npos) << program.log();
  EXPECT_NE(program.log().find("kernel.cu:"), std::string::npos) << program.log();
}

// Texts that the project generates begin so. Most are never launched, and only a launch compiles.
TEST(Emulator, GeneratedTextsAreCompiledWhenTheyAreLaunched) {
  const std::string head = "#define FW_VECTOR 1\nstruct Args { int x; };\n";
  const int argument = 0;
  const Program broken(WholeText{head + "extern \"C\" __global__ void k(const Args a) { no_such_thing(); }\n"});
  EXPECT_EQ(broken.log(), "");
  EXPECT_NE(broken.launch("other", 1, 32, 0, argument), "");
  const std::string words = broken.launch("k", 1, 32, 0, argument);
  EXPECT_NE(words.find("no_such_thing"), std::string::npos) << words;
  EXPECT_NE(words.find("kernel.cu:3"), std::string::npos) << words;
  const Program right(WholeText{head + "extern \"C\" __global__ void k(const Args a) {}\n"});
  EXPECT_EQ(right.launch("k", 1, 32, 0, argument), "");
  EXPECT_EQ(right.launch("k", 2, 32, 0, argument), "");
}

TEST(Emulator, WrongKernelGridOrSharedMemoryIsAnError) {
  const Program program("struct Args { int x; };\nextern \"C\" __global__ void k(const Args a) {}\n");
  const int argument = 0;
  EXPECT_NE(program.launch("other", 1, 32, 0, argument), "");
  EXPECT_NE(program.launch("k", 1, 2048, 0, argument), "");
  EXPECT_NE(program.launch("k", 0, 32, 0, argument), "");
  EXPECT_NE(program.launch("k", 1, 32, 228 << 10, argument), "");
  EXPECT_EQ(program.launch("k", 1, 32, 227 << 10, argument), "");
}

TEST(Emulator, ForeignImageIsRefused) {
  CUmodule module = nullptr;
  const std::vector<char> image(256, 'x');
  EXPECT_EQ(Libraries::get().cuModuleLoadData(&module, image.data()), 200);
}

TEST(Emulator, ArchitectureDecidesWhatCompiles) {
  const std::string text =
      "struct Args { int x; };\n"
      "extern \"C\" __global__ void k(const Args a) { fw::mbarrier_init((fw::u64*)fw::shared_memory(), 1); }\n";
  EXPECT_EQ(Program(text, "sm_90a").log(), "");
  EXPECT_NE(Program(text, "sm_80").log(), "");
}

}  // namespace
}  // namespace fwemu::testing
