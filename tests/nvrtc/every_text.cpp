// Has the real NVRTC compile every kernel that a test has run in the emulator: usage  nvrtc_texts FOLDER KNOWN [all]
//
// FOLDER: texts that the emulator left there (FUSEWRIGHT_EMULATOR_TEXTS). KNOWN: a file that remembers, from run to
// run, what has compiled. Every text goes through the compiler's front end for every architecture: that is where texts
// differ. The stages after it depend on the instructions, all of which are in the headers
// (tests/emulator/device_header_test.cpp compiles these to machine code). So machine code is made of one variant of
// each kernel, for one architecture, which the kernel's text chooses: it takes ten times as long as the front end.
// `all` makes it for every architecture.
// Many kernels are one program, each in a namespace of its own: the headers in front cost more than a kernel.
// Exit status 77: there is no NVRTC.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <new>
#include <regex>
#include <set>
#include <sstream>

#include "codegen/kernel_code.h"
#include "runtime/cache/sha256.h"
#include "runtime/compiler/compile_error.h"
#include "runtime/cuda/nvrtc.h"
#include "runtime/nvrtc_places.h"

namespace fusewright::testing {
namespace {

constexpr const char* architectures[] = {"sm_80", "sm_90a", "sm_100"};
constexpr char record_end = '\x1e';

struct Text {
  std::string variant;  // the definitions in front of the headers
  int unrolled = 1;     // elements that a thread holds
  std::string body, name;
  std::vector<std::string> entries;
};

Text read_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream content;
  content << file.rdbuf();
  const std::string all = content.str();
  Text text;
  size_t at = 0;
  while (all.compare(at, 7, "#define") == 0) at = all.find('\n', at) + 1;
  text.variant = all.substr(0, at);
  text.body = all.substr(at);
  static const std::regex number("FW_(VECTOR|ITEMS) (\\d+)");
  for (std::sregex_iterator it(text.variant.begin(), text.variant.end(), number), end; it != end; ++it)
    text.unrolled *= std::max(std::stoi((*it)[2]), 1);
  static const std::regex entry("__global__ void __launch_bounds__\\([^)]*\\) (\\w+)\\(");
  for (std::sregex_iterator it(text.body.begin(), text.body.end(), entry), end; it != end; ++it)
    text.entries.push_back((*it)[1]);
  text.name = text.entries.empty() ? path.stem().string() : text.entries[0] + "." + path.stem().string();
  return text;
}

const std::string& headers_of(const Text& text) {
  return text.variant.find("FW_TILED") != std::string::npos ? cuda_tile_prelude() : cuda_prelude();
}

// Texts of one variant that are compiled together.
struct Job {
  std::string architecture;
  bool machine_code;
  std::vector<const Text*> texts;

