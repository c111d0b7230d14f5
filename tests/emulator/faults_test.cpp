// One planted fault each, and what the emulator says of it.
#include <cmath>

#include "emulator/harness.h"

namespace fwemu::testing {
namespace {

struct Arguments {
  const float* x;
  float* out;
  int count;
};

const std::string args = R"(
namespace {
struct Args {
  const float* x;
  float* out;
  int count;
};
}
)";

// A kernel that works on shared memory.
std::string on_shared(const std::string& body) {
  return args + R"(
extern "C" __global__ void k(const Args a) {
  float* s = reinterpret_cast<float*>(fw::shared_memory());
)" + body +
         "}\n";
}

void expect_words(const std::string& diagnosis, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    EXPECT_NE(diagnosis.find(word), std::string::npos) << "no '" << word << "' in: " << diagnosis;
  }
}

std::string at_line(const std::string& text, const std::string& code) {
  return "line " + std::to_string(line_with(text, code)) + " `";
}

float identity(size_t i) { return static_cast<float>(i); }

class Faults : public ::testing::Test {
 protected:
  std::string run(const std::string& text, unsigned blocks, unsigned threads, unsigned shared_bytes,
                  unsigned cluster = 1) {
    const Program program(text);
    EXPECT_EQ(program.log(), "");
    return launch(program, blocks, threads, shared_bytes, cluster);
  }
  std::string launch(const Program& program, unsigned blocks, unsigned threads, unsigned shared_bytes,
                     unsigned cluster) {
    return program.launch("k", blocks, threads, shared_bytes,
                          Arguments{x_.data(), out_.data(), static_cast<int>(x_.size())}, cluster);
  }

  DeviceArray<float> x_{1024, identity}, out_{1024};
};

// ---- barriers ----

TEST_F(Faults, MissingBarrierShowsPoison) {
  const std::string text = on_shared(R"(
  s[fw::thread_index()] = a.x[fw::thread_index()];
  a.out[fw::thread_index()] = s[fw::thread_index() ^ 33];
)");
  EXPECT_EQ(run(text, 1, 256, 1024), "");
  int poisoned = 0;
  for (int i = 0; i < 256; ++i) poisoned += std::isnan(out_[i]) ? 1 : 0;
  EXPECT_GT(poisoned, 64);  // of two partners the first reads too early
}

TEST_F(Faults, MissingBarrierBeforeReuseShowsForSomeSeed) {
  const std::string text = on_shared(R"(
  float sum = 0;
  for (int round = 0; round < 4; ++round) {
    s[fw::thread_index()] = a.x[fw::thread_index() + round];
    fw::barrier();
    sum += s[(fw::thread_index() + 64) % 256];
  }
  a.out[fw::thread_index()] = sum;
)");
  int wrong_runs = 0;
  for (unsigned seed = 1; seed <= 5; ++seed) {
    const Seed scope(seed);
    EXPECT_EQ(run(text, 1, 256, 1024), "");
    int wrong = 0;
    for (int i = 0; i < 256; ++i) wrong += out_[i] != 4.0f * static_cast<float>((i + 64) % 256) + 6 ? 1 : 0;
    wrong_runs += wrong != 0 ? 1 : 0;
  }
  EXPECT_EQ(wrong_runs, 5);
}

TEST_F(Faults, BarrierInDivergentCode) {
  const std::string text = args + R"(
extern "C" __global__ void k(const Args a) {
  if (fw::thread_index() < 48) fw::barrier();
  a.out[fw::thread_index()] = 1;
  fw::barrier();
}
)";
  expect_words(run(text, 2, 128, 0),
               {"kernel k, block ", "different barriers",
                "threads 0-47 wait at the barrier of " + at_line(text, "if (fw::thread_index() < 48)"),
                "threads 48-127 wait at the barrier of " + at_line(text, "  fw::barrier();")});
}

