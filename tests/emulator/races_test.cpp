// Accesses to shared memory with no barrier between them are named, whatever the order in which threads ran.
#include <cstdlib>

#include "emulator/harness.h"

namespace fwemu::testing {
namespace {

struct Arguments {
  const float* x;
  float* out;
};

class Races : public ::testing::Test {
 protected:
  void SetUp() override { setenv("FUSEWRIGHT_EMULATOR_RACES", "1", 1); }
  void TearDown() override { unsetenv("FUSEWRIGHT_EMULATOR_RACES"); }

  // `body` in a kernel of 256 threads with as many floats of shared memory, `s`; `t` is the thread.
  std::string run(const std::string& body) {
    text_ = R"(
struct Args {
  const float* x;
  float* out;
};
extern "C" __global__ void k(const Args a) {
  float* s = reinterpret_cast<float*>(fw::shared_memory());
  const int t = fw::thread_index();
)" + body + "}\n";
    const Program program(text_);
    EXPECT_EQ(program.log(), "");
    return program.launch("k", 2, 256, 1024, Arguments{x_.data(), out_.data()});
  }
  // The race is between these two lines, in either order.
  void expect_race(const std::string& body, const std::string& one, const std::string& other) {
    const std::string diagnosis = run(body);
    for (const std::string& code : {one, other}) {
      const std::string line = "line " + std::to_string(line_with(text_, code)) + " ";
      EXPECT_NE(diagnosis.find(line), std::string::npos) << "no '" << line << "' in: " << diagnosis;
    }
    EXPECT_NE(diagnosis.find("no barrier between it and thread"), std::string::npos) << diagnosis;
  }

  std::string text_;
  DeviceArray<float> x_{512, [](size_t i) { return i; }}, out_{512};
};

TEST_F(Races, MissingBarrier) {
  expect_race("s[t] = a.x[t];\na.out[t] = s[t ^ 33];\n", "s[t] =", "a.out[t]");
  EXPECT_EQ(run("s[t] = a.x[t];\nfw::barrier();\na.out[t] = s[t ^ 33];\n"), "");
}

TEST_F(Races, MissingBarrierBeforeReuse) {
  const std::string head = "float sum = 0;\nfor (int i = 0; i < 3; ++i) {\ns[t] = i;\nfw::barrier();\n";
  expect_race(head + "sum += s[t ^ 64];\n}\na.out[t] = sum;\n", "s[t] =", "sum += s");
  EXPECT_EQ(run(head + "sum += s[t ^ 64];\nfw::barrier();\n}\na.out[t] = sum;\n"), "");
}

TEST_F(Races, TwoWriters) { expect_race("if (t == 3 || t == 200)\ns[7] = t;\n", "s[7]", "s[7]"); }

TEST_F(Races, BarrierOfTheWarpIsEnoughWithinIt) {
  expect_race("s[t] = a.x[t];\na.out[t] = s[t ^ 1];\n", "s[t] =", "a.out[t]");
  EXPECT_EQ(run("s[t] = a.x[t];\nfw::warp_barrier();\na.out[t] = s[t ^ 1];\n"), "");
  expect_race("s[t] = a.x[t];\nfw::warp_barrier();\na.out[t] = s[t ^ 32];\n", "s[t] =", "a.out[t]");
}

TEST_F(Races, AsyncCopyIntoWhatOthersRead) {
  const std::string head = "s[t] = 1;\nfw::barrier();\nfloat v = s[t ^ 33];\n";
  const std::string tail =
      "fw::copy_async<4>(s + t, a.x + t);\nfw::copy_async_commit();\nfw::copy_async_wait<0>();\na.out[t] = v;\n";
  expect_race(head + tail, "float v", "fw::copy_async<4>");
  EXPECT_EQ(run(head + "fw::barrier();\n" + tail), "");
}

TEST_F(Races, LoadOfMatrices) {
  const std::string tail = "fw::u32 r[4];\nfw::load_matrices<4>(r, s + t % 32 * 4);\na.out[t] = r[0];\n";
  expect_race("s[t] = 1;\n" + tail, "s[t] = 1", "fw::load_matrices");
  EXPECT_EQ(run("s[t] = 1;\nfw::barrier();\n" + tail), "");
}

}  // namespace
}  // namespace fwemu::testing
