#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace fusewright {

struct SubprocessOptions {
  std::string stdin_text;  // empty: the program reads /dev/null
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
  std::vector<std::pair<std::string, std::string>> environment;  // added to ours, or replacing a variable
  size_t max_output = 1 << 20;                                   // further output is read and dropped
};

struct SubprocessResult {
  std::string error;   // why the program could not be started or waited for; empty otherwise
  int exit_code = -1;  // -1 unless it ended by itself
  int signal = 0;      // the signal that ended it
  bool timed_out = false;
  std::string output;  // stdout and stderr, in the order written

  bool ok() const { return exit_code == 0; }
  // "exit code 1", "signal 9 (Killed)", "timed out", or the error.
  std::string describe() const;
};

// Runs a program by its argument list and waits for it; never through a shell. The program is the leader of
// its own process group, so that a time-out also ends what it started. Safe in a process with many threads.
SubprocessResult run_subprocess(const std::vector<std::string>& arguments, const SubprocessOptions& options = {});

// The path of an executable: `name` itself where it has a slash, else the first on PATH; empty if there is
// none. Empty and relative entries of PATH are skipped: what lies in the current directory is no tool.
std::string find_program(const std::string& name);

}  // namespace fusewright
