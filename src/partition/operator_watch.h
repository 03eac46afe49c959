// partition/operator_watch.h: every LibTorch operator that a thread runs, and the sum of their work
// (paper App. C.1). Works on real and on meta tensors alike.
#pragma once

#include <ATen/record_function.h>

#include <vector>

#include "partition/operator_work.h"

namespace smp::partitioning {

/// Hears of operators. Threads: the one that watches.
class OperatorListener {
 public:
  virtual ~OperatorListener() = default;
  /// The operands, `op.inputs()`, may be read here only.
  virtual void before(const at::RecordFunction& op, const OperatorKind& kind) = 0;
  virtual void after(const at::RecordFunction& op) = 0;
};

/// Operators of this thread go to `listener` while it lives, but for those that the listener runs.
/// One at a time.
class OperatorWatch {
 public:
  explicit OperatorWatch(OperatorListener& listener);
  ~OperatorWatch();
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

 private:
  at::CallbackHandle handle_;
};

/// Adds up work. An operator that is made of others is their sum.
class OperatorMeter final : public OperatorListener {
 public:
  void before(const at::RecordFunction& op, const OperatorKind& kind) override;
  void after(const at::RecordFunction& op) override;

  double seconds() const { return seconds_; }
  double flops() const { return flops_; }

 private:
  struct Level {
    Accounting accounting;
    Work work;
  };
  std::vector<Level> levels_;  // of operators that have not ended, outermost first
  double seconds_ = 0;
  double flops_ = 0;
};

}  // namespace smp::partitioning
