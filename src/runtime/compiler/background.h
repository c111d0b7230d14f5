#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace fusewright {

// Work that nobody waits for: kernels that later calls may want are compiled while the first one goes on. What was
// added is done before the process ends, so that the next one finds it on disk.
class Background {
 public:
  explicit Background(int threads) : threads_(threads) {}
  static Background& instance();

  void add(std::function<void()> task);  // which throws nothing
  void wait();                           // until all is done

 private:
  void work();

  const int threads_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::deque<std::function<void()>> tasks_;
  int running_ = 0;
};

}  // namespace fusewright
