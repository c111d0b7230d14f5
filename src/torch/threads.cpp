// at::parallel_for is a header, and serial in code that is not compiled with OpenMP itself. Compiling with it would
// bring the compiler's own OpenMP runtime into the process, beside the one that PyTorch has loaded, with threads of its
// own. So PyTorch's is asked directly: GOMP_parallel is the entry of GNU's runtime, and the others have it too.
#include "torch/threads.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <exception>

namespace fusewright {
namespace {

struct OpenMP {
  void (*parallel)(void (*work)(void*), void* data, unsigned threads, unsigned flags);
  int (*thread)();
  int (*threads)();

  OpenMP() {
    find("GOMP_parallel", parallel);
    find("omp_get_thread_num", thread);
    find("omp_get_num_threads", threads);
  }
  explicit operator bool() const { return parallel != nullptr && thread != nullptr && threads != nullptr; }

 private:
  template <class F>
  static void find(const char* name, F& function) {
    function = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));  // PyTorch loads its runtime for all to see
  }
};

struct Work {
  const OpenMP& omp;
  const std::function<void(int64_t, int64_t)>& body;
  int64_t n;
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
  std::exception_ptr failure;

  static void run(void* data) {
    Work& work = *static_cast<Work*>(data);
    const int64_t thread = work.omp.thread(), piece = (work.n + work.omp.threads() - 1) / work.omp.threads();
    const int64_t begin = thread * piece, end = std::min(work.n, begin + piece);
    if (begin >= end) return;
    try {
      at::internal::ThreadIdGuard guard(static_cast<int>(thread));
      work.body(begin, end);
    } catch (...) {
      if (!work.failed.test_and_set()) work.failure = std::current_exception();
    }
  }
};

}  // namespace

void parallel_in_torch(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  static const OpenMP omp;
  if (n <= 0) return;
  thread_local const bool ready = (at::init_num_threads(), true);  // a thread of autograd's learns the user's number
  (void)ready;
  const int64_t pieces = (n + grain - 1) / std::max<int64_t>(grain, 1);
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), pieces);
  if (threads <= 1 || !omp || at::in_parallel_region()) return body(0, n);
  Work work{omp, body, n, {}, nullptr};
  omp.parallel(Work::run, &work, static_cast<unsigned>(threads), 0);
  if (work.failure) std::rethrow_exception(work.failure);
}

}  // namespace fusewright
