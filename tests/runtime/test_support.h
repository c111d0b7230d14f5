#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"

namespace fusewright::testing {

namespace fs = std::filesystem;

// A fresh directory, removed at the end.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::string& suffix = "") {
    std::string base = "/tmp/fusewright-test-XXXXXX";
    if (mkdtemp(base.data()) == nullptr) std::abort();
    base_ = base;
    path_ = base + suffix;
    fs::create_directories(path_);
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    fs::remove_all(base_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string base_, path_;
};

// Sets an environment variable (or unsets it: nullptr) until the end of the scope.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ScopedVariable(const char* name, const std::string& value) : ScopedVariable(name, value.c_str()) {}
  ~ScopedVariable() { set(old_ ? old_->c_str() : nullptr); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  void set(const char* value) const { value != nullptr ? setenv(name_, value, 1) : unsetenv(name_); }

  const char* name_;
  std::optional<std::string> old_;
};

// Collects the log lines of warnings and errors.
class LogCapture {
 public:
  LogCapture() {
    lines().clear();
    set_log_sink([](LogLevel level, const std::string& text) {
      static std::mutex mutex;
      const std::lock_guard lock(mutex);
      if (level >= LogLevel::warning) lines().push_back(text);
    });
  }
  ~LogCapture() { set_log_sink(nullptr); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  size_t count(const std::string& part = "") const {
    size_t found = 0;
    for (const std::string& line : lines()) found += line.find(part) != std::string::npos;
    return found;
  }
  std::string text() const {
    std::string all;
    for (const std::string& line : lines()) all += line + "\n";
    return all;
  }

 private:
  static std::vector<std::string>& lines() {
    static std::vector<std::string> collected;
    return collected;
  }
};

// Forks a child that runs `body` and exits with what it returns.
inline pid_t start_child(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  int code = 99;
  try {
    code = body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child: %s\n", error.what());
  }
  _exit(code);
}

// The exit code, or minus the signal.
inline int wait_for(pid_t pid) {
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) return -1000;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

inline int run_in_child(const std::function<int()>& body) { return wait_for(start_child(body)); }

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void make_old(const std::string& path) {
  const timespec times[2] = {{1000000000, 0}, {1000000000, 0}};
  utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW);
}

inline size_t files_in(const std::string& path) {
  std::error_code ignored;
  const fs::directory_iterator files(path, ignored);
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

}  // namespace fusewright::testing
