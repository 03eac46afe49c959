// server/sums/cell_sums.cpp: executions are passed, last to first.
#include "server/sums/cell_sums.h"

#include <utility>

namespace smp::server {

void CellSums::begin() noexcept {
  waiting_.begin();
  effort_ = {};
}

MicrobatchGradients::Cell& CellSums::at(MicrobatchGradients& microbatch, ParameterNumber number) {
  if (number >= microbatch.cells.size()) microbatch.cells.resize(numbers_.size());
  return microbatch.cells[number];
}

bool CellSums::put(MicrobatchGradients& microbatch, ParameterNumber number,
                   torch::autograd::AccumulateGrad& leaf, Contribution&& contribution) {
  auto& sum = at(microbatch, number).sum;
  const bool first = sum == kNone;
  if (first) sum = waiting_.open(leaf);
  waiting_.put(sum, microbatch, std::move(contribution));
  return first;
}

void CellSums::plan(MicrobatchGradients& microbatch) {
  if (microbatch.planned) return;
  microbatch.plan(reached_);
  effort_.walks += reached_.walks();
  for (const auto number : microbatch.waiters) {  // contributions came before the places
    const auto sum = at(microbatch, number).sum;
    if (sum != kNone) waiting_.sort(sum, microbatch);
  }
}

bool CellSums::advance(MicrobatchGradients& microbatch, ParameterNumber number) {
  auto& own = at(microbatch, number);
  for (; own.next < own.end; ++own.next) {
    const auto index = microbatch.reaching[own.next];
    auto& execution = microbatch.executions[index];
    ++effort_.pairs;
    if (absorb_through(microbatch, own, execution.place) || execution.closed) continue;
    if (std::exchange(own.blocker, index) != index) execution.waiters.push_back(number);
    return false;
  }
  absorb_through(microbatch, own, kNone);
  own.blocker = kNone;
  return true;
}

/// Calls WaitingGradients::absorb_through(); a cell to which nothing was given has no sum.
bool CellSums::absorb_through(const MicrobatchGradients& microbatch,
                              const MicrobatchGradients::Cell& cell, std::uint32_t place) {
  return cell.sum != kNone && waiting_.absorb_through(cell.sum, microbatch, place);
}

std::optional<LeafSum> CellSums::take(MicrobatchGradients& microbatch, ParameterNumber number) {
  const auto sum = std::exchange(at(microbatch, number).sum, kNone);
  if (sum == kNone) return std::nullopt;
  return waiting_.take(sum);
}

}  // namespace smp::server
