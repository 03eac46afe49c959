// api/step/microbatches.h: a step's arguments as slices, one set a microbatch (paper §4.3;
// docs/design.md, Arguments and outputs).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "module/node_pointer.h"
#include "server/backward/executor.h"
#include "smp/step.h"

namespace smp {

/// Splits the arguments of a step on pp_rank 0. Slices have their own version counters, so the
/// backward of one microbatch does not mind what another changes in place. Threads: the rank's.
class Microbatches {
 public:
  /// Makes at most `wanted` microbatches, as even as possible, the longer ones first.
  /// @throws UsageError  arguments differ in rows; an axis that does not exist; weights that do not
  ///                     fit.
  Microbatches(std::vector<detail::StepArgument> arguments, const StepOptions& options, int wanted,
               const std::string& loss);

  int count() const noexcept { return count_; }
  /// Number of rows of the batch; -1 if nothing is split.
  std::int64_t rows() const noexcept { return total_rows_; }
  /// The weight of each microbatch's loss.
  const std::vector<double>& weights() const noexcept { return weights_; }

  /// Returns the arguments of one microbatch; called once for each.
  std::vector<Packet> slices(int microbatch);
  /// Returns copies of the arguments of one microbatch, without history, for a trial run.
  /// @param meta  true: tensors have no values either
  std::vector<Packet> preview(int microbatch, bool meta) const;
  /// Returns a hash of what preview() gives: the plain values, and types and shapes of tensors.
  std::uint64_t preview_key(int microbatch) const;
  /// Returns a text of all arguments: types, shapes and a hash of values, "Long [8, 16] #3f...".
  std::string digest() const;
  /// Returns a warning for each argument that all microbatches get whole only because its type
  /// cannot be taken apart, not because StepOptions::non_split names it.
  std::vector<std::string> doubtful() const;
  /// Checks the arguments that all microbatches share.
  /// @throws UsageError  one of them was changed in place.
  void check_unchanged(int microbatch) const;

  /// Runs backward through the graph outside of the step that led to the arguments, once, with the
  /// sum of all microbatches' gradients.
  void run_outside_graph();

 private:
  struct Row {
    std::int64_t start;
    std::int64_t length;
  };
  struct Entering {  // a tensor with history, in one microbatch
    std::size_t argument;
    std::size_t tensor;
    std::size_t input;  // of the boundary
  };
  struct Microbatch {
    std::vector<std::pair<std::size_t, at::Tensor>> shared;  // (argument, whole tensor)
    std::vector<Entering> entering;
    NodePointer<server::BoundaryInput> boundary;
  };

  bool splits(std::size_t argument) const;
  int axis_of(std::size_t argument, const at::Tensor& tensor) const;
  std::int64_t common_rows() const;
  void choose_rows(std::int64_t rows, int wanted);
  void choose_weights(const std::string& loss, std::int64_t rows);
  at::Tensor slice(std::size_t argument, const at::Tensor& tensor, int microbatch);
  at::Tensor gradient_of(std::size_t argument, std::size_t tensor) const;

  std::vector<detail::StepArgument> arguments_;
  const StepOptions options_;
  std::int64_t total_rows_ = -1;
  int count_ = 1;
  std::vector<Row> rows_;
  std::vector<double> weights_;
  std::vector<Microbatch> microbatches_;
};

}  // namespace smp
