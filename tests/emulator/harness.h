#pragma once
// Kernels of tests through the fake libraries, called as the driver and NVRTC are: by dlopen.
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_driver.h"
#include "runtime/cuda/nvrtc.h"

namespace fwemu::testing {

using fusewright::cuda::CUfunction;
using fusewright::cuda::CUmodule;

// The functions of both libraries, opened once.
struct Libraries : fusewright::cuda::Driver::Functions, fusewright::cuda::Nvrtc::Functions {
  void* (*emulator_allocate)(size_t);
  void* (*emulator_allocate_aligned)(size_t, size_t);
  void (*emulator_free)(void*);

  static const Libraries& get();
};

// Device memory that ends at a page nobody may touch; poisoned at first.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count)
      : data_(static_cast<T*>(Libraries::get().emulator_allocate(count * sizeof(T))), Libraries::get().emulator_free),
        count_(count) {}
  template <class Make>
  DeviceArray(size_t count, Make make) : DeviceArray(count) {
    for (size_t i = 0; i < count; ++i) data_.get()[i] = static_cast<T>(make(i));
  }
  T* data() const { return data_.get(); }
  size_t size() const { return count_; }
  T& operator[](size_t i) const { return data_.get()[i]; }
  std::vector<T> copy() const { return {data(), data() + count_}; }

 private:
  std::unique_ptr<T, void (*)(void*)> data_;
  size_t count_;
};

// prelude.h, math.h and cuda_device.h, then the text.
std::string with_headers(const std::string& text);

// A text that is compiled without the headers of kernels in front.
struct WholeText {
  std::string text;
};

class Program {
 public:
  // Compiles for sm_90a unless told otherwise; a text that fails is a failure of the test.
  explicit Program(const std::string& text, const std::string& architecture = "sm_90a");
  explicit Program(const WholeText& source, const std::string& architecture = "sm_90a");
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  const std::string& log() const { return log_; }

  // The diagnosis; empty if there was no fault.
  template <class Args>
  std::string launch(const std::string& kernel, unsigned blocks, unsigned threads, unsigned shared_bytes,
                     const Args& arguments, unsigned cluster = 1) const {
    return launch_bytes(kernel, blocks, threads, shared_bytes, &arguments, cluster);
  }

 private:
  std::string launch_bytes(const std::string& kernel, unsigned blocks, unsigned threads, unsigned shared_bytes,
                           const void* arguments, unsigned cluster) const;

  std::string log_;
  CUmodule module_ = nullptr;
};

// The seed of the launches until the end of the scope.
class Seed {
 public:
  explicit Seed(unsigned seed);
  ~Seed();
};

// The number of the first line of the text, headers in front, that contains `code`.
int line_with(const std::string& text, const std::string& code);

}  // namespace fwemu::testing
