#include "runtime/compiler/native_compiler.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>

#include <atomic>
#include <thread>

#include "runtime/compiler/subprocess.h"
#include "test_support.h"

namespace fusewright {
namespace {

using namespace testing;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::string kernel(int number, const std::string& comment = "") {
  return "// " + comment + "\nextern \"C\" __attribute__((visibility(\"default\"))) int answer() { return " +
         std::to_string(number) + "; }\n";
}

int answer_of(const std::shared_ptr<CompiledLibrary>& library) {
  const auto function = reinterpret_cast<int (*)()>(library->symbol("answer"));
  return function != nullptr ? function() : -1;
}

class NativeCompilerTest : public ::testing::Test {
 protected:
  // A compiler in a state that the test controls, always the same program and so the same key: slow while
  // "slow" exists (its process id is in "started"), and every run adds a line to "runs".
  std::string make_wrapper() {
    const std::string path = directory / "wrapper";
    write_text(path,
               "#!/bin/sh\ncase \"$*\" in *--version*) exec g++ --version;; esac\n"
               "echo run >> '" +
                   directory.path() +
                   "/runs'\n"
                   "if [ -e '" +
                   directory.path() + "/slow' ]; then echo $$ > '" + directory.path() +
                   "/started.new'; "
                   "mv '" +
                   directory.path() + "/started.new' '" + directory.path() +
                   "/started'; exec sleep 30; fi\n"
                   "exec g++ \"$@\"\n");
    chmod(path.c_str(), 0700);
    return path;
  }
  size_t wrapper_runs() {
    const std::string runs = read_text(directory / "runs");
    return static_cast<size_t>(std::count(runs.begin(), runs.end(), '\n'));
  }
  void SetUp() override { fs::create_directories(builds); }

