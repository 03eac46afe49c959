// smp/delayed_init.h: models that are too big to be built on every rank (paper §3.2.3, App. I.5).
#pragma once

#include <memory>

#include "smp/detail/export.h"

namespace smp {

/// Selects the random numbers that a delayed parameter starts from.
enum class InitOrder {
  /// The parameter gets the numbers that it would have got without the scope: the same bits on any
  /// number of ranks, and the generator is afterwards where it would have been. The numbers of
  /// other ranks' parameters are jumped over.
  kAsWritten,
  /// The parameter gets a random stream of its own, keyed by the generator's state and its path in
  /// the model: the same bits on any number of ranks, but other bits than without the scope. One
  /// number is drawn from the generator. No number is ever computed twice.
  kByPath,
};

/// While it lives, modules built on this thread take no memory for parameters and buffers. They get
/// their values when an smp::DistributedModel places them, each on the rank that owns it. Until
/// then they have shapes and types, may be initialised further, cast with to(dtype) and given to
/// optimizers. Any other use throws a UsageError.
///
///     Net net = [&] { smp::delay_param_initialization delay; return Net(options); }();
///     smp::DistributedModel model(net);
///
/// Not delayed, in the scope or not: tensors made from data (torch::tensor, torch::from_blob) or
/// with a device named, and whatever a constructor reads (`.item()`). With the setting
/// `delayed_parameter_initialization = false` the scope has no effect.
class SMP_API delay_param_initialization {
 public:
  [[nodiscard]] explicit delay_param_initialization(InitOrder order = InitOrder::kAsWritten);
  ~delay_param_initialization();
  delay_param_initialization(const delay_param_initialization&) = delete;
  delay_param_initialization& operator=(const delay_param_initialization&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;  // nothing where the setting is off
};

}  // namespace smp