TEST_F(Faults, NothingCanRun) {
  const std::string text = args + R"(
extern "C" __global__ void k(const Args a) {
  if (fw::thread_index() < 40) fw::barrier();
  a.out[fw::thread_index()] = fw::shuffle_xor(1.0f, 1);
}
)";
  expect_words(run(text, 1, 64, 0), {"nothing can run any more", "threads 0-39 wait at the barrier of line",
                                     "threads 40-63 wait for lanes of the warp at " + at_line(text, "  a.out")});
}

// ---- lanes ----

TEST_F(Faults, MaskThatNamesLanesThatNeverArrive) {
  const std::string text = args + R"(
extern "C" __global__ void k(const Args a) {
  if (fw::thread_index() >= 48) return;
  a.out[fw::thread_index()] = fw::shuffle_xor(1.0f, 1);
}
)";
  expect_words(run(text, 1, 64, 0), {"block 0, thread", "mask 0xffffffff", at_line(text, "  a.out")});
}

TEST_F(Faults, MaskWithoutTheCallingLane) {
  const std::string text = args + R"(
extern "C" __global__ void k(const Args a) {
  a.out[fw::thread_index()] = __shfl_xor_sync(0x0000ffffu, 1.0f, 1);
}
)";
  expect_words(run(text, 1, 32, 0), {"0x0000ffff", "does not name the calling lane", at_line(text, "  a.out")});
}

TEST_F(Faults, ShuffleFromALaneThatIsNotInTheMask) {
  const std::string text = args + R"(
extern "C" __global__ void k(const Args a) {
  if (fw::thread_index() < 16) a.out[fw::thread_index()] = __shfl_xor_sync(0xffffu, 1.0f, 16);
}
)";
  expect_words(run(text, 1, 32, 0), {"reads lane", "0x0000ffff", at_line(text, "  if (fw::thread_index() < 16)")});
}

TEST_F(Faults, LanesInDifferentOperations) {
  const std::string text = args + R"(
extern "C" __global__ void k(const Args a) {
  if (fw::thread_index() % 2 == 0) a.out[0] = fw::shuffle_xor(1.0f, 2);
  else a.out[1] = fw::ballot(true);
}
)";
  expect_words(run(text, 1, 32, 0), {"of its warp", at_line(text, "  if (fw::"), at_line(text, "  else")});
}

// ---- asynchronous copies ----

TEST_F(Faults, MissingWaitShowsPoison) {
  const std::string text = on_shared(R"(
  fw::copy_async<4>(s + fw::thread_index(), a.x + fw::thread_index());
  fw::copy_async_commit();
  fw::barrier();
  a.out[fw::thread_index()] = s[fw::thread_index()];
)");
  EXPECT_EQ(run(text, 1, 64, 256), "");
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(std::isnan(out_[i])) << i;
}

TEST_F(Faults, WaitForTheWrongGroupShowsPoison) {
  const std::string text = on_shared(R"(
  for (int i = 0; i < 2; ++i) {
    fw::copy_async<4>(s + 64 * i + fw::thread_index(), a.x + fw::thread_index());
    fw::copy_async_commit();
  }
  fw::copy_async_wait<1>();
  fw::barrier();
  a.out[fw::thread_index()] = s[fw::thread_index()];
  a.out[64 + fw::thread_index()] = s[64 + fw::thread_index()];
)");
  EXPECT_EQ(run(text, 1, 64, 512), "");
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(out_[i], static_cast<float>(i));
    EXPECT_TRUE(std::isnan(out_[64 + i])) << i;
  }
}

const std::string bulk = on_shared(R"(
  fw::u64* full = reinterpret_cast<fw::u64*>(s + 64);
  if (fw::thread_index() == 0) {
    fw::mbarrier_init(full, 1);
    fw::mbarrier_fence();
    fw::mbarrier_arrive_expect(full, EXPECTED);
    fw::copy_bulk(s, a.x, 256, full);
  }
  fw::barrier();
  WAIT
  a.out[fw::thread_index()] = s[fw::thread_index()];
)");

