// Random graphs for as long as wanted. tests/runtime/fuzz_test.cpp runs a few of them in every test.
//   fuzz [--graphs N] [--seed FIRST] [--shard I/N] [--seconds S] [--failures N] [--gpu] [--libraries FOLDER:FOLDER]
// --libraries: where NVRTC may be. With the emulator's libraries in FUSEWRIGHT_CUDA_LIBRARY and
// FUSEWRIGHT_NVRTC_LIBRARY --gpu runs there.
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "fuzz/gpu_host.h"
#include "fuzz/search.h"

namespace {

void tell_seed(int signal) {
  std::fprintf(stderr, "signal %d at seed %u\n", signal, fusewright::testing::Search::current());
  std::_Exit(128 + signal);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace fusewright;
  using namespace fusewright::testing;
  unsigned graphs = 1000, first = 1, most_failures = 5, shard = 0, shards = 1;
  double limit = 1e9;
  std::string folders;
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--gpu") {
      options.cuda = true;
      continue;
    }
    ++i;
    if (name == "--graphs")
      graphs = static_cast<unsigned>(std::atoi(value));
    else if (name == "--seed")
      first = static_cast<unsigned>(std::atoi(value));
    else if (name == "--failures")
      most_failures = static_cast<unsigned>(std::atoi(value));
    else if (name == "--seconds")
      limit = std::atof(value);
    else if (name == "--libraries")
      folders = value;
    else if (name != "--shard" || std::sscanf(value, "%u/%u", &shard, &shards) != 2 || shard >= shards) {
      std::fprintf(stderr,
                   "fuzz [--graphs N] [--seed FIRST] [--shard I/N] [--seconds S] [--failures N] [--gpu] "
                   "[--libraries FOLDER:FOLDER]\n"
                   "shards are 0/N to N-1/N\n");
      return 2;
    }
  }
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) std::signal(signal, tell_seed);
  std::vector<std::string> directories;
  std::istringstream stream(folders);
  for (std::string folder; std::getline(stream, folder, ':');) directories.push_back(folder);
  cuda::add_library_directories(directories);
  const auto start = std::chrono::steady_clock::now();
  auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  if (options.cuda && !cuda::available()) {
    std::fprintf(stderr, "no GPU: %s\n", cuda::unavailable_because().c_str());
    return 2;
  }
  std::unique_ptr<Host> gpu = options.cuda ? std::make_unique<GpuHost>() : nullptr;
  Search search(options, gpu ? *gpu : plain_host());
  unsigned failures = 0;
  const unsigned part = (graphs + shards - 1) / shards, begin = first + shard * part,
                 end = std::min(first + graphs, begin + part);
  constexpr unsigned at_once = 64;
  for (unsigned from = begin; from < end && failures < most_failures && seconds() < limit; from += at_once) {
    for (const Finding& found : search.run(from, std::min(at_once, end - from), [&] { return seconds() > limit; })) {
      if (++failures > most_failures) break;
      std::printf("FAILED %s", report(found).c_str());
      std::fflush(stdout);
      std::printf("%s\n", report_reduced(search.reduced(found)).c_str());
      std::fflush(stdout);
    }
    std::printf("%u graphs from seed %u, %u failures, %.0f s\n", search.graphs(), begin, failures, seconds());
    std::fflush(stdout);
  }
  if (failures == 0 && seconds() >= limit && begin + search.graphs() < end) {
    std::printf("out of time: %u of %u graphs\n", search.graphs(), end - begin);
    return 3;
  }
  return failures ? 1 : 0;
}
