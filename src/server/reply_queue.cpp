// server/reply_queue.cpp: state shared by the queue and the completions it gave away.
#include "server/reply_queue.h"

#include <utility>

#include "base/check.h"
#include "server/turn_taker.h"

namespace smp::server {

struct Completion::Replies {
  std::deque<Reply> replies;
  std::size_t taken = 0;        // number of the oldest reply still here
  std::optional<Reply> failed;  // the first error to arrive
  fiber::Event arrived;
  bool closed = false;

  void complete(std::size_t number, variable_list&& gradients, std::exception_ptr error);
  bool has_reply() const { return failed || (!replies.empty() && replies.front().arrived); }
};

void Completion::Replies::complete(std::size_t number, variable_list&& gradients,
                                   std::exception_ptr error) {
  if (closed) return;
  SMP_ASSERT(number >= taken && !replies[number - taken].arrived,
             "an AsyncNode was completed twice");
  auto& reply = replies[number - taken];
  reply.gradients = std::move(gradients);
  reply.error = std::move(error);
  reply.arrived = true;
  if (reply.error && !failed) failed = reply;
  if (has_reply()) arrived.signal();
}

void Completion::operator()(variable_list&& gradients, std::exception_ptr error) const {
  replies_->complete(number_, std::move(gradients), std::move(error));
}

ReplyQueue::~ReplyQueue() {
  if (!state_) return;
  state_->closed = true;
  state_->replies.clear();
}

Completion ReplyQueue::expect(NodeIndex node) {
  if (!state_) state_ = std::make_shared<Completion::Replies>();
  const auto number = state_->taken + state_->replies.size();
  state_->replies.emplace_back().node = node;
  return {state_, number};
}

int ReplyQueue::in_flight() const noexcept {
  return state_ ? static_cast<int>(state_->replies.size()) : 0;
}

NodeIndex ReplyQueue::next() const noexcept { return state_->replies.front().node; }

std::optional<Reply> ReplyQueue::take() {
  if (!state_ || !state_->has_reply()) return std::nullopt;
  if (state_->failed) return std::move(state_->failed);
  std::optional<Reply> reply = std::move(state_->replies.front());
  state_->replies.pop_front();
  ++state_->taken;
  return reply;
}

void ReplyQueue::wait(const fiber::WaitReason& reason) {
  const auto state = state_;
  while (!state->has_reply()) await_answer(state->arrived, reason);
}

}  // namespace smp::server
