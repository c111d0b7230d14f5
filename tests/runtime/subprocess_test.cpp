#include "runtime/compiler/subprocess.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "test_support.h"

namespace fusewright {
namespace {

using namespace testing;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

SubprocessResult run_shell(const std::string& script, const SubprocessOptions& options = {}) {
  return run_subprocess({"sh", "-c", script}, options);
}

TEST(Subprocess, OutputAndExitCode) {
  const SubprocessResult result = run_shell("echo out; echo err >&2; exit 3");
  EXPECT_EQ(result.output, "out\nerr\n");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.describe(), "exit code 3");
  EXPECT_TRUE(run_subprocess({"true"}).ok());
}

TEST(Subprocess, ArgumentsReachTheProgramUntouched) {
  const std::string odd = "a \"b\" 'c' $(touch /tmp/no) ; \n | & * \\";
  EXPECT_EQ(run_subprocess({"printf", "%s", odd}).output, odd);
}

TEST(Subprocess, SignalIsReported) {
  const SubprocessResult result = run_shell("kill -9 $$");
  EXPECT_EQ(result.signal, SIGKILL);
  EXPECT_EQ(result.describe(), "signal 9 (Killed)");
}

TEST(Subprocess, MissingProgram) {
  EXPECT_EQ(run_subprocess({"no-such-program"}).error, "program 'no-such-program' was not found or is not executable");
  EXPECT_FALSE(run_subprocess({"/no/such/program"}).error.empty());
  EXPECT_FALSE(run_subprocess({"/tmp"}).error.empty());
  EXPECT_FALSE(run_subprocess({}).error.empty());
}

// A file that is executable but no program must not be handed to a shell.
TEST(Subprocess, NoShellForScriptsWithoutInterpreter) {
  const TemporaryDirectory directory;
  write_text(directory / "script", "echo hello\n");
  chmod((directory / "script").c_str(), 0700);
  const SubprocessResult result = run_subprocess({directory / "script"});
  EXPECT_NE(result.error.find("Exec format error"), std::string::npos) << result.error;
}

TEST(Subprocess, TimeoutEndsTheWholeGroup) {
  const TemporaryDirectory directory;
  SubprocessOptions options;
  options.timeout = milliseconds(200);
  const auto start = steady_clock::now();
  const SubprocessResult result =
      run_shell("echo begun; (sleep 1; touch '" + directory.path() + "/survived') & sleep 30", options);
  EXPECT_TRUE(result.timed_out);
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.output, "begun\n");
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(5));
  std::this_thread::sleep_for(milliseconds(1100));
  EXPECT_EQ(files_in(directory.path()), 0u);
}

TEST(Subprocess, GrandchildHoldingThePipeDoesNotDelay) {
  const auto start = steady_clock::now();
  EXPECT_EQ(run_shell("echo hello; sleep 5 & exit 0").output, "hello\n");
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(3));
}

TEST(Subprocess, ProgramThatClosesItsOutputIsStillAwaited) {
  EXPECT_EQ(run_shell("exec >&- 2>&-; sleep 0.1; exit 5").exit_code, 5);
}

TEST(Subprocess, StandardInput) {
  EXPECT_EQ(run_subprocess({"cat"}).output, "");  // /dev/null, not ours
  SubprocessOptions options;
  options.stdin_text = std::string(500000, 'x');  // more than any pipe holds, both ways at once
  EXPECT_EQ(run_subprocess({"cat"}, options).output, options.stdin_text);
  EXPECT_TRUE(run_subprocess({"true"}, options).ok());  // does not read it: no SIGPIPE here
}

TEST(Subprocess, LongOutputIsCut) {
  SubprocessOptions options;
  options.max_output = 1000;
  const SubprocessResult result = run_subprocess({"head", "-c", "300000", "/dev/zero"}, options);
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.output.size(), 1000u);
}

TEST(Subprocess, EnvironmentIsReplacedOrAdded) {
  const ScopedVariable old("FUSEWRIGHT_TEST_A", "old");
  SubprocessOptions options;
  options.environment = {{"FUSEWRIGHT_TEST_A", "new"}, {"FUSEWRIGHT_TEST_B", "b c"}};
  EXPECT_EQ(run_shell("echo $FUSEWRIGHT_TEST_A $FUSEWRIGHT_TEST_B", options).output, "new b c\n");
}

TEST(Subprocess, SignalsAreTheDefaults) {
  const auto old = signal(SIGPIPE, SIG_IGN);
  EXPECT_EQ(run_shell("kill -PIPE $$; echo alive").signal, SIGPIPE);
  signal(SIGPIPE, old);
}

TEST(Subprocess, HostWithoutStandardStreams) {
  EXPECT_EQ(run_in_child([] {
              for (int fd : {0, 1, 2}) close(fd);
              SubprocessOptions options;
              options.stdin_text = "in";
              return run_subprocess({"cat"}, options).output == "in" && run_shell("echo a").output == "a\n" ? 0 : 1;
            }),
            0);
}

// The kernel throws exit codes away in such a host: a clear failure, no false success and no hang.
TEST(Subprocess, HostThatIgnoresItsChildren) {
  EXPECT_EQ(run_in_child([] {
              signal(SIGCHLD, SIG_IGN);
              const SubprocessResult result = run_shell("echo hello; exit 0");
              return !result.ok() && result.output == "hello\n" && result.error.find("SIGCHLD") != std::string::npos;
            }),
            1);
}

TEST(Subprocess, NoDescriptorsLeakFromManyThreads) {
  const size_t before = files_in("/proc/self/fd");
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10; ++i) {
        // Descriptors 0-2 and the one that `ls` opens; another thread's pipe would show up.
        const SubprocessResult result = run_subprocess({"ls", "/proc/self/fd"});
        good += result.ok() && result.output == "0\n1\n2\n3\n";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 80);
  EXPECT_EQ(files_in("/proc/self/fd"), before);
}

TEST(FindProgram, SkipsTheCurrentDirectory) {
  const TemporaryDirectory directory;
  write_text(directory / "fusewright-tool", "#!/bin/sh\n");
  chmod((directory / "fusewright-tool").c_str(), 0700);
  const fs::path old = fs::current_path();
  fs::current_path(directory.path());
  for (const char* path : {"", ":", ".:/usr/bin", "/usr/bin:", "/usr/bin::/bin"}) {
    const ScopedVariable scoped("PATH", path);
    EXPECT_EQ(find_program("fusewright-tool"), "") << path;
  }
  fs::current_path(old);
  const ScopedVariable scoped("PATH", "/nowhere:" + directory.path());
  EXPECT_EQ(find_program("fusewright-tool"), directory / "fusewright-tool");
}

}  // namespace
}  // namespace fusewright
