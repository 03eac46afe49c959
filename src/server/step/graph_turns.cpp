// server/step/graph_turns.cpp: see the header.
#include "server/step/graph_turns.h"

#include <algorithm>
#include <utility>

namespace smp::server {

GraphTurns::Turn::Turn(std::shared_ptr<GraphTurns> turns, const fiber::WaitReason& reason)
    : turns_(std::move(turns)) {
  if (turns_ == nullptr) return;
  auto& waiting = turns_->waiting_;
  while (turns_->taken_) {
    fiber::Event free;
    waiting.push_back(&free);
    try {
      free.wait(reason);
    } catch (...) {
      std::erase(waiting, &free);
      throw;
    }
    std::erase(waiting, &free);
  }
  turns_->taken_ = true;
}

GraphTurns::Turn::~Turn() {
  if (turns_ == nullptr) return;
  turns_->taken_ = false;
  if (!turns_->waiting_.empty()) turns_->waiting_.front()->signal();
}

}  // namespace smp::server
