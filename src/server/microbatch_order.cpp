// server/microbatch_order.cpp: a count that goes up, and who waits for it.
#include "server/microbatch_order.h"

#include <algorithm>

namespace smp::server {

/// An event among `all` as long as it lives: waiting may be refused, by an exception.
class MicrobatchOrder::Waiter {
 public:
  Waiter(std::vector<std::pair<int, fiber::Event*>>& all, int microbatch) : all_(all) {
    all_.emplace_back(microbatch, &turn_);
  }
  ~Waiter() {
    std::erase_if(all_, [this](const auto& waiter) { return waiter.second == &turn_; });
  }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;
  fiber::Event& turn() const { return turn_; }

 private:
  std::vector<std::pair<int, fiber::Event*>>& all_;
  mutable fiber::Event turn_;
};

void MicrobatchOrder::forward_done(int microbatch) noexcept {
  const auto index = static_cast<std::size_t>(microbatch);
  if (index >= done_.size()) return;
  done_[index] = true;
  const int before = turn_;
  while (static_cast<std::size_t>(turn_) < done_.size() && done_[static_cast<std::size_t>(turn_)]) {
    ++turn_;
  }
  if (turn_ == before) return;
  for (const auto& [waiter, event] : waiting_) {
    if (waiter <= turn_) event->signal();
  }
}

void MicrobatchOrder::pass(int microbatch, const char* module_path) {
  const fiber::WaitReason reason{"lower microbatches to leave what keeps state", module_path, -1,
                                 microbatch};
  while (!has_turn(microbatch)) {
    const Waiter waiter(waiting_, microbatch);
    waiter.turn().wait(reason);
  }
}

int MicrobatchOrder::enter(int module, int microbatch) {
  const auto index = static_cast<std::size_t>(module);
  if (index >= highest_.size()) highest_.resize(index + 1, -1);
  highest_[index] = std::max(highest_[index], microbatch);
  return highest_[index];
}

void MicrobatchOrder::open_all() noexcept {
  closed_ = true;
  for (const auto& [waiter, event] : waiting_) event->signal();
}

}  // namespace smp::server