TEST_F(Faults, BulkCopyNobodyWaitsFor) {
  expect_words(run("#define EXPECTED 256\n#define WAIT\n" + bulk, 1, 64, 512),
               {"block 0: it ended while a bulk copy was under way", "`fw::copy_bulk(s, a.x, 256, full);`"});
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(std::isnan(out_[i])) << i;
}

TEST_F(Faults, MbarrierThatExpectsTooMuch) {
  expect_words(run("#define EXPECTED 272\n#define WAIT fw::mbarrier_wait(full, 0);\n" + bulk, 1, 64, 512),
               {"nothing can run any more", "threads 0-63 wait for an mbarrier at", "`WAIT`"});
}

TEST_F(Faults, MbarrierThatWasNotInitialised) {
  const std::string text = args + R"(
extern "C" __global__ void k(const Args a) {
  fw::mbarrier_arrive(reinterpret_cast<fw::u64*>(fw::shared_memory()));
}
)";
  expect_words(run(text, 1, 32, 64), {"no initialised mbarrier", at_line(text, "  fw::mbarrier_arrive")});
}

// ---- memory ----

TEST_F(Faults, GlobalIndexOffByOne) {
  const std::string text = args + R"(
extern "C" __global__ void k(const Args a) {
  const int i = fw::block_index() * fw::block_threads() + fw::thread_index();
  a.out[i] = a.x[i + 1];
}
)";
  expect_words(run(text, 8, 128, 0), {"block 7, thread 127", "byte 0 behind the end of 4096 bytes", "address 0x",
                                      at_line(text, "  a.out[i]")});
  // The process goes on, and so does the emulator.
  expect_words(run(text, 8, 128, 0), {"block 7, thread 127"});
}

TEST_F(Faults, GlobalWriteOffByOneThroughAVector) {
  const std::string text = args + R"(
extern "C" __global__ void k(const Args a) {
  const float v[4] = {1, 2, 3, 4};
  fw::store_vector<4>(a.out + 4 * fw::thread_index(), v);
}
)";
  expect_words(run(text, 1, 288, 0),
               {"block 0, thread 2", "behind the end of 4096 bytes", at_line(text, "  fw::store_vector")});
}

TEST_F(Faults, WriteIntoTheBytesForAlignment) {
  const DeviceArray<float> odd(5);
  const Program program(args + R"(
extern "C" __global__ void k(const Args a) {
  if (fw::thread_index() == 0) a.out[5] = 0;
}
)");
  expect_words(program.launch("k", 1, 32, 0, Arguments{nullptr, odd.data(), 5}),
               {"wrote byte 0 behind the end of 20 bytes"});
  EXPECT_EQ(program.launch("k", 1, 32, 0, Arguments{nullptr, x_.data(), 5}), "");  // told once
}

TEST_F(Faults, SourceOfACopyOffByOne) {
  const std::string text = on_shared(R"(
  fw::copy_async<4>(s + fw::thread_index(), a.x + 1024 - 32 + 1 + fw::thread_index());
  fw::copy_async_commit();
  fw::copy_async_wait<0>();
)");
  expect_words(run(text, 1, 32, 256), {"block 0, thread 31", "asynchronous copy", "byte 0 behind the end of 4096 bytes",
                                       at_line(text, "  fw::copy_async<4>")});
}

TEST_F(Faults, AccessThatIsNotAligned) {
  const std::string text = args + R"(
extern "C" __global__ void k(const Args a) {
  float v[4];
  fw::load_vector(a.x + 4 * fw::thread_index() + 2, fw::read_only, v);
  a.out[fw::thread_index()] = v[0];
}
)";
  expect_words(run(text, 1, 32, 0), {"not aligned", at_line(text, "  fw::load_vector")});
}

