// server/sums/unplaced_leaves.h: leaves of no model, whose gradients are there at once, and in the
// end are added in an order that timing cannot change (docs/design.md, Accumulation). Threads: the
// rank's.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <cstdint>
#include <map>
#include <vector>

#include "server/sums/leaf_update.h"
#include "server/sums/parameter_numbers.h"

namespace smp::server {

/// Nobody knows which microbatches use a leaf that the program has captured, and a body that made
/// one reads its gradient right after the backward. So a gradient does not wait. Where microbatches
/// came in another order than theirs, `.grad` is added up again at the end of the step, unless code
/// of the program has written to it meanwhile. Until then the terms take memory.
class UnplacedLeaves {
 public:
  /// Starts a step.
  void begin(std::uint32_t microbatches);
  /// Updates the leaf, at once (server/sums/leaf_update.h).
  void update(ParameterNumber number, std::uint32_t microbatch, LeafSum&& sum);
  /// Forgets the leaves that are gone.
  void forget_gone();
  /// Makes of every `.grad` what it is if microbatches come in order. Later updates are added as
  /// they come.
  void put_in_order();
  /// Forgets everything.
  void clear() noexcept;

 private:
  using Leaf = torch::autograd::AccumulateGrad;
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  struct Term {
    std::uint32_t microbatch;
    at::Tensor gradient;  // undefined: the first, which became `.grad`
  };
  struct History {
    explicit History(const at::Tensor& leaf) : variable(leaf.getIntrusivePtr()) {}

    Weak variable;
    at::Tensor before;  // a copy of `.grad` as the step found it
    std::vector<Term> terms;
    Weak gradient{c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
    std::uint32_t version = 0;  // of `gradient`: as it was left
    bool lost = false;          // the program has a hand in it
  };

  History& history_of(ParameterNumber number, const at::Tensor& leaf);
  static bool is_as_left(const History& history, const at::Tensor& leaf);
  static void note(History& history, std::uint32_t microbatch, const LeafSum& sum);
  static void put_in_order(History& history);

  std::uint32_t microbatches_ = 0;
  std::map<ParameterNumber, History> histories_;
};

}  // namespace smp::server
