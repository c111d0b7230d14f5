#pragma once

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <span>
#include <utility>

namespace fusewright {

// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

// Writes everything; returns 0 or the errno.
inline int write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno != EINTR) return errno;
    if (n > 0) bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return 0;
}

// Fills `bytes`; returns 0, the errno, or -1 when the file ends early.
inline int read_all(int fd, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::read(fd, bytes.data(), bytes.size());
    if (n == 0) return -1;
    if (n < 0 && errno != EINTR) return errno;
    if (n > 0) bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return 0;
}

// One object per process, never destroyed. A forked child gets a fresh one: the parent's may hold a mutex,
// a thread or an unfinished compilation that does not exist in the child, and waiting for it would hang.
template <class T>
class ProcessSingleton {
 public:
  template <class Make>
  static T& get(Make make) {
    [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, [] { object_.store(nullptr); });
    T* object = object_.load(std::memory_order_acquire);
    if (object != nullptr) return *object;
    T* fresh = make();
    if (object_.compare_exchange_strong(object, fresh)) return *fresh;
    delete fresh;  // another thread was first
    return *object;
  }

 private:
  static inline std::atomic<T*> object_{nullptr};
};

}  // namespace fusewright