TEST_F(Faults, SharedIndexOffByOne) {
  const std::string text = on_shared(R"(
  s[fw::thread_index() + 1] = 7;
  fw::barrier();
  a.out[fw::thread_index()] = s[fw::thread_index()];
)");
  expect_words(run(text, 3, 256, 1024),
               {"thread 255", "wrote to shared memory 1 bytes behind its end", at_line(text, "  fw::barrier();")});
}

TEST_F(Faults, SharedIndexBeforeTheStart) {
  const std::string text = on_shared(R"(
  s[int(fw::thread_index()) - 1] = 7;
  fw::barrier();
)");
  expect_words(run(text, 1, 64, 256), {"thread 0", "wrote to shared memory 1 bytes before its start"});
}

TEST_F(Faults, SharedIndexFarBehindTheEnd) {
  const std::string text = on_shared(R"(
  if (fw::thread_index() == 17) s[4000] = 7;
)");
  expect_words(run(text, 1, 64, 1024),
               {"thread 17", "byte 16000 of 1024 bytes of shared memory", at_line(text, "  if (fw::")});
}

TEST_F(Faults, DivisionByZero) {
  const std::string text = args + R"(
extern "C" __global__ void k(const Args a) {
  a.out[fw::thread_index()] = a.count / (int(fw::thread_index()) - 5);
}
)";
  expect_words(run(text, 1, 32, 0), {"thread 5", "divided by zero", at_line(text, "  a.out")});
}

// ---- clusters ----

TEST_F(Faults, ClustersWithoutTheirBarrier) {
  // Read before the other block has written.
  EXPECT_EQ(run(on_shared(R"(
  fw::cluster_arrive();
  fw::cluster_wait();
  s[fw::thread_index()] = 1;
  a.out[fw::block_index() * 32 + fw::thread_index()] = *fw::cluster_pointer(s + fw::thread_index(), 1 - fw::block_index());
  fw::cluster_arrive();
  fw::cluster_wait();
)"),
                2, 32, 128, 2),
            "");
  int poisoned = 0;
  for (int i = 0; i < 64; ++i) poisoned += std::isnan(out_[i]) ? 1 : 0;
  EXPECT_GT(poisoned, 0);
}

TEST_F(Faults, ClustersThatGoWrong) {
  const auto says = [&](const std::string& body, const std::vector<std::string>& words) {
    expect_words(run(on_shared(body), 2, 32, 128, 2), words);
  };
  says("fw::cluster_arrive();\nfw::cluster_arrive();\n", {"arrives at the barrier of its cluster again", "line "});
  says("fw::cluster_wait();\n", {"waits at the barrier of its cluster, where it has not arrived"});
  says("fw::cluster_arrive();\n", {"ends without waiting at the barrier of its cluster"});
  says("*fw::cluster_pointer(s, 2) = 1;\n", {"reaches into block 2 of a cluster of 2"});
  says("*fw::cluster_pointer(s + 32, 1) = 1;\n", {"shared memory"});
  // Half of a warp waits for the other half, which waits for the cluster.
  says(
      "if (fw::block_index() == 1 && fw::thread_index() < 16) fw::warp_barrier();\n"
      "fw::cluster_arrive();\nfw::cluster_wait();\n",
      {"in block 1 of the cluster threads 0-15 wait for lanes", "nothing can run any more",
       "threads 16-31 wait for the cluster at line "});
}

TEST_F(Faults, ABlockWaitsAndTheOtherEnds) {
  const std::string text = on_shared(R"(
  if (fw::block_index() == 1) {
    if (fw::thread_index() == 0) {
      fw::cluster_arrive();
      fw::cluster_wait();
    } else {
      fw::barrier();
    }
  }
)");
  for (unsigned seed = 1; seed <= 4; ++seed) {
    const Seed scope(seed);
    expect_words(run(text, 2, 64, 128, 2), {"nothing can run any more", "thread 0 waits for the cluster at line ",
                                            "threads 1-63 wait at the barrier of line "});
  }
}

