#pragma once
// A contraction that kernels of our own compute where they are faster than the host's library, by sizes.
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/library.h"

namespace fusewright {

// `library` and `own` leave no choice. The value of FUSEWRIGHT_FLOAT32_MATMUL and its like.
enum class WantedVariant { any, library, own };
WantedVariant wanted_variant(const char* variable);

// How our kernels would compute the contraction of one call.
class OwnContraction {
 public:
  virtual ~OwnContraction() = default;

  virtual std::string what() const = 0;         // for the log: `matrix products of 3 x 4 x 5`
  virtual std::string kernel() const = 0;       // the name under which profilers and the tuner show it
  virtual std::string version() const = 0;      // what a recorded choice depends on, beside device and sizes
  virtual uint64_t bucket() const = 0;          // sizes and layouts that one choice stands for
  virtual double own_microseconds() const = 0;  // by models of both
  virtual double library_microseconds() const = 0;
  virtual bool approximates() const = 0;     // less accurate than float32, as the user allows the library to be
  virtual bool ready(int device) const = 0;  // the kernels are there; if not, they are being compiled
  virtual bool settled(int device) const = 0;
  virtual int64_t workspace_bytes() const = 0;
  virtual void launch(Host& host, char* workspace, void* result) const = 0;  // `workspace` is aligned to 1024 bytes
};

class ContestLauncher : public LibraryLauncher {
 public:
  using LibraryLauncher::LibraryLauncher;

  Tensor make_result(Host& host, const std::vector<const Tensor*>& operands, TuningProgress* progress) const override;
  bool complete() const override;

 protected:
  // Null: only the library can. `result`: sizes and strides, without memory.
  virtual std::shared_ptr<const OwnContraction> own(Host& host, const std::vector<const Tensor*>& operands,
                                                    const Tensor& result) const = 0;
  virtual WantedVariant wanted() const = 0;
  virtual Order result_order() const = 0;  // in which our kernels write

 private:
  enum class Variant : int32_t { library, own };

  bool is_ready(Host& host, const std::shared_ptr<const OwnContraction>& own) const;
  Tensor run(Host& host, const OwnContraction& own, const Tensor& sizes) const;
  std::optional<bool> is_accurate(Host& host, const OwnContraction& own, const std::vector<const Tensor*>& operands,
                                  const Tensor& result) const;
  Variant choose(Host& host, const OwnContraction& own, const std::vector<const Tensor*>& operands,
                 const Tensor& result, TuningProgress* progress, uint64_t place) const;

  mutable std::mutex mutex_;
  mutable std::shared_ptr<const OwnContraction> waits_for_;  // whose kernels were not there yet
  mutable int waits_on_ = -1;                                // on this device
  mutable std::atomic<bool> told_ = false;                   // that a CUDA graph keeps the library
};

}  // namespace fusewright
