#include "runtime/compiler/background.h"

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <thread>

#include "runtime/posix.h"
#include "runtime/thread_pool.h"

namespace fusewright {

Background& Background::instance() {
  return ProcessSingleton<Background>::get([] {
    [[maybe_unused]] static const int at_end = std::atexit([] { instance().wait(); });
    // The other half is for those who did not want to wait.
    return new Background(std::max(positive_from_environment("MAX_JOBS", available_processors()) / 2, 1));
  });
}

void Background::add(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (running_ == threads_) return;
    ++running_;
  }
  try {
    std::thread([this] { work(); }).detach();
  } catch (const std::system_error&) {
    work();  // the system allows no more threads
  }
}

void Background::work() {
  std::unique_lock lock(mutex_);
  while (!tasks_.empty()) {
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
  --running_;
  idle_.notify_all();
}

void Background::wait() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return running_ == 0 && tasks_.empty(); });
}

}  // namespace fusewright
