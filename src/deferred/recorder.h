// deferred/recorder.h: what becomes of an operator under smp::delay_param_initialization.
#pragma once

#include <memory>
#include <mutex>

#include "deferred/delayed_tensors.h"
#include "deferred/operator_hook.h"

namespace smp::deferred {

class Recording;

/// Writes operators down instead of running them, where that is known to give the same
/// (recordable.h). Others are run at once, on the values that they would have had, which stay.
/// Threads: any, one operator at a time.
class Recorder final : public OperatorHook {
 public:
  explicit Recorder(std::shared_ptr<Construction> construction)
      : construction_(std::move(construction)) {}

  /// Runs `op` in the scope of the construction.
  void run(const c10::OperatorHandle& op, torch::jit::Stack& stack) override;
  /// Runs `op` on delayed tensors where no scope is, or that of another thread.
  static void run_outside(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  const std::shared_ptr<Construction>& construction() const { return construction_; }
  /// Ends the scope: from now on nothing is computed for it, only written down or refused.
  void close();

 private:
  using Lock = std::unique_lock<std::mutex>;

  void run_delayed(const c10::OperatorHandle& op, torch::jit::Stack& stack, bool writes_real,
                   Lock lock);
  bool record(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  void compute(const c10::OperatorHandle& op, torch::jit::Stack& stack, Lock lock);
  void give_randomness(const Recording& recording);
  void refuse_backward(const c10::OperatorHandle& op) const;

  std::shared_ptr<Construction> construction_;
};

}  // namespace smp::deferred
