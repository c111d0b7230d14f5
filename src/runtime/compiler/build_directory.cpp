#include "runtime/compiler/build_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include "runtime/cache/paths.h"

namespace fusewright {
namespace {

constexpr const char* build_prefix = "fusewright-build-";
// A directory just made is not locked yet; this long it is left alone.
constexpr std::time_t leftover_age_seconds = 600;

std::string temporary_root() {
  const char* chosen = std::getenv("TMPDIR");
  return chosen != nullptr && *chosen == '/' ? chosen : "/tmp";
}

// Removes the directories of processes that were killed: old, ours, and no longer locked by their owner.
void remove_leftover_builds(const std::string& root) {
  for (const std::string& name : list_directory(root)) {
    if (!name.starts_with(build_prefix)) continue;
    const std::string path = root + "/" + name;
    const UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat status;
    if (!directory || fstat(directory.get(), &status) != 0 || status.st_uid != geteuid()) continue;
    if (status.st_mtime + leftover_age_seconds > std::time(nullptr)) continue;
    if (flock(directory.get(), LOCK_EX | LOCK_NB) == 0) remove_tree(path);
  }
}

constexpr const char* advice = "; set TMPDIR to a directory with space that you can write to";

}  // namespace

BuildDirectory::BuildDirectory() {
  const std::string root = temporary_root();
  static std::atomic<pid_t> swept_by{0};  // once in each process, forked ones too
  if (swept_by.exchange(getpid()) != getpid()) remove_leftover_builds(root);
  path_ = root + "/" + build_prefix + "XXXXXX";
  if (mkdtemp(path_.data()) == nullptr) {
    throw BuildDirectoryError("cannot create a build directory in '" + root + "': " + std::strerror(errno) + advice);
  }
  lock_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock_) flock(lock_.get(), LOCK_EX | LOCK_NB);
}

BuildDirectory::~BuildDirectory() { remove_tree(path_); }

void write_file(const std::string& path, std::span<const std::byte> bytes) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const int error = file ? write_all(file.get(), bytes) : errno;
  if (error != 0) throw BuildDirectoryError("cannot write '" + path + "': " + std::strerror(error) + advice);
}

}  // namespace fusewright
