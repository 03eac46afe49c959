// server/open_calls.h: remote calls that returned before they ended (docs/design.md, Promised
// outputs). Threads: the rank's.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <utility>
#include <vector>

namespace smp::server {

/// A remote call of an execution that may not have ended (promised_call.h).
class OpenCall {
 public:
  virtual ~OpenCall() = default;
  /// Waits for its end; then its history is what it will be. @throws what it threw, unless that was
  /// thrown before.
  virtual void finish() = 0;
  /// Waits for the values of promised tensors that somebody still has.
  virtual void fetch_all() = 0;
  /// Nobody will wait for it.
  virtual void abandon() noexcept = 0;
  /// Its answer is here, and no exception.
  virtual bool has_answered() const noexcept = 0;
  /// On which its results hang until then; nullptr: they need no gradient.
  virtual const torch::autograd::Node* history() const noexcept = 0;
};

/// In the order in which an execution made them. They go from the last to the first: each holds, by
/// its arguments, those before it, which would else end on one stack, one inside the other.
class OpenCalls {
  using Calls = std::vector<std::shared_ptr<OpenCall>>;

 public:
  OpenCalls() = default;
  OpenCalls(OpenCalls&&) noexcept = default;
  OpenCalls& operator=(OpenCalls&& other) noexcept {
    calls_.swap(other.calls_);
    return *this;
  }
  OpenCalls(const OpenCalls&) = delete;
  OpenCalls& operator=(const OpenCalls&) = delete;
  ~OpenCalls() {
    while (!calls_.empty()) calls_.pop_back();
  }

  void add(std::shared_ptr<OpenCall> call) { calls_.push_back(std::move(call)); }
  bool empty() const noexcept { return calls_.empty(); }
  Calls::const_iterator begin() const noexcept { return calls_.begin(); }
  Calls::const_iterator end() const noexcept { return calls_.end(); }

 private:
  Calls calls_;
};

}  // namespace smp::server
