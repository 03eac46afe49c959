// server/sums/step_microbatches.h: the microbatches of a step with their executions, and which of
// them have ended. Threads: the rank's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "server/protocol/ids.h"
#include "server/protocol/order_key.h"
#include "server/sums/microbatch_gradients.h"

namespace smp::server {

/// The bookkeeping of GradientAccumulator for all microbatches of a step. What ends is marked,
/// which neither allocates nor frees, so that it is safe in a poll; the marks are taken later.
/// Arrays are kept from step to step.
class StepMicrobatches {
 public:
  using Execution = MicrobatchGradients::Execution;

  /// Starts a step; nothing of an earlier one may be left.
  void begin(int microbatches);
  /// Releases all tensors and graphs, and keeps the arrays. Later marks of them are ignored.
  void clear() noexcept;

  std::uint32_t size() const noexcept { return size_; }
  MicrobatchGradients& at(std::uint32_t microbatch);
  Execution& at(ExecutionId id);
  const Execution& at(ExecutionId id) const;

  ExecutionId open(int microbatch, OrderKey order, bool after_first_backward);

  void mark_forward_done(int microbatch) noexcept;
  void mark_done(int microbatch) noexcept;
  void mark_closed(ExecutionId id) noexcept;
  /// Takes one mark off the list; nullopt if there is none.
  std::optional<std::uint32_t> take_marked_microbatch() noexcept;
  std::optional<ExecutionId> take_marked_execution() noexcept;

 private:
  bool exists(ExecutionId id) const noexcept;

  std::vector<MicrobatchGradients> microbatches_;  // the first size_ are the step's
  std::uint32_t size_ = 0;

  // Marked, not taken yet; what marks append has been reserved.
  std::vector<ExecutionId> marked_executions_;
  std::vector<std::uint32_t> marked_microbatches_;
  std::size_t opened_ = 0;
};

}  // namespace smp::server
