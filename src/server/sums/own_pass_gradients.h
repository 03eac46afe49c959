// server/sums/own_pass_gradients.h: gradients that code of a step computes by LibTorch's own
// engine, in an order that timing cannot change (docs/design.md, Accumulation). Threads: the
// rank's.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "module/node_pointer.h"
#include "server/protocol/order_key.h"
#include "server/running/own_passes.h"
#include "server/sums/parameter_numbers.h"
#include "server/sums/step_microbatches.h"

namespace smp::server {

/// LibTorch adds such a gradient to `.grad` at once, in the midst of what other microbatches give.
/// Here it is kept aside, and added at the end of the step: by microbatch, then by the place of the
/// execution in the program, then as it came; what hooks of leaves have begun last.
///
/// Code that has called `loss.backward()` in forward may read `.grad` next, so until somebody else
/// adds to it `.grad` is a copy with the gradient in it. If the code changes that copy, or puts
/// another tensor in its place, the gradient is the code's own affair from then on.
///
/// What a pass with `create_graph` gives, or one that reaches a leaf with hooks that run after
/// accumulation, LibTorch adds; so it does in steps of one microbatch, whose order is the
/// program's.
class OwnPassGradients final : public OwnPasses {
 public:
  using Leaf = torch::autograd::AccumulateGrad;

  /// Both outlive this object.
  OwnPassGradients(ParameterNumbers& numbers, const StepMicrobatches& step)
      : numbers_(numbers), step_(step) {}

  // OwnPasses
  bool take(Leaf& leaf, const at::Tensor& gradient) override;

  /// Somebody else is about to add to the `.grad` of parameter `number`, or to look at it.
  void withdraw(ParameterNumber number);
  /// Executions of `microbatch` give nothing more; hooks of leaves may.
  void close(std::uint32_t microbatch);
  /// Adds everything to `.grad`.
  void finish();
  /// Forgets everything.
  void clear() noexcept;

 private:
  /// Who has begun a pass: an execution of a microbatch, or a hook of a leaf.
  struct Place {
    std::uint32_t microbatch;
    bool in_hook;
    ParameterNumber hooked;
    OrderKey order;
    friend bool operator==(const Place&, const Place&) noexcept = default;
  };
  struct Gradient {
    Place place;
    std::uint64_t arrival;
    at::Tensor tensor;
  };
  /// What stands in `.grad` instead of what belongs there.
  struct Shown {
    Place place;
    at::Tensor before, now;
    std::uint32_t version;  // of `now`
    std::uint64_t first;    // arrival: this one and all that followed are in `now`
  };
  struct Parameter {
    NodePointer<torch::autograd::Node> leaf;
    std::vector<Gradient> waiting;
    at::Tensor sum;  // of lower microbatches
    std::optional<Shown> shown;
  };

  Place place_of_pass() const;
  static bool is_shown(const Parameter& parameter, const Place& place);
  static bool is_untouched(const Parameter& parameter);
  static void show(Parameter& parameter, const Gradient& gradient);
  static void withdraw(Parameter& parameter);
  static void add_up(Parameter& parameter, std::uint32_t microbatches);
  static bool comes_first(const Gradient& a, const Gradient& b) noexcept;

  ParameterNumbers& numbers_;
  const StepMicrobatches& step_;
  std::map<ParameterNumber, Parameter> parameters_;  // of which a pass has given something
  std::vector<bool> closed_;                         // by microbatch
  std::uint32_t added_up_ = 0;                       // lower microbatches
  std::uint64_t arrivals_ = 0;
};

}  // namespace smp::server
