// server/recompute/kept_products.h: what products return, kept so that a second run need not
// compute them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/fiber_local.h"

namespace smp::server {

/// The results of matrix products, convolutions and attention of one call, in the order in which
/// they ran. They are seen below autograd, so nodes save what they always do. What is kept is a
/// copy on write: code may write to a result in place, or to a view of it. Threads: the rank's.
class KeptProducts {
 public:
  /// While it lives, products of the running fiber come here; nullptr: nobody's do.
  /// @param replays  whether they take their results from here, the first one first
  class Scope {
   public:
    Scope(KeptProducts* products, bool replays);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    base::FiberLocalScope<KeptProducts> products_;
    c10::impl::IncludeDispatchKeyGuard include_;
    bool outer_replays_ = false;
  };

  /// @param name  of the call, for messages
  explicit KeptProducts(std::string name) : name_(std::move(name)) {}

  /// Computes `op`, or takes its results: replaces its arguments on top of `stack`.
  /// @throws UsageError  the second time another product, or one more, is asked for.
  void run(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  void clear() noexcept { results_.clear(); }

 private:
  struct Result {
    c10::OperatorName op;
    torch::jit::Stack values;  // tensors are copies on write, without history
  };
  std::string name_;
  std::vector<Result> results_;
  std::size_t next_ = 0;  // to be taken
  bool replays_ = false;
};

}  // namespace smp::server
