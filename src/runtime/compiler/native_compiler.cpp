#include "runtime/compiler/native_compiler.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/log.h"
#include "runtime/cache/paths.h"
#include "runtime/compiler/build_directory.h"
#include "runtime/compiler/subprocess.h"
#include "runtime/posix.h"
#include "runtime/thread_pool.h"

#ifndef FUSEWRIGHT_VERSION
#define FUSEWRIGHT_VERSION "0.0.0"
#endif

namespace fusewright {
namespace {

using Words = std::vector<std::string>;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

Words split_words(const std::string& text) {
  std::istringstream stream(text);
  Words words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::string join(const Words& words, const char* separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

// ---- The machine ----

// What -march=native looks at: the lines of the first processor that say which instructions it has.
const std::string& cpu_identity() {
  static const std::string identity = [] {
    utsname system{};
    uname(&system);
    std::string text = system.machine;
    bool known = false;
    std::ifstream cpuinfo("/proc/cpuinfo");
    for (std::string line; std::getline(cpuinfo, line) && !(known && line.empty());) {
      for (const char* name : {"vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer",
                               "CPU architecture", "CPU variant", "CPU part", "isa"}) {
        if (!line.starts_with(name)) continue;
        text += "\n" + line;
        known = true;
        break;
      }
    }
    // A home shared by different machines must not share kernels of a processor we could not identify.
    return known ? text + "\n" : text + "\n" + system.nodename + "\n";
  }();
  return identity;
}

bool cpu_has(const std::string& feature) {
  const std::string& text = cpu_identity();
  return text.find(" " + feature + " ") != std::string::npos || text.find(" " + feature + "\n") != std::string::npos;
}

// ---- Files ----

std::vector<std::byte> read_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (!file || fstat(file.get(), &status) != 0) {
    throw CompileError("the compiler left no library '" + path + "': " + std::strerror(errno));
  }
  std::vector<std::byte> bytes(static_cast<size_t>(status.st_size));
  if (read_all(file.get(), bytes) != 0) throw CompileError("cannot read '" + path + "'");
  return bytes;
}

// ---- Flags ----

// Without unswitching: gcc splits a loop over a condition on the user's numbers (a clamp's limits) into two, and then
// vectorises one of them.
constexpr const char* base_flags =
    "-x c++ -std=c++17 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -fopenmp-simd -fno-unswitch-loops "
    "-fno-exceptions -fno-rtti -fPIC -shared -fvisibility=hidden -w";

// Kernels need no library but, rarely, a function of libm or libgcc: linked where used, else nothing is.
constexpr const char* lean_link = "-nostdlib -Wl,--as-needed -lm -lgcc";

constexpr const char* probe_source =
    "extern \"C\" __attribute__((visibility(\"default\"))) int fusewright_probe() { return 42; }\n";

// The variables by which the environment changes what gcc and clang do.
constexpr const char* compiler_variables[] = {"CPATH",         "C_INCLUDE_PATH",  "CPLUS_INCLUDE_PATH",  "LIBRARY_PATH",
                                              "COMPILER_PATH", "GCC_EXEC_PREFIX", "CCC_OVERRIDE_OPTIONS"};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::string NativeCompiler::Toolchain::all_flags() const { return join(flags, "\n") + "\n\n" + join(link, "\n"); }

NativeCompiler::NativeCompiler(DiskCache& cache)
    : cache_(cache), libraries_(positive_from_environment("MAX_JOBS", available_processors())) {}

NativeCompiler& NativeCompiler::instance() {
  return ProcessSingleton<NativeCompiler>::get([] { return new NativeCompiler(DiskCache::instance()); });
}

void NativeCompiler::set_key_salt(std::string salt) {
  const std::lock_guard lock(salt_mutex_);
  salt_ = std::move(salt);
}

KernelKey NativeCompiler::key_of(const std::string& source) {
  const Toolchain& chosen = toolchain();
  const std::lock_guard lock(salt_mutex_);
  return {source, chosen.all_flags(), chosen.identity, cpu_identity(), salt_, FUSEWRIGHT_VERSION};
}

bool NativeCompiler::available(std::string* why_not) {
  try {
    toolchain();
    return true;
  } catch (const CompileError& error) {
    if (why_not != nullptr) *why_not = error.what();
    return false;
  }
}

const NativeCompiler::Toolchain& NativeCompiler::toolchain() {
  const std::lock_guard lock(toolchain_mutex_);
  if (toolchain_) return *toolchain_;
  if (!no_toolchain_.empty()) throw CompileError(no_toolchain_);
  // FUSEWRIGHT_CXX is the user's word and final; CXX may be meant for another build, so it may fail.
  std::vector<Words> commands;
  if (const std::string chosen = variable("FUSEWRIGHT_CXX"); !chosen.empty()) {
    commands.push_back(find_program(chosen).empty() ? split_words(chosen) : Words{chosen});
  } else {
    commands = {split_words(variable("CXX")), {"g++"}, {"c++"}, {"clang++"}};
  }
  std::string reasons;
  for (const Words& command : commands) {
    std::string why_not;
    if (command.empty()) continue;
    toolchain_ = try_command(command, &why_not);
    if (toolchain_) {
      log(LogLevel::info, "C++ compiler: " + first_line(toolchain_->identity));
      return *toolchain_;
    }
    reasons += "\n  " + join(command, " ") + ": " + why_not;
  }
  no_toolchain_ = "no usable C++ compiler; install g++ or set FUSEWRIGHT_CXX. Tried:" + reasons;
  throw CompileError(no_toolchain_);
}

std::optional<NativeCompiler::Toolchain> NativeCompiler::try_command(const Words& command, std::string* why_not) {
  Toolchain candidate;
  candidate.command = command;
  candidate.command[0] = find_program(command[0]);
  if (candidate.command[0].empty()) {
    *why_not = "not found";
    return std::nullopt;
  }
  Words version_command = candidate.command;
  version_command.push_back("--version");
  SubprocessOptions options;
  options.timeout = std::chrono::seconds(30);
  options.environment = {{"LC_ALL", "C"}};
  const SubprocessResult version = run_subprocess(version_command, options);
  if (!version.ok()) {
    *why_not = "--version failed: " + version.describe();
    return std::nullopt;
  }
  candidate.identity = join(candidate.command, " ") + ": " + first_line(version.output);
  // The time stamp of each program named, for a compiler can be replaced by another of the same version.
  for (const std::string& word : candidate.command) {
    struct stat status;
    const std::string path = find_program(word);
    if (path.empty() || stat(path.c_str(), &status) != 0) continue;
    candidate.identity += "\n" + canonical_path(path) + " " + std::to_string(status.st_size) + " " +
                          std::to_string(status.st_mtim.tv_sec) + "." + std::to_string(status.st_mtim.tv_nsec);
  }
  for (const char* name : compiler_variables) {
    if (const std::string value = variable(name); !value.empty())
      candidate.identity += std::string("\n") + name + "=" + value;
  }
  if (!probe(candidate, why_not)) return std::nullopt;
  return candidate;
}

// Finds the flags that this compiler takes and whether its libraries load here. Remembered on disk, since a
// compilation at each start would be felt.
bool NativeCompiler::probe(Toolchain& toolchain, std::string* why_not) {
  // Alternatives, best first; the last of each always works.
  const std::vector<Words> tunings = {{"-march=native"}, {"-mcpu=native"}, {}};
  const std::vector<Words> widths =
      cpu_has("avx512f") ? std::vector<Words>{{"-mprefer-vector-width=512"}, {}} : std::vector<Words>{{}};
  const std::vector<Words> links = {split_words(lean_link), {}};
  const auto choose = [&](size_t tuning, size_t width, size_t link) {
    toolchain.flags = split_words(base_flags);
    for (const std::string& flag : tunings[tuning]) toolchain.flags.push_back(flag);
    for (const std::string& flag : widths[width]) toolchain.flags.push_back(flag);
    toolchain.link = links[link];
  };
  const auto works = [&](size_t tuning, size_t width, size_t link) {
    choose(tuning, width, link);
    try {
      const CompiledLibrary library(build(toolchain, probe_source, ""));
      const auto function = reinterpret_cast<int (*)()>(library.symbol("fusewright_probe"));
      return function != nullptr && function() == 42;
    } catch (const BuildDirectoryError&) {
      throw;  // says nothing about the compiler
    } catch (const CompileError& error) {
      *why_not = error.what();
      return false;
    }
  };

  const KernelKey key{
      probe_source,      base_flags + std::string(lean_link), toolchain.identity, cpu_identity(), "probe",
      FUSEWRIGHT_VERSION};
  const auto recall = [&] {
    const auto known = cache_.get(key.hex());
    if (!known || known->size() != 3) return false;
    const auto index = [&](int i) { return std::to_integer<size_t>((*known)[i]); };
    if (index(0) >= tunings.size() || index(1) >= widths.size() || index(2) >= links.size()) return false;
    choose(index(0), index(1), index(2));
    return true;
  };
  if (recall()) return true;
  const CacheLock lock(cache_, key.hex());
  if (recall()) return true;

  // All of the best at once is the usual case and costs one compilation; else each by itself.
  size_t tuning = 0, width = 0, link = 0;
  if (!works(tuning, width, link)) {
    const size_t no_tuning = tunings.size() - 1, no_width = widths.size() - 1, plain_link = links.size() - 1;
    while (tuning < no_tuning && !works(tuning, no_width, plain_link)) ++tuning;
    while (width < no_width && !works(no_tuning, width, plain_link)) ++width;
    while (link < plain_link && !works(no_tuning, no_width, link)) ++link;
    if (!works(tuning, width, link)) return false;
  }
  const std::byte chosen[] = {std::byte(tuning), std::byte(width), std::byte(link)};
  cache_.put(key.hex(), chosen);
  return true;
}

std::vector<NativeCompiler::Library> NativeCompiler::compile(const std::vector<std::string>& sources) {
  if (sources.empty()) return {};
  const Toolchain& chosen = toolchain();
  std::vector<std::string> keys;
  for (const std::string& source : sources) keys.push_back(key_of(source).hex());
  return libraries_.get(keys, [&](size_t i) { return obtain(chosen, keys[i], sources[i]); });
}

NativeCompiler::Library NativeCompiler::load_cached(const std::string& key) {
  const auto bytes = cache_.get(key);
  if (!bytes) return nullptr;
  try {
    auto library = std::make_shared<CompiledLibrary>(*bytes);
    libraries_.count_cache_hit();
    return library;
  } catch (const CompileError& error) {
    log(LogLevel::warning, std::string("a cached kernel is compiled again: ") + error.what());
    return nullptr;
  }
}

NativeCompiler::Library NativeCompiler::obtain(const Toolchain& toolchain, const std::string& key,
                                               const std::string& source) {
  if (Library library = load_cached(key)) return library;
  // One lock at a time in each thread, so no two processes can wait for each other.
  const CacheLock lock(cache_, key);
  if (Library library = load_cached(key)) return library;
  const std::vector<std::byte> bytes = build(toolchain, source, key);
  auto library = std::make_shared<CompiledLibrary>(bytes);
  cache_.put(key, bytes);
  libraries_.count_compiled();
  return library;
}

std::vector<std::byte> NativeCompiler::build(const Toolchain& toolchain, const std::string& source,
                                             const std::string& name) {
  // A probe has no name and is not kept.
  const std::string kept = name.empty() ? "" : keep_source(source, name + ".cpp");
  const BuildDirectory directory;
  const std::string source_path = directory.file("kernel.cpp"), library_path = directory.file("kernel.so");
  write_file(source_path, std::as_bytes(std::span(source)));

  Words command = toolchain.command;
  command.insert(command.end(), toolchain.flags.begin(), toolchain.flags.end());
  command.insert(command.end(), {"-o", library_path, source_path});
  command.insert(command.end(), toolchain.link.begin(), toolchain.link.end());
  SubprocessOptions options;
  // The compiler's own temporary files go with the directory, also if it is killed.
  options.environment = {{"LC_ALL", "C"}, {"TMPDIR", directory.path()}};
  const SubprocessResult result = libraries_.in_slot([&] { return run_subprocess(command, options); });
  if (result.ok()) return read_file(library_path);
  throw CompileError("the C++ compiler failed (" + result.describe() + "): " + join(command, " ") + "\n" +
                     result.output + where_source_is(kept));
}

}  // namespace fusewright
