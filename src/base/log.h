#pragma once

#include <string>

namespace fusewright {

enum class LogLevel { debug, info, warning, error };

// Called from any thread. A sink that takes a lock (Python's GIL) requires that callers of this library do
// not hold that lock while they wait for it.
using LogSink = void (*)(LogLevel, const std::string&);

// nullptr restores the default sink: stderr, for warnings and above or the level named in FUSEWRIGHT_LOG
// (debug, info, warning, error). A sink of the host sees every level and filters for itself.
void set_log_sink(LogSink sink);

void log(LogLevel level, const std::string& message);

const char* to_string(LogLevel level);

}  // namespace fusewright