  TemporaryDirectory directory;
  const std::string root = directory / "cache";
  const std::string builds = directory / "builds";
  ScopedVariable tmpdir{"TMPDIR", builds};
  ScopedVariable no_cxx{"CXX", nullptr}, no_fusewright_cxx{"FUSEWRIGHT_CXX", nullptr};
  LogCapture log;
};

TEST_F(NativeCompilerTest, CompilesLoadsAndRemembers) {
  DiskCache cache(root);
  NativeCompiler compiler(cache);
  std::string why_not;
  ASSERT_TRUE(compiler.available(&why_not)) << why_not;
  const auto libraries = compiler.compile({kernel(1), kernel(2), kernel(1)});
  ASSERT_EQ(libraries.size(), 3u);
  EXPECT_EQ(answer_of(libraries[0]), 1);
  EXPECT_EQ(answer_of(libraries[1]), 2);
  EXPECT_EQ(libraries[0], libraries[2]);
  EXPECT_EQ(libraries[0]->symbol("no_such_function"), nullptr);
  EXPECT_EQ(compiler.compile({kernel(2)})[0], libraries[1]);
  EXPECT_EQ(compiler.stats().kernels_compiled, 2u);
  EXPECT_EQ(compiler.stats().memory_hits, 2u);
  EXPECT_EQ(compiler.stats().cache_hits, 0u);
  EXPECT_TRUE(compiler.compile({}).empty());

  DiskCache same_disk(root);
  NativeCompiler second(same_disk);
  EXPECT_EQ(answer_of(second.compile({kernel(2)})[0]), 2);
  EXPECT_EQ(second.stats().kernels_compiled, 0u);
  EXPECT_EQ(second.stats().cache_hits, 1u);
  EXPECT_EQ(files_in(builds), 0u);
  EXPECT_EQ(log.count(), 0u) << log.text();
}

// A start with a warm cache runs the compiler for its version only: the probe is remembered too.
TEST_F(NativeCompilerTest, WarmStartRunsNoCompiler) {
  const ScopedVariable wrapper("FUSEWRIGHT_CXX", make_wrapper());
  for (int start = 0; start < 2; ++start) {
    DiskCache cache(root);
    NativeCompiler compiler(cache);
    EXPECT_EQ(answer_of(compiler.compile({kernel(1)})[0]), 1);
    EXPECT_EQ(wrapper_runs(), 2u);  // the probe and the kernel, at the first start
  }
}

// dlopen answers by name: descriptor numbers come again, and a second library must not be the first.
TEST_F(NativeCompilerTest, ManyLibrariesStayApart) {
  DiskCache cache(root);
  NativeCompiler compiler(cache);
  const size_t descriptors = files_in("/proc/self/fd");
  std::vector<std::shared_ptr<CompiledLibrary>> libraries;
  for (int i = 0; i < 8; ++i) libraries.push_back(compiler.compile({kernel(i)})[0]);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(answer_of(libraries[i]), i);
  EXPECT_EQ(files_in("/proc/self/fd"), descriptors);
}

TEST_F(NativeCompilerTest, LibraryIsIndependentOfTheCacheFile) {
  DiskCache cache(root);
  NativeCompiler compiler(cache);
  const auto library = compiler.compile({kernel(5)})[0];
  for (const auto& file : fs::directory_iterator(root)) write_text(file.path().string(), std::string(50000, 'x'));
  EXPECT_EQ(answer_of(library), 5);
  const std::string maps = read_text("/proc/self/maps");
  EXPECT_EQ(maps.find(root), std::string::npos);
  EXPECT_NE(maps.find("fusewright-kernel"), std::string::npos);
}

// This process may happen to offer such functions; a kernel must name libm itself.
TEST_F(NativeCompilerTest, FunctionsOfLibmAndLibgccAreLinkedWhereUsed) {
  DiskCache cache(root);
  NativeCompiler compiler(cache);
  const auto names_libm = [&](const std::string& source) {
    const auto bytes = cache.get(compiler.key_of(source).hex()).value();
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()).find("libm.so") != std::string::npos;
  };
  const std::string source =
      "extern \"C\" double lgamma(double);\n"
      "extern \"C\" __attribute__((visibility(\"default\"))) double f(double x) { return lgamma(x); }\n"
      "extern \"C\" __attribute__((visibility(\"default\"))) unsigned long g(unsigned long a, unsigned long "
      "b) {\n"
      "  return (((unsigned __int128)a << 64) / b) >> 32; }\n";
  const auto library = compiler.compile({source, kernel(1)})[0];
  EXPECT_DOUBLE_EQ(reinterpret_cast<double (*)(double)>(library->symbol("f"))(1.0), 0.0);
  EXPECT_EQ(reinterpret_cast<unsigned long (*)(unsigned long, unsigned long)>(library->symbol("g"))(3, 1), 3ul << 32);
  EXPECT_TRUE(names_libm(source));
  EXPECT_FALSE(names_libm(kernel(1)));
}

TEST_F(NativeCompilerTest, ErrorHasTheCompilersOutputAndTheKeptSource) {
  DiskCache cache(root);
  NativeCompiler compiler(cache);
  const std::string bad = "int broken( { }\n";
  const auto message = [&] {
    try {
      compiler.compile({kernel(1), bad});
    } catch (const CompileError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string first = message();
  EXPECT_NE(first.find("exit code 1"), std::string::npos) << first;
  EXPECT_NE(first.find("kernel.cpp:1:"), std::string::npos) << first;
  EXPECT_NE(first.find("error: expected"), std::string::npos) << first;
  EXPECT_NE(first.find("set FUSEWRIGHT_KEEP_SOURCES"), std::string::npos) << first;
  EXPECT_EQ(compiler.stats().kernels_compiled, 1u);  // the good one is not lost

  const ScopedVariable keep("FUSEWRIGHT_KEEP_SOURCES", directory / "kept/here");
  const std::string second = message();
  const std::string kept = directory / "kept/here/" + compiler.key_of(bad).hex() + ".cpp";
  EXPECT_NE(second.find("kept in " + kept), std::string::npos) << second;
  EXPECT_EQ(read_text(kept), bad);
  EXPECT_EQ(files_in(builds), 0u);
  EXPECT_EQ(files_in(root), 2u);  // probe and kernel(1): no lock, no temporary file
}

TEST_F(NativeCompilerTest, UnknownSymbolIsACompileError) {
  DiskCache cache(root);
  NativeCompiler compiler(cache);
  EXPECT_THROW(compiler.compile({"extern \"C\" int fusewright_nowhere(); extern \"C\" int f() { return "
                                 "fusewright_nowhere(); }"}),
               CompileError);
}

TEST_F(NativeCompilerTest, ParallelCompilationHonoursMaxJobs) {
  // Each run notes how many run at once, by directories made and removed.
  const std::string path = directory / "counting";
  write_text(path,
             "#!/bin/sh\ncase \"$*\" in *--version*) exec g++ --version;; esac\n"
             "touch '" +
                 directory.path() + "'/active/$$; ls '" + directory.path() + "/active' | wc -l >> '" +
                 directory.path() + "/counts'\nsleep 0.3; g++ \"$@\"; code=$?; rm '" + directory.path() +
                 "'/active/$$; exit $code\n");
  chmod(path.c_str(), 0700);
  fs::create_directory(directory / "active");
  const ScopedVariable cxx("FUSEWRIGHT_CXX", path), jobs("MAX_JOBS", "3");
  DiskCache cache(root);
  NativeCompiler compiler(cache);
  std::vector<std::string> sources;
  for (int i = 0; i < 4; ++i) sources.push_back(kernel(i));
  std::thread other([&] { compiler.compile({kernel(10), kernel(11)}); });
  const auto libraries = compiler.compile(sources);
  other.join();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(answer_of(libraries[i]), i);
  int most = 0;
  std::ifstream counts(directory / "counts");
  for (int count; counts >> count;) most = std::max(most, count);
  EXPECT_EQ(most, 3);
}

TEST_F(NativeCompilerTest, ThreadsWithOverlappingSourcesCompileEachOnce) {
  DiskCache cache(root);
  NativeCompiler compiler(cache);
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::string> sources;
      for (int i = 0; i < 4; ++i) sources.push_back(kernel((t + i) % 6));
      const auto libraries = compiler.compile(sources);
      for (int i = 0; i < 4; ++i) right += answer_of(libraries[i]) == (t + i) % 6;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 32);
  EXPECT_EQ(compiler.stats().kernels_compiled, 6u);
  EXPECT_EQ(compiler.stats().memory_hits, 26u);
}

// ---- Case 32 ----

TEST_F(NativeCompilerTest, KilledInMidCompileThenRunAgain) {
  const ScopedVariable wrapper("FUSEWRIGHT_CXX", make_wrapper());
  {
    DiskCache cache(root);
    ASSERT_TRUE(NativeCompiler(cache).available());  // the probe is done
  }
  write_text(directory / "slow", "");
  const pid_t child = start_child([&] {
    DiskCache cache(root);
    NativeCompiler(cache).compile({kernel(7)});
    return 0;
  });
  while (!fs::exists(directory / "started")) std::this_thread::sleep_for(milliseconds(5));
  kill(child, SIGKILL);
  EXPECT_EQ(wait_for(child), -SIGKILL);
  kill(std::stoi(read_text(directory / "started")), SIGKILL);  // the orphaned compiler
  EXPECT_EQ(files_in(builds), 1u);
  for (const auto& left : fs::directory_iterator(builds)) make_old(left.path().string());
  fs::remove(directory / "slow");

  const auto start = steady_clock::now();
  EXPECT_EQ(run_in_child([&] {
              DiskCache cache(root);
              NativeCompiler compiler(cache);
              return answer_of(compiler.compile({kernel(7)})[0]);
            }),
            7);
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_EQ(log.count(), 0u) << log.text();
  EXPECT_EQ(files_in(root), 2u);    // probe and kernel; the dead process's lock is gone
  EXPECT_EQ(files_in(builds), 0u);  // and so is its build directory
}

TEST_F(NativeCompilerTest, LockHeldForeverOnlyDelays) {
  DiskCache cache(root);
  NativeCompiler compiler(cache);
  DiskCache other(root);
  const CacheLock lock(other, compiler.key_of(kernel(3)).hex());
  ASSERT_TRUE(lock.held());
  const ScopedVariable seconds("FUSEWRIGHT_LOCK_TIMEOUT", "1");
  EXPECT_EQ(answer_of(compiler.compile({kernel(3)})[0]), 3);
  EXPECT_EQ(log.count("going on without it"), 1u) << log.text();
}

// ---- Case 33 ----

TEST_F(NativeCompilerTest, EightProcessesColdCacheCompileEachOnce) {
  const ScopedVariable wrapper("FUSEWRIGHT_CXX", make_wrapper());
  std::vector<pid_t> children;
  for (int p = 0; p < 8; ++p) {
    children.push_back(start_child([&, p] {
      DiskCache cache(root);
      NativeCompiler compiler(cache);
      std::vector<std::string> sources;
      for (int i = 0; i < 3; ++i) sources.push_back(kernel((p + i) % 3));
      const auto libraries = compiler.compile(sources);
      for (int i = 0; i < 3; ++i) {
        if (answer_of(libraries[i]) != (p + i) % 3) return 1;
      }
      return log.count() == 0 ? 0 : 2;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(wrapper_runs(), 4u);  // one probe and three kernels, over all processes
  EXPECT_EQ(files_in(root), 4u);
  EXPECT_EQ(files_in(builds), 0u);
}

// ---- Cases 34 and 35 ----

TEST_F(NativeCompilerTest, DamagedCacheCompilesAgain) {
  for (const bool loadable : {false, true}) {
    {
      DiskCache cache(root);
      NativeCompiler compiler(cache);
      const std::string key = compiler.key_of(kernel(4)).hex();
      compiler.compile({kernel(4)});
      // A broken file; or a whole entry whose bytes are no library.
      if (loadable)
        cache.put(key, std::as_bytes(std::span("not a library")));
      else
        fs::resize_file(root + "/" + key + ".entry", 1000);
    }
    DiskCache cache(root);
    NativeCompiler compiler(cache);
    EXPECT_EQ(answer_of(compiler.compile({kernel(4)})[0]), 4);
    EXPECT_EQ(compiler.stats().kernels_compiled, 1u);
    DiskCache after(root);
    NativeCompiler healed(after);
    healed.compile({kernel(4)});
    EXPECT_EQ(healed.stats().cache_hits, 1u);
  }
}

TEST_F(NativeCompilerTest, MemoryOnlyCache) {
  DiskCache cache("");
  NativeCompiler compiler(cache);
  EXPECT_EQ(answer_of(compiler.compile({kernel(4)})[0]), 4);
  EXPECT_EQ(compiler.compile({kernel(4)}).size(), 1u);
  EXPECT_EQ(compiler.stats().kernels_compiled, 1u);
  EXPECT_EQ(log.count(), 1u) << log.text();
}

TEST_F(NativeCompilerTest, NoPlaceToBuildIsAClearErrorAndNotForGood) {
  DiskCache cache(root);
  NativeCompiler compiler(cache);
  std::string why_not;
  {
    const ScopedVariable nowhere("TMPDIR", directory / "nowhere");
    EXPECT_FALSE(compiler.available(&why_not));
    EXPECT_NE(why_not.find("cannot create a build directory in '" + directory.path() + "/nowhere'"), std::string::npos)
        << why_not;
    EXPECT_NE(why_not.find("set TMPDIR"), std::string::npos) << why_not;
  }
  EXPECT_TRUE(compiler.available());
  EXPECT_EQ(run_in_child([&] {
              signal(SIGXFSZ, SIG_IGN);
              const rlimit limit{50, 50};
              setrlimit(RLIMIT_FSIZE, &limit);  // as good as full
              try {
                compiler.compile({kernel(1)});
              } catch (const CompileError& error) {
                return std::string(error.what()).find("set TMPDIR") != std::string::npos ? 0 : 1;
              }
              return 2;
            }),
            0);
  EXPECT_EQ(files_in(builds), 0u);
}

// ---- Case 37 ----

TEST(KernelKey, EachPartCounts) {
  const KernelKey base{"source", "flags", "compiler", "machine", "salt", "version"};
  EXPECT_EQ(base.hex(), KernelKey(base).hex());
  for (std::string KernelKey::*part : {&KernelKey::source, &KernelKey::flags, &KernelKey::compiler, &KernelKey::machine,
                                       &KernelKey::salt, &KernelKey::version}) {
    KernelKey changed = base;
    (changed.*part) += "x";
    EXPECT_NE(changed.hex(), base.hex());
  }
  EXPECT_NE((KernelKey{"ab", "c", "", "", "", ""}).hex(), (KernelKey{"a", "bc", "", "", "", ""}).hex());
}

TEST_F(NativeCompilerTest, KeyIsFilledInAndChangesMiss) {
  DiskCache cache(root);
  const auto compiled_with = [&](const std::string& salt, const std::string& source) {
    NativeCompiler compiler(cache);
    compiler.set_key_salt(salt);
    compiler.compile({source});
    return compiler.stats().kernels_compiled;
  };
  EXPECT_EQ(compiled_with("torch 2.13", kernel(1)), 1u);
  EXPECT_EQ(compiled_with("torch 2.13", kernel(1)), 0u);
  EXPECT_EQ(compiled_with("torch 2.14", kernel(1)), 1u);
  EXPECT_EQ(compiled_with("torch 2.13", kernel(1, "other")), 1u);

  NativeCompiler compiler(cache);
  const KernelKey key = compiler.key_of("text");
  EXPECT_EQ(key.source, "text");
  EXPECT_NE(key.flags.find("-ffp-contract=off"), std::string::npos);
  EXPECT_NE(key.compiler.find("g++"), std::string::npos);
  EXPECT_GT(key.machine.size(), 20u);
  EXPECT_FALSE(key.version.empty());

  // The same path with another program behind it, and another environment.
  const ScopedVariable wrapper("FUSEWRIGHT_CXX", make_wrapper());
  const std::string before = NativeCompiler(cache).key_of("text").compiler;
  make_old(directory / "wrapper");
  EXPECT_NE(NativeCompiler(cache).key_of("text").compiler, before);
  const ScopedVariable cpath("CPATH", directory.path());
  EXPECT_NE(NativeCompiler(cache).key_of("text").compiler, before);
}

// ---- Case 38 ----

TEST_F(NativeCompilerTest, OddNamesOfDirectories) {
  const TemporaryDirectory odd("/a \"b\" 'c'; $(touch x)\n`d` -o %s");
  const ScopedVariable other("TMPDIR", odd.path());
  DiskCache cache(odd / "cache \"'\n;");
  NativeCompiler compiler(cache);
  EXPECT_EQ(answer_of(compiler.compile({kernel(6)})[0]), 6);
  EXPECT_EQ(cache.info().entries, 2u);
  EXPECT_EQ(files_in(odd.path()), 1u);
  EXPECT_EQ(log.count(), 0u) << log.text();
}

// ---- Case 40: no compiler ----

TEST_F(NativeCompilerTest, NoCompilerFound) {
  const ScopedVariable path("PATH", directory.path());
  DiskCache cache(root);
  NativeCompiler compiler(cache);
  std::string why_not;
  EXPECT_FALSE(compiler.available(&why_not));
  EXPECT_NE(why_not.find("no usable C++ compiler; install g++ or set FUSEWRIGHT_CXX"), std::string::npos) << why_not;
  EXPECT_NE(why_not.find("g++: not found"), std::string::npos) << why_not;
  EXPECT_THROW(compiler.compile({kernel(1)}), CompileError);
}

TEST_F(NativeCompilerTest, ChoiceOfCompiler) {
  DiskCache cache(root);
  std::string why_not;
  {  // the user's own choice is final
    const ScopedVariable chosen("FUSEWRIGHT_CXX", "no-such-compiler");
    EXPECT_FALSE(NativeCompiler(cache).available(&why_not));
    EXPECT_NE(why_not.find("no-such-compiler: not found"), std::string::npos) << why_not;
  }
  {  // CXX may be meant for another build; one that runs but compiles nothing is passed over too
    for (const char* cxx : {"no-such-compiler", "true", "false"}) {
      const ScopedVariable other("CXX", cxx);
      EXPECT_NE(NativeCompiler(cache).key_of("").compiler.find("g++"), std::string::npos) << cxx;
    }
  }
  {  // several words, as with ccache
    const ScopedVariable words("CXX", "env g++");
    NativeCompiler compiler(cache);
    EXPECT_EQ(answer_of(compiler.compile({kernel(2)})[0]), 2);
    EXPECT_EQ(compiler.key_of("").compiler.find("/usr/bin/env"), 0u) << compiler.key_of("").compiler;
  }
}

// A compiler that does not know a flag is used without it.
TEST_F(NativeCompilerTest, UnknownFlagsAreLeftOut) {
  for (const char* refused : {"-march=native", "-mprefer-vector-width=512", "-nostdlib"}) {
    const std::string path = directory / "picky";
    write_text(path, std::string("#!/bin/sh\nfor a in \"$@\"; do [ \"$a\" = ") + refused +
                         " ] && { echo unknown flag; exit 1; }; done\nexec g++ \"$@\"\n");
    chmod(path.c_str(), 0700);
    const ScopedVariable cxx("FUSEWRIGHT_CXX", path);
    DiskCache cache("");
    NativeCompiler compiler(cache);
    std::string why_not;
    ASSERT_TRUE(compiler.available(&why_not)) << why_not;
    EXPECT_EQ(compiler.key_of("").flags.find(refused), std::string::npos);
    EXPECT_EQ(answer_of(compiler.compile({kernel(2)})[0]), 2);
  }
}

TEST_F(NativeCompilerTest, CompilerKilledOrSilent) {
  const std::string path = directory / "dying";
  for (const auto& [script, expected] : {std::pair{"kill -9 $$", "signal 9"}, std::pair{"exit 0", "left no library"}}) {
    write_text(path, std::string("#!/bin/sh\ncase \"$*\" in *--version*) exec g++ --version;; esac\n") + script + "\n");
    chmod(path.c_str(), 0700);
    const ScopedVariable cxx("FUSEWRIGHT_CXX", path);
    DiskCache cache(root);
    std::string why_not;
    EXPECT_FALSE(NativeCompiler(cache).available(&why_not));
    EXPECT_NE(why_not.find(expected), std::string::npos) << why_not;
  }
}

// A child forked while another thread compiles must neither wait for that thread nor for its mutexes.
TEST_F(NativeCompilerTest, ForkDuringACompilation) {
  const ScopedVariable chosen("FUSEWRIGHT_CACHE_DIR", root), wrapper("FUSEWRIGHT_CXX", make_wrapper()),
      seconds("FUSEWRIGHT_LOCK_TIMEOUT", "1");
  EXPECT_EQ(run_in_child([&] {  // a process whose singletons are its own
              if (!NativeCompiler::instance().available()) return 50;
              write_text(directory / "slow", "");
              std::thread busy([] {
                try {
                  NativeCompiler::instance().compile({kernel(1)});
                } catch (const CompileError&) {  // we end its compiler below
                }
              });
              while (!fs::exists(directory / "started")) std::this_thread::sleep_for(milliseconds(5));
              fs::remove(directory / "slow");
              const int code = run_in_child([] {
                alarm(20);
                return answer_of(NativeCompiler::instance().compile({kernel(1)})[0]);
              });
              kill(std::stoi(read_text(directory / "started")), SIGKILL);
              busy.join();
              return code;
            }),
            1);
}

}  // namespace
}  // namespace fusewright