  std::vector<std::string> options() const { return {machine_code ? "--Ofast-compile=mid" : "--fdevice-syntax-only"}; }
  std::string source() const {
    std::string source = texts[0]->variant + headers_of(*texts[0]);
    for (const Text* const& text : texts) {
      const std::string number = std::to_string(&text - texts.data());
      // extern "C": one name, whatever the namespace.
      for (const std::string& entry : text->entries) source += "#define " + entry + " " + entry + "_" + number + "\n";
      source += "namespace n" + number + " {\n#line 1 \"" + text->name + "\"\n" + text->body + "\n}\n";
      for (const std::string& entry : text->entries) source += "#undef " + entry + "\n";
    }
    return source;
  }
};

std::string key_of(const Text& text, const std::string& architecture, bool machine_code, const cuda::Nvrtc& nvrtc) {
  return Sha256()
      .update_field(nvrtc.identity())
      .update_field(architecture)
      .update_field(machine_code ? "machine code" : "front end")
      .update_field(text.variant)
      .update_field(headers_of(text))
      .update_field(text.body)
      .hex();
}

// The architecture that machine code is made for: each of them gets as many kernels as the others.
size_t choose_architecture(const Text& text) {
  return std::stoul(Sha256().update_field(text.body).hex().substr(0, 8), nullptr, 16) % std::size(architectures);
}

// Empty, or the compiler's words.
std::string problem_of(const Job& job, const cuda::Nvrtc& nvrtc) {
  try {
    nvrtc.compile(job.source(), {job.architecture, false}, job.options());
    return "";
  } catch (const CompileError& error) {
    return error.what();
  }
}

int run(const std::string& folder, const std::string& known_file, bool all) {
  std::string why_not;
  const auto nvrtc = cuda::Nvrtc::open("", package_directories(), 0, why_not);
  if (nvrtc == nullptr) {
    std::printf("nvrtc: SKIPPED, %s\n", why_not.c_str());
    return 77;
  }
  std::vector<std::filesystem::path> paths;
  if (std::filesystem::exists(folder))
    for (const auto& file : std::filesystem::directory_iterator(folder))
      if (file.path().extension() == ".cu") paths.push_back(file.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Text> texts;
  texts.reserve(paths.size());
  for (const auto& path : paths) texts.push_back(read_text(path));
  // Variants that unroll least come first: of these machine code is made.
  std::stable_sort(texts.begin(), texts.end(), [](const Text& a, const Text& b) { return a.unrolled < b.unrolled; });

  std::set<std::string> known, wanted;
  std::ifstream before(known_file);
  for (std::string line; std::getline(before, line);) known.insert(line);

  constexpr size_t most_parsed = 32, most_translated = 8;
  std::vector<Job> jobs;
  std::map<std::string, size_t> open;
  std::set<std::string> translated;
  size_t fresh = 0;
  auto add = [&](const Text& text, const std::string& architecture, bool machine_code) {
    const std::string key = key_of(text, architecture, machine_code, *nvrtc);
    wanted.insert(key);
    if (known.count(key)) return;
    ++fresh;
    auto [place, first] = open.try_emplace(architecture + (machine_code ? "+" : "-") + text.variant, jobs.size());
    if (!first && jobs[place->second].texts.size() == (machine_code ? most_translated : most_parsed))
      place->second = jobs.size();
    if (place->second == jobs.size()) jobs.push_back({architecture, machine_code, {}});
    jobs[place->second].texts.push_back(&text);
  };
  for (const Text& text : texts) {
    const bool first = translated.insert(text.body).second;
    const size_t chosen = choose_architecture(text);
    for (size_t a = 0; a < std::size(architectures); ++a) {
      add(text, architectures[a], false);
      if (first && (all || a == chosen)) add(text, architectures[a], true);
    }
  }

  // Long jobs first, so that no process is left with one at the end.
  std::stable_partition(jobs.begin(), jobs.end(), [](const Job& job) { return job.machine_code; });

  // Processes, not threads: a compiler that crashes takes nobody along. Each takes the next job from the counter that
  // they share, and says what failed in a file of its own.
  void* const shared =
      mmap(nullptr, sizeof(std::atomic<size_t>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) {
    std::printf("nvrtc: FAILED, no memory that processes share\n");
    return 1;
  }
  auto& next = *new (shared) std::atomic<size_t>(0);
  const auto workers = static_cast<size_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  std::vector<pid_t> children;
  auto report = [&](size_t worker) { return known_file + "." + std::to_string(worker); };
  std::fflush(stdout);
  for (size_t worker = 0; worker < workers; ++worker) {
    const pid_t child = fork();
    if (child == 0) {
      std::ofstream out(report(worker));
      for (size_t j; (j = next++) < jobs.size();) {
        const Job& job = jobs[j];
        if (problem_of(job, *nvrtc).empty()) continue;
        for (const Text* text : job.texts) {
          const std::string problem = problem_of({job.architecture, job.machine_code, {text}}, *nvrtc);
          if (problem.empty()) continue;
          out << key_of(*text, job.architecture, job.machine_code, *nvrtc) << "\n"
              << text->name << ", " << job.architecture << (job.machine_code ? ", machine code" : "") << ":\n"
              << problem.substr(0, 4000) << record_end;
        }
      }
      out.close();
      _exit(out.good() ? 0 : 1);
    }
    children.push_back(child);
  }
  bool complete = true;
  size_t failures = 0;
  for (size_t worker = 0; worker < workers; ++worker) {
    int status = 0;
    complete &= children[worker] > 0 && waitpid(children[worker], &status, 0) > 0 && status == 0;
    std::ifstream in(report(worker));
    for (std::string key, problem; std::getline(in, key) && std::getline(in, problem, record_end); ++failures) {
      wanted.erase(key);
      std::printf("%s\n", problem.c_str());
    }
    std::filesystem::remove(report(worker));
  }
  if (complete) {
    std::ofstream after(known_file);
    for (const std::string& key : wanted) after << key << "\n";
  }
  const std::string verdict = !complete ? "FAILED, a compiler crashed" : failures ? "FAILED" : "ok";
  std::printf("nvrtc: %s, %zu texts, %zu programs for %zu of %zu checks, %zu failures\n", verdict.c_str(), texts.size(),
              jobs.size(), fresh, wanted.size() + failures, failures);
  return complete && failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace fusewright::testing

int main(int count, char** arguments) {
  const bool all = count == 4 && std::string(arguments[3]) == "all";
  if (count != 3 && !all) {
    std::fprintf(stderr, "usage: nvrtc_texts FOLDER KNOWN [all]\n");
    return 2;
  }
  return fusewright::testing::run(arguments[1], arguments[2], all);
}
