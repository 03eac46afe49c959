// api/planning/tracing.h: the first step's body, run before its models are placed, to see what
// their modules cost (paper App. C.1; docs/partitioning.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <typeinfo>
#include <vector>

#include "api/model/describe_model.h"
#include "simulate/machine.h"
#include "simulate/trace.h"

namespace smp {

class Rank;

/// A step that was called on pp_rank 0 and has not begun. It is valid until the step begins.
struct StepPreview {
  /// Runs the body on copies of the arguments of a microbatch and returns its outputs.
  /// @param grad   true: with gradients, even if the caller's grad mode is off
  /// @param value  nullptr: on tensors with values. Else on tensors without memory, as a model
  ///               whose initialisation is delayed needs it; whoever asks for a value gets what
  ///               this function returns (deferred::MetaScope)
  /// @param batch  gets the tensors of the arguments
  std::function<std::vector<at::Tensor>(int microbatch, bool grad,
                                        const std::function<double()>* value,
                                        std::vector<at::Tensor>& batch)>
      run;
  bool grad = true;                      ///< the caller's grad mode
  const std::type_info* body = nullptr;  ///< StepBody::target_type()
  /// Returns a hash of the arguments of a microbatch: their values, but of tensors types and
  /// shapes.
  std::function<std::uint64_t(int microbatch)> arguments_key;
  int microbatches = 1;
  std::vector<double> weights;  ///< of their losses
  int traced = 1;               ///< how many of them, the first ones, are looked at
};

/// One trace a model. If the body cannot be run before placement a warning says why, and there are
/// none. Models that were placed before take part: by their shapes, where the body needs values
/// that are on other ranks.
/// @param sharers  what collectives of distributed modules take
/// @param costs_wanted  else only what modules keep is, and a failure is no warning
std::optional<std::vector<simulate::Trace>> trace_models(
    Rank& rank, const std::vector<const ModelDescription*>& models, const StepPreview& preview,
    const simulate::Machine::Sharers& sharers, bool costs_wanted);

/// Runs the body once more in advance, for a look at which of `models` it uses: a character for
/// each, '\1' if it does. All count as used if the body cannot be run.
std::string used_models(Rank& rank, const std::vector<const ModelDescription*>& models,
                        const StepPreview& preview);

}  // namespace smp