TEST_F(Faults, ABlockOfTheClusterThatHasEnded) {
  const std::string text = on_shared(R"(
  fw::cluster_arrive();
  fw::cluster_wait();
  if (fw::block_index() == 0) *fw::cluster_pointer(s, 1) = 1;
)");
  bool found = false;  // which of the two goes on first is a matter of luck
  for (unsigned seed = 1; seed <= 16; ++seed) {
    const Seed scope(seed);
    const std::string diagnosis = run(text, 2, 32, 128, 2);
    found |= diagnosis.find("reaches into the shared memory of a block that has ended") != std::string::npos;
    EXPECT_TRUE(diagnosis.empty() || found) << diagnosis;
  }
  EXPECT_TRUE(found);
}

// Writes a kernel whose blocks send data to one another by stores that a barrier counts.
struct Sending {
  bool waits_for_barriers = true, waits = true, in_turn = true, enough = true;
  std::string text() const {
    const std::string which = in_turn ? "(round & 1)" : "0", parity = in_turn ? "((round >> 1) & 1)" : "(round & 1)";
    return on_shared(R"(
  fw::u64* arrived = reinterpret_cast<fw::u64*>(s);
  const unsigned t = fw::thread_index(), other = 1 - fw::block_index();
  if (t == 0) {
    fw::mbarrier_init(arrived, 1);
    fw::mbarrier_init(arrived + 1, 1);
  }
)" + std::string(waits_for_barriers ? "  fw::cluster_arrive();\n  fw::cluster_wait();\n" : "") +
                     R"(
  float sum = 0;
  for (unsigned round = 0; round < 8; ++round) {
    fw::u32* slot = reinterpret_cast<fw::u32*>(s) + 4 + )" +
                     which + R"( * 4;
    fw::barrier();
    if (t == 0) {
      const fw::u32 words[4] = {0x3f800000u, 0, 0, 0};
      fw::mbarrier_arrive_expect(arrived + )" +
                     which + ", " + (enough ? "16" : "32") + R"();
      fw::store_async<1>(slot, words, arrived + )" +
                     which + R"(, other);
    }
)" + (waits ? "    fw::mbarrier_wait_cluster(arrived + " + which + ", " + parity + ");\n" : "") +
                     R"(
    sum += *reinterpret_cast<float*>(slot);
  }
  a.out[fw::block_index() * 64 + t] = sum;
)");
  }
};

TEST_F(Faults, StoresIntoAnotherBlock) {
  const auto wrong_of = [&](const Sending& sending, const std::vector<std::string>& words) {
    int wrong = 0;
    const Program program(sending.text());
    EXPECT_EQ(program.log(), "");
    for (unsigned seed = 1; seed <= 16; ++seed) {
      const Seed scope(seed);
      const std::string diagnosis = launch(program, 2, 64, 48, 2);
      if (!diagnosis.empty()) {
        expect_words(diagnosis, words);
        ++wrong;
      }
      for (int i = 0; i < 128 && diagnosis.empty(); ++i) wrong += out_[i] == 8 ? 0 : 1;
    }
    return wrong;
  };
  EXPECT_EQ(wrong_of({}, {"none is expected"}), 0);
  EXPECT_GT(wrong_of({.waits_for_barriers = false}, {"there is no initialised mbarrier in block"}), 0);
  EXPECT_GT(wrong_of({.waits = false}, {"more than the 1 arrivals of this mbarrier"}), 0);
  EXPECT_GT(wrong_of({.in_turn = false}, {"none is expected: numbers are wrong"}), 0);
  EXPECT_GT(wrong_of({.enough = false}, {"nothing can run any more", "for an mbarrier at "}), 0);
}

}  // namespace
}  // namespace fwemu::testing
