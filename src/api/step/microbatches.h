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

/// Splits on pp_rank 0. Slices have their own version counters, so that what one microbatch changes
/// in place, another's backward does not mind. Threads: the rank's.
class Microbatches {
 public:
  /// At most `wanted` microbatches, as even as possible, the longer ones first.
  /// @throws UsageError  arguments differ in rows; an axis that does not exist; weights that do not
  ///                     fit.
  Microbatches(std::vector<detail::StepArgument> arguments, const StepOptions& options, int wanted,
               const std::string& loss);

  int count() const noexcept { return count_; }
  /// Rows of the batch; -1 if nothing is split.
  std::int64_t rows() const noexcept { return total_rows_; }
  /// Weight of each microbatch's loss.
  const std::vector<double>& weights() const noexcept { return weights_; }

  /// The arguments of one microbatch; called once for each.
  std::vector<Packet> slices(int microbatch);
  /// Copies of the arguments of one microbatch, without history, for a trial run.
  /// @param meta  without values too
  std::vector<Packet> preview(int microbatch, bool meta) const;
  /// Of what preview() gives: values, types and shapes of tensors.
  std::uint64_t preview_key(int microbatch) const;
  /// Of all arguments: types, shapes and a hash of values, "Long [8, 16] #3f...".
  std::string digest() const;
  /// Of arguments that all microbatches get whole because their type cannot be taken apart, though
  /// nobody said that it is meant: a text each.
  std::vector<std::string> doubtful() const;
  /// @throws UsageError if an argument that all microbatches share was changed in place.
  void check_unchanged(int microbatch) const;

  /// Runs backward of what led to arguments that carry a graph from outside, once, with the sum of
  /// all microbatches' gradients.
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
