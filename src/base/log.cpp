#include "base/log.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace fusewright {
namespace {

LogLevel level_from_environment() {
  const char* text = std::getenv("FUSEWRIGHT_LOG");
  if (text == nullptr) return LogLevel::warning;
  for (LogLevel level : {LogLevel::debug, LogLevel::info, LogLevel::warning, LogLevel::error}) {
    if (std::string_view(text) == to_string(level)) return level;
  }
  return LogLevel::warning;
}

void stderr_sink(LogLevel level, const std::string& message) {
  static const LogLevel threshold = level_from_environment();
  if (level < threshold) return;
  // One call, so that lines of several threads do not mix.
  const std::string line = std::string("fusewright: ") + to_string(level) + ": " + message + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

std::atomic<LogSink> current_sink{&stderr_sink};

}  // namespace

void set_log_sink(LogSink sink) { current_sink.store(sink != nullptr ? sink : &stderr_sink); }

void log(LogLevel level, const std::string& message) { current_sink.load()(level, message); }

const char* to_string(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return "debug";
    case LogLevel::info:
      return "info";
    case LogLevel::warning:
      return "warning";
    case LogLevel::error:
      return "error";
  }
  return "unknown";
}

}  // namespace fusewright
