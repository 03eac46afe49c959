// server/step/microbatch_order.cpp: a count that goes up.
#include "server/step/microbatch_order.h"

#include <algorithm>

namespace smp::server {

void MicrobatchOrder::forward_done(int microbatch) noexcept {
  const auto index = static_cast<std::size_t>(microbatch);
  if (index >= done_.size()) return;
  done_[index] = true;
  const int before = turn_;
  while (static_cast<std::size_t>(turn_) < done_.size() && done_[static_cast<std::size_t>(turn_)]) {
    ++turn_;
  }
  if (turn_ == before) return;
  waiting_.wake([this](int waiter) { return waiter <= turn_; });
}

void MicrobatchOrder::pass(int microbatch, const char* module_path) {
  const fiber::WaitReason reason{"lower microbatches to leave what keeps state", module_path, -1,
                                 microbatch};
  while (!has_turn(microbatch)) waiting_.wait(microbatch, reason);
}

int MicrobatchOrder::enter(int module, int microbatch) {
  const auto index = static_cast<std::size_t>(module);
  if (index >= highest_.size()) highest_.resize(index + 1, -1);
  highest_[index] = std::max(highest_[index], microbatch);
  return highest_[index];
}

void MicrobatchOrder::open_all() noexcept {
  closed_ = true;
  waiting_.wake_all();
}

}  // namespace smp::server
