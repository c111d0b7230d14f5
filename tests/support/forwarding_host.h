#pragma once
#include "fusewright/host.h"

namespace fusewright::testing {

// A host that passes everything on to another. A test overrides what it watches or changes.
class ForwardingHost : public Host {
 public:
  explicit ForwardingHost(Host& to = plain_host()) : to_(to) {}

  void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) override {
    to_.parallel_for(n, grain, body);
  }
  void allocate(Tensor& tensor) override { to_.allocate(tensor); }
  void named(const std::string& name, const std::function<void()>& work) override { to_.named(name, work); }
  Tensor call_exactly(const LibraryCall& call, const std::vector<Tensor>& operands) override {
    return to_.call_exactly(call, operands);
  }
  double distance(const Tensor& a, const Tensor& b) override { return to_.distance(a, b); }
  Tensor call(const LibraryCall& call, const std::vector<Tensor>& operands) override {
    return to_.call(call, operands);
  }
  int device() const override { return to_.device(); }
  void* stream() override { return to_.stream(); }
  bool exact_matrix_products() const override { return to_.exact_matrix_products(); }
  bool allows_tf32_convolutions() const override { return to_.allows_tf32_convolutions(); }
  bool deterministic() const override { return to_.deterministic(); }
  void copy(const Tensor& from, Tensor& to) override { to_.copy(from, to); }
  void clear(Tensor& tensor) override { to_.clear(tensor); }

 private:
  Host& to_;
};

}  // namespace fusewright::testing
