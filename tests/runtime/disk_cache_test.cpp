#include "runtime/cache/disk_cache.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "runtime/cache/sha256.h"
#include "test_support.h"

namespace fusewright {
namespace {

using namespace testing;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr uid_t nobody = 65534;

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

const std::string key_a = sha256_hex("a"), key_b = sha256_hex("b");
const std::vector<std::byte> value = bytes_of(std::string("some bytes\0and more", 19));

class DiskCacheTest : public ::testing::Test {
 protected:
  std::string entry(const std::string& key) const { return root + "/" + key + ".entry"; }

  TemporaryDirectory directory;
  const std::string root = directory / "cache";
  LogCapture log;
};

TEST_F(DiskCacheTest, OtherProcessesSeeWhatWasPut) {
  DiskCache writer(root);
  EXPECT_FALSE(writer.get(key_a));
  writer.put(key_a, value);
  writer.put(key_b, {});
  DiskCache reader(root);
  EXPECT_EQ(reader.get(key_a), value);
  EXPECT_EQ(reader.get(key_b), std::vector<std::byte>());
  EXPECT_EQ(reader.stats().disk_hits, 2u);
  EXPECT_EQ(writer.stats().misses, 1u);
  EXPECT_EQ(log.count(), 0u) << log.text();

  struct stat status;
  ASSERT_EQ(stat(root.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700u);
  ASSERT_EQ(stat(entry(key_a).c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  EXPECT_EQ(files_in(root), 2u);  // nothing temporary left
}

TEST_F(DiskCacheTest, SecondRequestDoesNotTouchTheDisk) {
  DiskCache(root).put(key_a, value);
  DiskCache cache(root);
  EXPECT_EQ(cache.get(key_a), value);
  fs::remove_all(root);
  EXPECT_EQ(cache.get(key_a), value);
  EXPECT_EQ(cache.stats().memory_hits, 1u);
}

TEST_F(DiskCacheTest, LaterPutReplaces) {
  DiskCache cache(root);
  cache.put(key_a, bytes_of("old"));
  cache.put(key_a, value);
  EXPECT_EQ(cache.get(key_a), value);
  EXPECT_EQ(DiskCache(root).get(key_a), value);
}

TEST_F(DiskCacheTest, DirectoryRemovedMeanwhileIsMadeAgain) {
  DiskCache cache(root);
  cache.put(key_a, value);
  fs::remove_all(root);
  cache.put(key_b, value);
  EXPECT_EQ(DiskCache(root).get(key_b), value);
  EXPECT_EQ(log.count(), 0u) << log.text();
}

// ---- Case 34: a damaged entry is a miss and one log line ----

class DamagedEntry : public DiskCacheTest {
 protected:
  void SetUp() override {
    DiskCache(root).put(key_a, value);
    good = read_text(entry(key_a));
  }
  void expect_miss(const std::string& what, const std::string& reason) {
    DiskCache cache(root);
    EXPECT_FALSE(cache.get(key_a)) << what;
    EXPECT_FALSE(cache.get(key_a)) << what;
    EXPECT_EQ(cache.stats().faults, 2u) << what;
    EXPECT_EQ(log.count(reason), 1u) << what << "\n" << log.text();
    EXPECT_EQ(log.count(), 1u) << what << "\n" << log.text();
    EXPECT_EQ(cache.verify().bad.size(), 1u) << what;
  }
  std::string good;
};

TEST_F(DamagedEntry, Truncated) {
  for (size_t length = 0; length < good.size(); ++length) {
    const LogCapture fresh;
    write_text(entry(key_a), good.substr(0, length));
    expect_miss("length " + std::to_string(length), "");
  }
}

TEST_F(DamagedEntry, AnyByteFlipped) {
  for (size_t i = 0; i < good.size(); ++i) {
    const LogCapture fresh;
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << i % 8));
    write_text(entry(key_a), bad);
    expect_miss("byte " + std::to_string(i), "");
  }
}

TEST_F(DamagedEntry, Empty) {
  write_text(entry(key_a), "");
  expect_miss("empty", "is empty");
}

TEST_F(DamagedEntry, Longer) {
  write_text(entry(key_a), good + "x");
  expect_miss("longer", "wrong length");
}

TEST_F(DamagedEntry, OfAnotherKey) {
  DiskCache(root).put(key_b, value);
  fs::rename(entry(key_b), entry(key_a));
  expect_miss("renamed", "another key");
}

TEST_F(DamagedEntry, SparseAndHuge) {
  std::string huge = good.substr(0, 16 + 64 + 8 + 32);
  const uint64_t length = uint64_t{1} << 40;
  for (int i = 0; i < 8; ++i) huge[80 + i] = static_cast<char>(length >> (8 * i));
  write_text(entry(key_a), huge);
  if (truncate(entry(key_a).c_str(), static_cast<off_t>(length + huge.size())) != 0) GTEST_SKIP();
  expect_miss("huge", "too large");
}

TEST_F(DamagedEntry, NotARegularFile) {
  fs::remove(entry(key_a));
  write_text(directory / "elsewhere", good);
  fs::create_symlink(directory / "elsewhere", entry(key_a));
  expect_miss("link", "symbolic link");
  const LogCapture fresh;
  fs::remove(entry(key_a));
  ASSERT_EQ(mkfifo(entry(key_a).c_str(), 0600), 0);
  const auto start = steady_clock::now();
  expect_miss("fifo", "regular file");
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(1));
}

TEST_F(DamagedEntry, IsReplacedByTheNextPut) {
  write_text(entry(key_a), "garbage");
  DiskCache cache(root);
  EXPECT_FALSE(cache.get(key_a));
  cache.put(key_a, value);
  EXPECT_EQ(DiskCache(root).get(key_a), value);
  EXPECT_TRUE(cache.verify().bad.empty());
}

TEST_F(DiskCacheTest, KeysAreNoPaths) {
  DiskCache cache(root);
  for (const std::string& key : {std::string("../../etc/passwd"), std::string(), key_a + "0", "G" + key_a.substr(1)}) {
    cache.put(key, value);
    EXPECT_FALSE(cache.get(key));
  }
  EXPECT_EQ(log.count(), 1u);
  EXPECT_EQ(files_in(directory.path()), 0u);  // not even the cache itself
}

// ---- Case 35: where nothing can be written, all runs in memory ----

void expect_memory_only(const std::string& root, const std::string& reason) {
  const LogCapture log;
  DiskCache cache(root);
  EXPECT_FALSE(cache.get(key_a));
  cache.put(key_a, value);
  cache.put(key_b, value);
  EXPECT_EQ(cache.get(key_a), value);
  EXPECT_FALSE(CacheLock(cache, key_a).held());
  EXPECT_EQ(cache.clear(), 0u);
  EXPECT_FALSE(cache.get(key_a));
  EXPECT_TRUE(cache.verify().bad.empty());
  EXPECT_FALSE(cache.info().usable);
  EXPECT_NE(cache.info().reason.find(reason), std::string::npos) << cache.info().reason;
  EXPECT_EQ(log.count(reason), 1u) << log.text();
  EXPECT_EQ(log.count(), 1u) << log.text();
}

// EXPECT_ in a forked child is not seen by the parent; its exit code is.
int failures_as_exit_code() { return ::testing::Test::HasFailure() ? 1 : 0; }

TEST_F(DiskCacheTest, NoHome) {
  const ScopedVariable chosen("FUSEWRIGHT_CACHE_DIR", nullptr), xdg("XDG_CACHE_HOME", nullptr), home("HOME", nullptr);
  EXPECT_EQ(DiskCache::default_root(), "");
  expect_memory_only(DiskCache::default_root(), "set FUSEWRIGHT_CACHE_DIR");
}

TEST_F(DiskCacheTest, RootFromTheEnvironment) {
  const ScopedVariable home("HOME", directory.path());
  const ScopedVariable xdg("XDG_CACHE_HOME", "/xdg");
  {
    const ScopedVariable chosen("FUSEWRIGHT_CACHE_DIR", "/chosen");
    EXPECT_EQ(DiskCache::default_root(), "/chosen");
  }
  const ScopedVariable chosen("FUSEWRIGHT_CACHE_DIR", "");
  EXPECT_EQ(DiskCache::default_root(), "/xdg/fusewright");
  const ScopedVariable relative("XDG_CACHE_HOME", "relative");
  EXPECT_EQ(DiskCache::default_root(), directory / ".cache/fusewright");
  DiskCache(DiskCache::default_root()).put(key_a, value);
  EXPECT_EQ(files_in(directory / ".cache/fusewright"), 1u);
  const ScopedVariable missing("HOME", directory / "missing");
  EXPECT_EQ(DiskCache::default_root(), "");
}

TEST_F(DiskCacheTest, UnmappedUserInAnUnwritableHome) {
  EXPECT_EQ(run_in_child([] {
              if (getuid() == 0 && setuid(54321) != 0) return 2;  // an id that no name belongs to
              setenv("HOME", "/", 1);
              unsetenv("XDG_CACHE_HOME");
              unsetenv("FUSEWRIGHT_CACHE_DIR");
              expect_memory_only(DiskCache::default_root(), "cannot be created: Permission denied");
              return failures_as_exit_code();
            }),
            0);
}

TEST_F(DiskCacheTest, ReadOnlyDirectory) {
  DiskCache(root).put(key_a, value);
  if (getuid() == 0) {
    chmod(directory.path().c_str(), 0755);
    for (const std::string& path : {root, entry(key_a)}) ASSERT_EQ(chown(path.c_str(), nobody, nobody), 0);
  }
  ASSERT_EQ(chmod(root.c_str(), 0500), 0);
  EXPECT_EQ(run_in_child([&] {
              if (getuid() == 0 && setuid(nobody) != 0) return 2;
              const LogCapture log;
              DiskCache cache(root);
              EXPECT_EQ(cache.get(key_a), value);  // what is there can be used
              EXPECT_FALSE(CacheLock(cache, key_b).held());
              cache.put(key_b, value);
              cache.put(key_b, value);
              EXPECT_EQ(cache.get(key_b), value);
              EXPECT_EQ(log.count("cannot write"), 1u) << log.text();
              EXPECT_EQ(log.count("lock"), 1u) << log.text();
              chmod(entry(key_a).c_str(), 0);  // EACCES on the entry itself
              EXPECT_FALSE(DiskCache(root).get(key_a));
              EXPECT_EQ(log.count("Permission denied; it is computed again"), 1u) << log.text();
              return failures_as_exit_code();
            }),
            0);
  chmod(root.c_str(), 0700);
}

TEST_F(DiskCacheTest, DiskFull) {
  EXPECT_EQ(run_in_child([&] {
              signal(SIGXFSZ, SIG_IGN);  // as Python does
              const rlimit limit{100, 100};
              setrlimit(RLIMIT_FSIZE, &limit);  // a write stops in the middle, as on a full disk
              DiskCache cache(root);
              cache.put(key_a, value);
              cache.put(key_b, value);
              EXPECT_EQ(cache.get(key_a), value);
              EXPECT_EQ(log.count("cannot write"), 1u) << log.text();
              EXPECT_EQ(log.count(), 1u) << log.text();
              EXPECT_EQ(cache.stats().faults, 2u);
              return failures_as_exit_code();
            }),
            0);
  EXPECT_EQ(files_in(root), 0u);
  EXPECT_FALSE(DiskCache(root).get(key_a));
}

TEST_F(DiskCacheTest, RootIsAFile) {
  write_text(root, "");
  expect_memory_only(root, "Not a directory");
  expect_memory_only(root + "/below", "Not a directory");
}

// ---- Case 36: a directory that others could reach is refused ----

TEST_F(DiskCacheTest, OpenModesAreRefused) {
  for (const mode_t mode : {0777, 0770, 0755, 0750, 0701, 0710}) {
    fs::create_directory(root);
    ASSERT_EQ(chmod(root.c_str(), mode), 0);
    expect_memory_only(root, "others have access to it (mode 0");
    EXPECT_EQ(files_in(root), 0u);
  }
}

TEST_F(DiskCacheTest, ForeignOwnerIsRefused) {
  std::string foreign = "/usr";
  if (getuid() == 0) {
    foreign = root;
    ASSERT_EQ(mkdir(root.c_str(), 0700), 0);
    ASSERT_EQ(chown(root.c_str(), nobody, nobody), 0);
  }
  expect_memory_only(foreign, "it belongs to user");
}

TEST_F(DiskCacheTest, SymbolicLinkIsRefused) {
  ASSERT_EQ(mkdir((directory / "target").c_str(), 0700), 0);
  fs::create_symlink("target", root);
  for (const char* ending : {"", "/", "//", "/.", "/./"}) expect_memory_only(root + ending, "symbolic link");
  EXPECT_EQ(files_in(directory / "target"), 0u);
  // A link further up the path is the user's own business.
  DiskCache(root + "/below").put(key_a, value);
  EXPECT_EQ(files_in(directory / "target/below"), 1u);
}

// ---- Case 38 ----

TEST_F(DiskCacheTest, OddDirectoryNames) {
  const std::string odd = directory / "a \"b\" 'c'; $(touch x)\n`d`/e";
  DiskCache(odd).put(key_a, value);
  EXPECT_EQ(DiskCache(odd).get(key_a), value);
  EXPECT_EQ(log.count(), 0u) << log.text();
}

// ---- Leftovers, locks, upkeep ----

TEST_F(DiskCacheTest, LeftoversOfDeadProcessesAreRemoved) {
  ASSERT_EQ(mkdir(root.c_str(), 0700), 0);
  const std::string dead = root + "/tmp-dead", young = root + "/tmp-young", alive = root + "/tmp-alive",
                    lock = root + "/" + key_a + ".lock", foreign = root + "/notes.txt";
  for (const std::string& path : {dead, young, alive, lock, foreign}) write_text(path, "x");
  const UniqueFd holder(open(alive.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(holder.get(), LOCK_EX), 0);
  for (const std::string& path : {dead, alive, lock, foreign}) make_old(path);
  DiskCache cache(root);
  cache.put(key_b, value);
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_FALSE(fs::exists(lock));
  EXPECT_TRUE(fs::exists(young));
  EXPECT_TRUE(fs::exists(alive));
  EXPECT_TRUE(fs::exists(foreign));
}

TEST_F(DiskCacheTest, LockExcludesAndTimesOut) {
  DiskCache cache(root), other(root);
  {
    const CacheLock lock(cache, key_a);
    ASSERT_TRUE(lock.held());
    const auto start = steady_clock::now();
    EXPECT_FALSE(CacheLock(other, key_a, milliseconds(100)).held());
    EXPECT_FALSE(CacheLock(other, key_a, milliseconds(1)).held());
    EXPECT_GE(steady_clock::now() - start, milliseconds(100));
    EXPECT_LT(steady_clock::now() - start, milliseconds(1000));
    EXPECT_TRUE(CacheLock(other, key_b, milliseconds(1)).held());
    EXPECT_EQ(log.count("still held elsewhere after 100 ms; going on without it"), 1u) << log.text();
    EXPECT_EQ(log.count(), 1u) << log.text();
  }
  EXPECT_TRUE(CacheLock(other, key_a, milliseconds(1)).held());
  EXPECT_EQ(files_in(root), 0u);  // no lock files pile up
  const ScopedVariable seconds("FUSEWRIGHT_LOCK_TIMEOUT", "7");
  EXPECT_EQ(CacheLock::default_timeout(), milliseconds(7000));
}

TEST_F(DiskCacheTest, LockOfAKilledProcessIsFree) {
  const pid_t child = start_child([&] {
    DiskCache cache(root);
    const CacheLock lock(cache, key_a);
    write_text(directory / "locked", "");
    pause();
    return 0;
  });
  while (!fs::exists(directory / "locked")) std::this_thread::sleep_for(milliseconds(2));
  DiskCache cache(root);
  EXPECT_FALSE(CacheLock(cache, key_a, milliseconds(20)).held());
  kill(child, SIGKILL);
  EXPECT_EQ(wait_for(child), -SIGKILL);
  EXPECT_TRUE(CacheLock(cache, key_a, milliseconds(20)).held());
}

// A child forked by another thread of the holder has a copy of its descriptor, which must not keep the lock.
TEST_F(DiskCacheTest, ReleaseWorksDespiteAForkedCopy) {
  DiskCache cache(root), other(root);
  std::optional<CacheLock> lock(std::in_place, cache, key_a);
  std::atomic<bool> held{false};
  std::thread waiter([&] { held = CacheLock(other, key_a, milliseconds(2000)).held(); });
  std::this_thread::sleep_for(milliseconds(100));  // by now it waits for the very file we hold
  const pid_t child = start_child([] { return pause(); });
  lock.reset();
  waiter.join();
  EXPECT_TRUE(held);
  kill(child, SIGKILL);
  wait_for(child);
}

// The lock file is removed on release, which must not let two in at once.
TEST_F(DiskCacheTest, LockIsExclusiveUnderContention) {
  std::atomic<int> inside{0}, entered{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&] {
      DiskCache cache(root);
      for (int i = 0; i < 40; ++i) {
        const CacheLock lock(cache, key_a);
        ASSERT_TRUE(lock.held());
        ASSERT_EQ(++inside, 1);
        std::this_thread::yield();
        ++entered;
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(entered, 240);
}

TEST_F(DiskCacheTest, ReadersNeverSeeAHalfWrittenEntry) {
  const std::string one(100000, 'x'), two(50000, 'y');
  const pid_t child = start_child([&] {
    DiskCache cache(root);
    for (int i = 0; i < 100; ++i) cache.put(key_a, bytes_of(i % 2 == 0 ? one : two));
    return 0;
  });
  int seen = 0;
  for (int status; waitpid(child, &status, WNOHANG) == 0;) {
    DiskCache cache(root);
    if (const auto got = cache.get(key_a)) {
      ++seen;
      ASSERT_TRUE(*got == bytes_of(one) || *got == bytes_of(two));
    }
    ASSERT_EQ(cache.stats().faults, 0u) << log.text();
  }
  EXPECT_GT(seen, 0);
}

TEST_F(DiskCacheTest, InfoVerifyClear) {
  DiskCache cache(root);
  cache.put(key_a, value);
  cache.put(key_b, value);
  const CacheInfo info = cache.info();
  EXPECT_EQ(info.root, root);
  EXPECT_TRUE(info.usable);
  EXPECT_EQ(info.reason, "");
  EXPECT_EQ(info.entries, 2u);
  EXPECT_EQ(info.bytes, 2 * (120 + value.size()));
  EXPECT_TRUE(info.exists);
  EXPECT_EQ(info.mode, 0700u);
  EXPECT_EQ(info.owner, geteuid());
  EXPECT_TRUE(info.writable);
  EXPECT_GT(info.free_bytes.value_or(0), 0u);
  EXPECT_TRUE(cache.verify().bad.empty());
  write_text(entry(key_b), "garbage");
  EXPECT_EQ(cache.verify().entries, 2u);
  EXPECT_EQ(cache.verify().bad, (std::vector<BadEntry>{{key_b + ".entry", "is truncated"}}));
  write_text(root + "/notes.txt", "mine");
  EXPECT_EQ(cache.clear(), 2u);
  EXPECT_EQ(files_in(root), 1u);
  EXPECT_FALSE(cache.get(key_a));
}

TEST_F(DiskCacheTest, UpkeepMakesNoDirectory) {
  DiskCache cache(root + "/below/");
  const CacheInfo info = cache.info();
  EXPECT_TRUE(info.usable && info.writable && !info.exists) << info.reason;
  EXPECT_EQ(info.root, root + "/below");
  EXPECT_EQ(info.entries, 0u);
  EXPECT_FALSE(info.free_bytes);
  EXPECT_EQ(cache.verify().entries, 0u);
  EXPECT_EQ(cache.clear(), 0u);
  EXPECT_EQ(log.count(), 0u) << log.text();
  EXPECT_FALSE(fs::exists(root));
}

TEST_F(DiskCacheTest, ManyThreads) {
  DiskCache cache(root);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        const std::string key = sha256_hex(std::to_string((i + t) % 10));
        if (const auto got = cache.get(key)) {
          EXPECT_EQ(*got, bytes_of(key));
        } else {
          cache.put(key, bytes_of(key));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache.info().entries, 10u);
  EXPECT_TRUE(cache.verify().bad.empty());
  EXPECT_EQ(log.count(), 0u) << log.text();
}

}  // namespace
}  // namespace fusewright
