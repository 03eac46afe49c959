// trial/operators/operator_watch.h: every LibTorch operator that a thread runs, and the sum of
// their work (paper App. C.1). Works on real and on meta tensors alike.
#pragma once

#include <ATen/record_function.h>

#include <vector>

#include "simulate/trace.h"
#include "trial/operators/operator_work.h"

namespace smp::partitioning {

/// Is told of every operator that a thread runs, on that thread.
class OperatorListener {
 public:
  virtual ~OperatorListener() = default;
  /// The operands, `op.inputs()`, may be read here only.
  virtual void before(const at::RecordFunction& op, const OperatorKind& kind) = 0;
  virtual void after(const at::RecordFunction& op) = 0;
};

/// While this object lives, every operator of this thread is reported to `listener`, but for those
/// that the listener runs itself. Only one may live at a time.
class OperatorWatch {
 public:
  explicit OperatorWatch(OperatorListener& listener);
  ~OperatorWatch();
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

  /// True while one lives and code of an autograd node runs on this thread.
  static bool inside_node() noexcept;

 private:
  at::CallbackHandle handle_;
};

/// Adds up what operators take on each of several devices. An operator that is made of others is
/// their sum.
class OperatorMeter final : public OperatorListener {
 public:
  /// @param devices  at least one
  explicit OperatorMeter(std::vector<const base::Device*> devices);

  void before(const at::RecordFunction& op, const OperatorKind& kind) override;
  void after(const at::RecordFunction& op) override;

  /// The seconds of the forward pass so far, and of the backward that will follow it, by device.
  const std::vector<simulate::IntervalTimes>& times() const { return times_; }
  double flops() const { return flops_; }

 private:
  struct Level {
    Accounting accounting;
    bool convolves;
    Work work;
    GradientWishes wishes;
  };
  static OutputSizes sizes_of(const at::RecordFunction& op, bool convolves);
  void add(const Level& level, const OutputSizes& outputs);

  std::vector<const base::Device*> devices_;
  std::vector<Level> levels_;  // of operators that have not ended, outermost first
  std::vector<simulate::IntervalTimes> times_;
  double flops_ = 0;
};

}  // namespace smp::partitioning
