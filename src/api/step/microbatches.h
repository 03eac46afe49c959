// api/step/microbatches.h: a step's arguments as slices, one set a microbatch (paper §4.3;
// docs/design.md, Arguments and outputs).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/step/division.h"
#include "api/step/own_slices.h"
#include "module/node_pointer.h"
#include "server/backward/executor.h"
#include "smp/step.h"

namespace smp {

/// Splits the arguments of a step on pp_rank 0. Slices have their own version counters, so the
/// backward of one microbatch does not mind what another changes in place. Threads: the rank's.
class Microbatches {
 public:
  /// Makes at most `wanted` microbatches, as even as possible, the longer ones first.
  /// @param seen  what earlier calls of the step told of its arguments (Division)
  /// @throws UsageError  arguments that cannot be divided (Division, OwnSlices); weights that do
  ///                     not fit.
  Microbatches(std::vector<detail::StepArgument> arguments, const StepOptions& options, int wanted,
               const std::string& loss, detail::SeenCuts& seen);
  Microbatches(const Microbatches&) = delete;
  Microbatches& operator=(const Microbatches&) = delete;

  int count() const noexcept { return count_; }
  /// Number of rows of the batch; -1 if nothing is split.
  std::int64_t rows() const noexcept { return division_.rows(); }
  /// What becomes of each argument.
  const Division& division() const noexcept { return division_; }
  /// The weight of each microbatch's loss.
  const std::vector<double>& weights() const noexcept { return weights_; }

  /// Returns the arguments of one microbatch; called once for each.
  std::vector<Packet> slices(int microbatch);
  /// Returns copies of the arguments of one microbatch, without history, for a trial run.
  /// @param meta  true: tensors have no values either
  std::vector<Packet> preview(int microbatch, bool meta) const;
  /// Returns a hash of what preview() gives: the plain values that are no rows, and types and
  /// shapes of tensors.
  std::uint64_t preview_key(int microbatch) const;
  /// Returns a text of all arguments: types, shapes and a hash of values, "Long [8, 16] #3f...".
  std::string digest() const;
  /// Checks the arguments that microbatches share: those that all get whole, and those whose rows
  /// lie on each other in memory.
  /// @throws UsageError  one of them was changed in place.
  void check_unchanged(int microbatch) const;

  /// Runs backward through the graph outside of the step that led to the arguments, once, with the
  /// sum of all microbatches' gradients.
  void run_outside_graph();

 private:
  struct Entering {  // a tensor with history, in one microbatch
    std::size_t argument;
    std::size_t tensor;
    std::size_t input;  // of the boundary
  };
  struct EnteringOwn {  // a tensor with history of a slice that a codec made
    at::Tensor outside;
    std::size_t input;  // of the boundary
  };
  struct Microbatch {
    std::vector<std::pair<std::size_t, at::Tensor>> shared;  // (argument, own tensor)
    std::vector<Entering> entering;
    std::vector<EnteringOwn> entering_own;
    NodePointer<server::BoundaryInput> boundary;
  };

  class Slicing;
  /// Calls `given(k)` for each tensor of the argument that the microbatch gets, or a part of it,
  /// and `own(tensor)` for those of slices that codecs made, in the order of the slice.
  template <class Given, class Own>
  void for_tensors(std::size_t argument, int microbatch, Given&& given, Own&& own) const;
  void refuse_tangents() const;
  void choose_rows(int wanted);
  void choose_weights(const std::string& loss);
  /// The rows of a microbatch; none if nothing is split.
  MicrobatchRows rows_of(int microbatch) const {
    return rows_.at(static_cast<std::size_t>(microbatch));
  }
  bool has(int microbatch, std::size_t argument, std::size_t tensor) const;
  at::Tensor part_of(const at::Tensor& whole, std::size_t argument, std::size_t tensor,
                     int microbatch) const;
  at::Tensor slice(std::size_t argument, std::size_t tensor, int microbatch);
  at::Tensor own_slice(std::size_t argument, const at::Tensor& outside, int microbatch);
  static at::Tensor captured(const Microbatch& own, std::size_t input);
  at::Tensor gradient_of(std::size_t argument, std::size_t tensor) const;

  const std::vector<detail::StepArgument> arguments_;
  const StepOptions options_;
  const Division division_;
  int count_ = 1;
  std::vector<MicrobatchRows> rows_;
  std::optional<OwnSlices> own_;
  std::vector<double> weights_;
  std::vector<Microbatch> microbatches_;
};

}  // namespace smp
