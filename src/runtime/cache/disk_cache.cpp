#include "runtime/cache/disk_cache.h"
#include "runtime/cache/paths.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <thread>

#include "base/log.h"
#include "runtime/cache/sha256.h"
#include "runtime/thread_pool.h"

namespace fusewright {
namespace {

// An entry: magic and format version, key, payload length (little-endian), SHA-256 of the payload, payload.
constexpr std::string_view magic("FUSEWRIGHT\0\0\0\0\0\1", 16);
constexpr size_t key_size = 64;
constexpr size_t length_offset = magic.size() + key_size;
constexpr size_t digest_offset = length_offset + 8;
constexpr size_t header_size = digest_offset + 32;
constexpr uint64_t max_payload = uint64_t{1} << 30;
using Header = std::array<std::byte, header_size>;

constexpr std::string_view entry_suffix = ".entry";
constexpr std::string_view lock_suffix = ".lock";
constexpr std::string_view temporary_prefix = "tmp-";
// Between creating a file and locking it a live process looks like a dead one; this long it is left alone.
constexpr std::time_t leftover_age_seconds = 60;

bool valid_key(std::string_view key) {
  return key.size() == key_size && key.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string entry_name(const std::string& key) { return key + std::string(entry_suffix); }

bool is_entry_name(std::string_view name) {
  return name.ends_with(entry_suffix) && valid_key(name.substr(0, name.size() - entry_suffix.size()));
}

bool is_transient_name(std::string_view name) {
  return name.starts_with(temporary_prefix) ||
         (name.ends_with(lock_suffix) && valid_key(name.substr(0, name.size() - lock_suffix.size())));
}

Header make_header(const std::string& key, std::span<const std::byte> payload) {
  Header header;
  std::memcpy(header.data(), magic.data(), magic.size());
  std::memcpy(header.data() + magic.size(), key.data(), key_size);
  for (int i = 0; i < 8; ++i) {
    header[length_offset + i] = static_cast<std::byte>(static_cast<uint64_t>(payload.size()) >> (8 * i));
  }
  const Sha256::Digest digest = sha256(payload);
  std::copy(digest.begin(), digest.end(), header.begin() + digest_offset);
  return header;
}

uint64_t payload_length(const Header& header) {
  uint64_t length = 0;
  for (int i = 0; i < 8; ++i) length |= std::to_integer<uint64_t>(header[length_offset + i]) << (8 * i);
  return length;
}

enum class ReadOutcome { found, absent, bad };

// Reads an entry once and checks those very bytes; `problem` says what is wrong with a bad one.
ReadOutcome read_entry(int root, const std::string& key, std::vector<std::byte>& payload, std::string& problem) {
  // O_NONBLOCK: a FIFO planted under this name must not make us wait for its writer.
  const UniqueFd file(openat(root, entry_name(key).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    if (errno == ENOENT) return ReadOutcome::absent;
    problem = errno == ELOOP ? "is a symbolic link" : std::strerror(errno);
    return ReadOutcome::bad;
  }
  struct stat status;
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    problem = "is not a regular file";
    return ReadOutcome::bad;
  }
  Header header;
  if (const int error = read_all(file.get(), header); error != 0) {
    problem = error < 0 ? (status.st_size == 0 ? "is empty" : "is truncated") : std::strerror(error);
    return ReadOutcome::bad;
  }
  if (std::memcmp(header.data(), magic.data(), magic.size()) != 0) {
    problem = "has another format or version";
  } else if (std::memcmp(header.data() + magic.size(), key.data(), key_size) != 0) {
    problem = "belongs to another key";
  } else if (payload_length(header) != static_cast<uint64_t>(status.st_size) - header_size) {
    problem = "has the wrong length";
  } else if (payload_length(header) > max_payload) {
    problem = "is too large";  // a sparse file can claim more than there is memory
  }
  if (!problem.empty()) return ReadOutcome::bad;
  payload.resize(payload_length(header));
  if (const int error = read_all(file.get(), payload); error != 0) {
    problem = error < 0 ? "is truncated" : std::strerror(error);
  } else if (make_header(key, payload) != header) {
    problem = "has the wrong checksum";
  }
  return problem.empty() ? ReadOutcome::found : ReadOutcome::bad;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool is_directory(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

// 0 or the errno, without trying: what the nearest directory above that exists lets us do.
int why_not_created(std::string path) {
  do path = path.substr(0, std::max<size_t>(path.rfind('/'), 1));
  while (path != "/" && !is_directory(path));
  return faccessat(AT_FDCWD, path.c_str(), W_OK | X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

// Whether a temporary or lock file belongs to a process that is gone. Its owner holds a flock on it for life,
// which holds across containers and machines, where a process id would mislead.
bool is_leftover(int root, const std::string& name) {
  struct stat status;
  const UniqueFd file(openat(root, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  return file && fstat(file.get(), &status) == 0 && status.st_mtime + leftover_age_seconds < std::time(nullptr) &&
         flock(file.get(), LOCK_EX | LOCK_NB) == 0;
}

// The names in the directory, read to the end first: removing while reading may skip some.
std::vector<std::string> list_directory(int root) {
  std::vector<std::string> names;
  UniqueFd own(openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DIR* directory = own ? fdopendir(own.get()) : nullptr;
  if (directory == nullptr) return names;
  own.release();
  while (const dirent* entry = readdir(directory)) names.emplace_back(entry->d_name);
  closedir(directory);
  return names;
}

std::string unique_temporary_name() {
  std::random_device random;
  char text[64];
  std::snprintf(text, sizeof text, "%s%08x%08x%08x", temporary_prefix.data(), random(), random(), random());
  return text;
}

}  // namespace

DiskCache::DiskCache(std::string root) : root_(std::move(root)) {}

DiskCache& DiskCache::instance() {
  return ProcessSingleton<DiskCache>::get([] { return new DiskCache(default_root()); });
}

std::string DiskCache::default_root() {
  if (const std::string chosen = variable("FUSEWRIGHT_CACHE_DIR"); !chosen.empty()) return chosen;
  // The XDG specification has relative paths ignored.
  if (const std::string xdg = variable("XDG_CACHE_HOME"); xdg.starts_with('/')) {
    return xdg + "/fusewright";
  }
  // A user without a home (a service, an unmapped id in a container) gets none made for him.
  const std::string home = variable("HOME");
  return home.starts_with('/') && is_directory(home) ? home + "/.cache/fusewright" : "";
}

// Opened and checked anew for each use: no descriptor to go stale if the directory is removed or replaced,
// and what is checked is what is used, whatever happens to the path meanwhile.
UniqueFd DiskCache::open_root(IfMissing if_missing, std::string* reason) const {
  if (root_.empty()) {
    *reason = "there is no cache directory: set FUSEWRIGHT_CACHE_DIR, XDG_CACHE_HOME or HOME";
    return UniqueFd();
  }
  // O_NOFOLLOW does not apply to "link/" and "link/.", so those are reduced to "link" first.
  const std::string path = absolute_path(root_);
  const auto refuse = [&](const std::string& why) {
    *reason = "cache directory '" + path + "' is refused: " + why;
    return UniqueFd();
  };
  const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  UniqueFd root(::open(path.c_str(), flags));
  if (!root && errno == ENOENT) {
    const bool make = if_missing == IfMissing::make;
    const int error = make ? make_directories(path) : why_not_created(path);
    if (error != 0) return refuse(std::string("it cannot be created: ") + std::strerror(error));
    if (!make) return UniqueFd();
    root = UniqueFd(::open(path.c_str(), flags));
  }
  if (!root) {
    const int error = errno;
    struct stat status;
    const bool is_link = lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
    return refuse(is_link ? "it is a symbolic link" : std::strerror(error));
  }
  struct stat status;
  if (fstat(root.get(), &status) != 0) return refuse(std::strerror(errno));
  if (status.st_uid != geteuid()) {
    return refuse("it belongs to user " + std::to_string(status.st_uid) + ", not to us (user " +
                  std::to_string(geteuid()) + ")");
  }
  if ((status.st_mode & 077) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(status.st_mode & 07777));
    return refuse(std::string("others have access to it (mode ") + mode + "); make it 0700");
  }
  return root;
}

UniqueFd DiskCache::root_or_fault(IfMissing if_missing) {
  std::string reason;
  UniqueFd root = open_root(if_missing, &reason);
  if (!reason.empty()) fault("root", reason + "; compiled kernels are kept in memory only");
  return root;
}

void DiskCache::fault(const std::string& kind, const std::string& detail) {
  {
    const std::lock_guard lock(mutex_);
    ++stats_.faults;
    if (!logged_faults_.insert(kind).second) return;
  }
  log(LogLevel::warning, "cache: " + detail);
}

std::optional<std::vector<std::byte>> DiskCache::get(const std::string& key) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = memory_.find(key); found != memory_.end()) {
      ++stats_.memory_hits;
      return found->second;
    }
  }
  std::vector<std::byte> payload;
  ReadOutcome outcome = ReadOutcome::absent;
  if (!valid_key(key)) {
    fault("key", "a key is not a SHA-256 in hexadecimal");
  } else if (const UniqueFd root = root_or_fault()) {
    std::string problem;
    outcome = read_entry(root.get(), key, payload, problem);
    if (outcome == ReadOutcome::bad) {
      fault(problem, "entry " + key + " in '" + root_ + "' " + problem + "; it is computed again");
    }
  }
  const std::lock_guard lock(mutex_);
  if (outcome != ReadOutcome::found) {
    ++stats_.misses;
    return std::nullopt;
  }
  ++stats_.disk_hits;
  memory_[key] = payload;
  return payload;
}

void DiskCache::put(const std::string& key, std::span<const std::byte> bytes) {
  if (!valid_key(key)) return fault("key", "a key is not a SHA-256 in hexadecimal");
  bool sweep;
  {
    const std::lock_guard lock(mutex_);
    memory_[key].assign(bytes.begin(), bytes.end());
    sweep = !std::exchange(swept_, true);
  }
  const UniqueFd root = root_or_fault();
  if (!root) return;
  if (sweep) remove_leftovers(root.get());
  write_entry(root.get(), key, bytes);
}

// A reader sees the old entry, none, or the whole new one, even after a power cut: sync, then rename.
void DiskCache::write_entry(int root, const std::string& key, std::span<const std::byte> bytes) {
  const std::string temporary = unique_temporary_name();
  const UniqueFd file(openat(root, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  int error = file ? 0 : errno;
  if (file) {
    flock(file.get(), LOCK_EX | LOCK_NB);  // tells remove_leftovers of other processes that we live
    error = write_all(file.get(), make_header(key, bytes));
    if (error == 0) error = write_all(file.get(), bytes);
    if (error == 0 && fsync(file.get()) != 0) error = errno;
    if (error == 0 && renameat(root, temporary.c_str(), root, entry_name(key).c_str()) != 0) error = errno;
    if (error != 0) unlinkat(root, temporary.c_str(), 0);
  }
  if (error == 0) return;
  fault(std::string("write ") + std::strerror(error),
        "cannot write to '" + root_ + "': " + std::strerror(error) + "; the entry is kept in memory only");
}

void DiskCache::remove_leftovers(int root) {
  for (const std::string& name : list_directory(root)) {
    if (is_transient_name(name) && is_leftover(root, name)) unlinkat(root, name.c_str(), 0);
  }
}

CacheStats DiskCache::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

CacheInfo DiskCache::info() const {
  CacheInfo info;
  info.root = root_.empty() ? "" : absolute_path(root_);
  const UniqueFd root = open_root(IfMissing::leave, &info.reason);
  info.usable = info.writable = info.reason.empty();
  struct stat status;
  if (info.root.empty() || lstat(info.root.c_str(), &status) != 0) return info;
  info.exists = true;
  info.mode = status.st_mode & 07777;
  info.owner = status.st_uid;
  info.writable = faccessat(AT_FDCWD, info.root.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
  if (!root) return info;
  for (const std::string& name : list_directory(root.get())) {
    if (!is_entry_name(name) || fstatat(root.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    ++info.entries;
    info.bytes += static_cast<uint64_t>(status.st_size);
  }
  struct statvfs disk;
  if (fstatvfs(root.get(), &disk) == 0) info.free_bytes = uint64_t{disk.f_bavail} * disk.f_frsize;
  return info;
}

size_t DiskCache::clear() {
  {
    const std::lock_guard lock(mutex_);
    memory_.clear();
  }
  size_t removed = 0;
  const UniqueFd root = root_or_fault(IfMissing::leave);
  if (!root) return removed;
  remove_leftovers(root.get());
  for (const std::string& name : list_directory(root.get())) {
    if (is_entry_name(name) && unlinkat(root.get(), name.c_str(), 0) == 0) ++removed;
  }
  return removed;
}

CacheCheck DiskCache::verify() {
  CacheCheck check;
  const UniqueFd root = root_or_fault(IfMissing::leave);
  if (!root) return check;
  for (const std::string& name : list_directory(root.get())) {
    if (!is_entry_name(name)) continue;
    std::vector<std::byte> payload;
    std::string problem;
    const ReadOutcome outcome = read_entry(root.get(), name.substr(0, key_size), payload, problem);
    check.entries += outcome != ReadOutcome::absent;  // removed meanwhile
    if (outcome == ReadOutcome::bad) check.bad.push_back({name, problem});
  }
  std::sort(check.bad.begin(), check.bad.end(), [](const auto& a, const auto& b) { return a.file < b.file; });
  return check;
}

std::chrono::milliseconds CacheLock::default_timeout() {
  return std::chrono::seconds(positive_from_environment("FUSEWRIGHT_LOCK_TIMEOUT", 60));
}

CacheLock::CacheLock(DiskCache& cache, const std::string& key, std::chrono::milliseconds timeout) {
  if (!valid_key(key)) return;
  root_ = cache.root_or_fault();
  if (!root_) return;
  name_ = key + std::string(lock_suffix);
  file_ = acquire(cache, timeout);
}

UniqueFd CacheLock::acquire(DiskCache& cache, std::chrono::milliseconds timeout) const {
  const auto give_up = [&](const std::string& kind, const std::string& detail) {
    cache.fault(kind, "lock '" + cache.root_ + "/" + name_ + "' " + detail + "; going on without it");
    return UniqueFd();
  };
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  UniqueFd file;
  // Asking again and again, for a blocking flock has no time-out.
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, std::chrono::milliseconds(20))) {
    if (!file) {
      const int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
      file = UniqueFd(openat(root_.get(), name_.c_str(), flags, 0600));
      if (!file) return give_up("lock", std::string("cannot be created: ") + std::strerror(errno));
    }
    if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      struct stat status;
      if (fstat(file.get(), &status) != 0 || status.st_nlink > 0) return file;
      file.reset();  // its last holder has removed it; others lock a new one
    } else if (errno != EWOULDBLOCK && errno != EINTR) {
      return give_up("flock", std::string("cannot be taken: ") + std::strerror(errno));
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return give_up("lock time-out", "is still held elsewhere after " + std::to_string(timeout.count()) + " ms");
    }
    if (file) std::this_thread::sleep_for(pause);
  }
}

CacheLock::~CacheLock() {
  if (!file_) return;
  unlinkat(root_.get(), name_.c_str(), 0);
  // Explicitly: a child forked meanwhile has a copy of the descriptor, which would keep the lock.
  flock(file_.get(), LOCK_UN);
}

}  // namespace fusewright
