#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/posix.h"

namespace fusewright {

// Where the cache is, whether it would be used, and what is in it.
struct CacheInfo {
  std::string root;     // absolute; empty: memory only
  bool exists = false;  // a missing one is usable if it could be made
  bool usable = false;
  std::string reason;  // why it is not usable
  unsigned mode = 0, owner = 0;
  bool writable = false;
  size_t entries = 0;
  uint64_t bytes = 0;
  std::optional<uint64_t> free_bytes;  // of a directory that exists and is usable
};

struct BadEntry {
  std::string file, problem;
  bool operator==(const BadEntry&) const = default;
};

struct CacheCheck {
  size_t entries = 0;         // all that were read
  std::vector<BadEntry> bad;  // by name
};

struct CacheStats {
  uint64_t memory_hits = 0, disk_hits = 0, misses = 0, faults = 0;
};

// Bytes by key (64 lower-case hexadecimal digits, a SHA-256), in memory and in one directory of the user's
// own. The key must cover all that decides the bytes. No method throws for what it finds on disk or waits for
// anything: each fault is a miss, or an entry kept in memory only, and one log line per kind of fault.
class DiskCache {
 public:
  explicit DiskCache(std::string root);  // empty: memory only
  static DiskCache& instance();          // at default_root()

  // FUSEWRIGHT_CACHE_DIR, else $XDG_CACHE_HOME/fusewright, else ~/.cache/fusewright, else empty.
  static std::string default_root();

  std::optional<std::vector<std::byte>> get(const std::string& key);
  void put(const std::string& key, std::span<const std::byte> bytes);

  CacheStats stats() const;

  // Upkeep makes no directory that is not there.
  CacheInfo info() const;
  size_t clear();  // removes every entry and what dead processes left behind, returns how many entries were on disk
  CacheCheck verify();  // reads every entry on disk as `get` would

 private:
  friend class CacheLock;

  enum class IfMissing { make, leave };

  // None, and `reason` says why; a directory that is missing and could be made has no reason.
  UniqueFd open_root(IfMissing, std::string* reason) const;
  UniqueFd root_or_fault(IfMissing = IfMissing::make);
  void write_entry(int root, const std::string& key, std::span<const std::byte> bytes);
  void remove_leftovers(int root);
  // Counts the fault and logs the first of its kind. Never called under mutex_: a log sink may lock.
  void fault(const std::string& kind, const std::string& detail);

  const std::string root_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::vector<std::byte>> memory_;
  std::set<std::string> logged_faults_;
  bool swept_ = false;
  CacheStats stats_;
};

// Held by the process that computes an entry, so that others wait for it rather than compute it too. It saves
// work and decides nothing: where it cannot be had in time, one goes on without it.
class CacheLock {
 public:
  // 60 s, or FUSEWRIGHT_LOCK_TIMEOUT in seconds.
  static std::chrono::milliseconds default_timeout();

  CacheLock(DiskCache& cache, const std::string& key, std::chrono::milliseconds timeout = default_timeout());
  ~CacheLock();
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;

  bool held() const { return static_cast<bool>(file_); }

 private:
  UniqueFd acquire(DiskCache& cache, std::chrono::milliseconds timeout) const;

  UniqueFd root_, file_;
  std::string name_;
};

}  // namespace fusewright
