// server/sums/step_microbatches.cpp: marks are kept where room was made for them.
#include "server/sums/step_microbatches.h"

#include <utility>

#include "base/check.h"

namespace smp::server {

void StepMicrobatches::begin(int microbatches) {
  SMP_ASSERT(size_ == 0, "the last step was neither finished nor dropped");
  size_ = static_cast<std::uint32_t>(microbatches);
  if (microbatches_.size() < size_) microbatches_.resize(size_);
  marked_microbatches_.reserve(2 * std::size_t{size_});  // each is marked at most twice
}

void StepMicrobatches::clear() noexcept {
  for (std::uint32_t number = 0; number < size_; ++number) microbatches_[number].clear();
  marked_executions_.clear();
  marked_microbatches_.clear();
  size_ = 0;
  opened_ = 0;
}

MicrobatchGradients& StepMicrobatches::at(std::uint32_t microbatch) {
  SMP_ASSERT(microbatch < size_, "microbatch ", microbatch, " of ", size_);
  return microbatches_[microbatch];
}

StepMicrobatches::Execution& StepMicrobatches::at(ExecutionId id) {
  SMP_ASSERT(exists(id), "execution ", id.number, " of microbatch ", id.microbatch);
  return microbatches_[id.microbatch].executions[id.number];
}

const StepMicrobatches::Execution& StepMicrobatches::at(ExecutionId id) const {
  SMP_ASSERT(exists(id), "execution ", id.number, " of microbatch ", id.microbatch);
  return microbatches_[id.microbatch].executions[id.number];
}

bool StepMicrobatches::exists(ExecutionId id) const noexcept {
  return id.microbatch < size_ && id.number < microbatches_[id.microbatch].opened;
}

ExecutionId StepMicrobatches::open(int microbatch, OrderKey order, bool after_first_backward) {
  const auto number = static_cast<std::uint32_t>(microbatch);
  auto& own = at(number);
  if (marked_executions_.capacity() <= opened_) marked_executions_.reserve(2 * opened_ + 16);
  ++opened_;
  return {number, own.open(std::move(order), after_first_backward)};
}

void StepMicrobatches::mark_closed(ExecutionId id) noexcept {
  if (!exists(id)) return;  // a step that failed is gone already
  auto& execution = microbatches_[id.microbatch].executions[id.number];
  if (!std::exchange(execution.closed, true)) marked_executions_.push_back(id);
}

void StepMicrobatches::mark_forward_done(int microbatch) noexcept {
  const auto number = static_cast<std::uint32_t>(microbatch);
  if (number >= size_ || std::exchange(microbatches_[number].forward_done, true)) return;
  marked_microbatches_.push_back(number);
}

void StepMicrobatches::mark_done(int microbatch) noexcept {
  const auto number = static_cast<std::uint32_t>(microbatch);
  if (number >= size_ || std::exchange(microbatches_[number].done, true)) return;
  microbatches_[number].forward_done = true;
  marked_microbatches_.push_back(number);
}

std::optional<std::uint32_t> StepMicrobatches::take_marked_microbatch() noexcept {
  if (marked_microbatches_.empty()) return std::nullopt;
  const auto number = marked_microbatches_.back();
  marked_microbatches_.pop_back();
  return number;
}

std::optional<ExecutionId> StepMicrobatches::take_marked_execution() noexcept {
  if (marked_executions_.empty()) return std::nullopt;
  const auto id = marked_executions_.back();
  marked_executions_.pop_back();
  return id;
}

}  // namespace smp::server
