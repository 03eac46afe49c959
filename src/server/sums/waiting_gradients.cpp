// server/sums/waiting_gradients.cpp: in which order gradients are added.
#include "server/sums/waiting_gradients.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "module/node_pointer.h"
#include "server/graph/gradient_sum.h"

namespace smp::server {
namespace {

std::size_t dense_bytes(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided ? tensor.nbytes() : 0;
}

/// The order of contributions in a heap, which has the greatest in front: of two, the one that is
/// added later is the lesser. Before the places are known all are equal, and sort() orders the
/// heap.
class AddedFirst {
 public:
  explicit AddedFirst(const MicrobatchGradients& microbatch) : executions_(microbatch.executions) {}
  bool operator()(const Contribution& a, const Contribution& b) const noexcept {
    return std::pair(executions_[a.execution].place, a.arrival) >
           std::pair(executions_[b.execution].place, b.arrival);
  }

 private:
  const std::vector<MicrobatchGradients::Execution>& executions_;
};

}  // namespace

// ---- sums --------------------------------------------------------------------------------------

void WaitingGradients::clear() noexcept {
  free_.clear();
  for (std::uint32_t number = 0; number < sums_.size(); ++number) {
    sums_[number].sum = {};
    sums_[number].waiting.clear();
    free_.push_back(number);  // it had room for all of them
  }
  bytes_ = 0;
}

std::uint32_t WaitingGradients::open(torch::autograd::AccumulateGrad& leaf) {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(sums_.size()));
    sums_.emplace_back();
    free_.reserve(sums_.capacity());  // clear() frees all of them, and must not throw
  }
  const auto number = free_.back();
  free_.pop_back();
  sums_[number].sum.leaf = owner_of<torch::autograd::Node>(&leaf);
  return number;
}

LeafSum WaitingGradients::take(std::uint32_t number) {
  auto complete = std::exchange(sums_[number].sum, {});
  free_.push_back(number);
  return complete;
}

void WaitingGradients::put(std::uint32_t number, const MicrobatchGradients& microbatch,
                           Contribution&& contribution) {
  auto& [sum, waiting] = sums_[number];
  sum.grad_mode = at::GradMode::is_enabled();
  waiting.push_back(std::move(contribution));
  std::push_heap(waiting.begin(), waiting.end(), AddedFirst{microbatch});
}

void WaitingGradients::sort(std::uint32_t number, const MicrobatchGradients& microbatch) {
  auto& waiting = sums_[number].waiting;
  std::make_heap(waiting.begin(), waiting.end(), AddedFirst{microbatch});
}

bool WaitingGradients::absorb_through(std::uint32_t number, const MicrobatchGradients& microbatch,
                                      std::uint32_t place) {
  auto& [sum, waiting] = sums_[number];
  const auto place_of_first = [&] {
    return waiting.empty() ? MicrobatchGradients::kNone
                           : microbatch.executions[waiting.front().execution].place;
  };
  bool delivered = false;
  while (!waiting.empty() && place_of_first() <= place) {
    delivered |= place_of_first() == place;
    std::pop_heap(waiting.begin(), waiting.end(), AddedFirst{microbatch});
    auto gradient = std::move(waiting.back().gradient);
    waiting.pop_back();
    add(sum, std::move(gradient));
  }
  return delivered;
}

void WaitingGradients::sum_up_rest(MicrobatchGradients& microbatch) {
  using AfterFirstBackward = MicrobatchGradients::AfterFirstBackward;
  auto& rest = microbatch.rest;
  const auto position = [&](const AfterFirstBackward& one) -> const OrderKey& {
    return microbatch.executions[one.execution].order;
  };
  std::sort(rest.begin(), rest.end(), [&](const auto& a, const auto& b) {
    return std::tie(a.parameter, position(b), a.arrival) <
           std::tie(b.parameter, position(a), b.arrival);
  });
  std::size_t sums = 0;
  for (auto& one : rest) {
    if (sums > 0 && rest[sums - 1].parameter == one.parameter) {
      rest[sums - 1].sum.grad_mode = one.sum.grad_mode;
      add(rest[sums - 1].sum, std::move(one.sum.gradient));
    } else if (&rest[sums++] != &one) {
      rest[sums - 1] = std::move(one);
    }
  }
  rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(sums), rest.end());
}

void WaitingGradients::add(LeafSum& sum, at::Tensor&& gradient) {
  bytes_ -= dense_bytes(sum.gradient) + dense_bytes(gradient);
  at::AutoGradMode mode(sum.grad_mode);
  add_gradient(sum.gradient, std::move(gradient));
  bytes_ += dense_bytes(sum.gradient);
}

// ---- bytes -------------------------------------------------------------------------------------

void WaitingGradients::arrive(const at::Tensor& gradient) noexcept {
  bytes_ += dense_bytes(gradient);
}

void WaitingGradients::leave(const LeafSum& sum) noexcept { bytes_ -= dense_bytes(sum.gradient); }

void WaitingGradients::note_most() noexcept { most_bytes_ = std::max(most_bytes_, bytes_); }

}  // namespace smp::server
