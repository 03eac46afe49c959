// server/backward/reply_queue.cpp: state shared by the queue and the completions it gave away.
#include "server/backward/reply_queue.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "base/check.h"
#include "server/running/turn_taker.h"

namespace smp::server {

struct Completion::Replies {
  std::deque<Reply> replies;           // by number
  std::size_t forgotten = 0;           // how many there were before these
  std::size_t first = 0, last = 0;     // numbers; of those that have a place, which lead to each
  std::size_t in_flight = 0;           // other by Reply::next
  std::vector<std::size_t> placeless;  // numbers
  std::optional<Reply> failed;         // the first error to arrive
  fiber::Event arrived;
  bool closed = false;

  std::size_t add(NodeIndex node);
  void append(std::size_t number);
  Reply& at(std::size_t number) { return replies.at(number - forgotten); }
  void complete(std::size_t number, variable_list&& gradients, std::exception_ptr error);
  bool has_reply() { return failed || (in_flight > 0 && at(first).arrived); }
  Reply take_first();
};

std::size_t Completion::Replies::add(NodeIndex node) {
  replies.emplace_back().node = node;
  return forgotten + replies.size() - 1;
}

void Completion::Replies::append(std::size_t number) {
  (in_flight++ == 0 ? first : at(last).next) = number;
  last = number;
}

void Completion::Replies::complete(std::size_t number, variable_list&& gradients,
                                   std::exception_ptr error) {
  if (closed) return;
  SMP_ASSERT(number >= forgotten && !at(number).arrived, "an AsyncNode was completed twice");
  auto& reply = at(number);
  reply.gradients = std::move(gradients);
  reply.error = std::move(error);
  reply.arrived = true;
  if (reply.error && !failed) failed = reply;
  if (has_reply()) arrived.signal();
}

Reply Completion::Replies::take_first() {
  auto& oldest = at(first);
  oldest.taken = true;
  auto reply = std::move(oldest);
  first = reply.next;
  --in_flight;
  for (; !replies.empty() && replies.front().taken; ++forgotten) replies.pop_front();
  return reply;
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
  const auto number = state_->add(node);
  state_->append(number);
  return {state_, number};
}

Completion ReplyQueue::expect_later(NodeIndex node) {
  if (!state_) state_ = std::make_shared<Completion::Replies>();
  const auto number = state_->add(node);
  state_->placeless.push_back(number);
  return {state_, number};
}

void ReplyQueue::enqueue(NodeIndex node, bool wanted) {
  auto& placeless = state_->placeless;
  const auto number = std::find_if(placeless.begin(), placeless.end(), [&](std::size_t candidate) {
    return state_->at(candidate).node == node;
  });
  SMP_ASSERT(number != placeless.end());
  state_->at(*number).wanted = wanted;
  state_->append(*number);
  placeless.erase(number);
}

int ReplyQueue::in_flight() const noexcept {
  return state_ ? static_cast<int>(state_->in_flight) : 0;
}

NodeIndex ReplyQueue::next() const noexcept { return state_->at(state_->first).node; }

std::optional<Reply> ReplyQueue::take() {
  if (!state_ || !state_->has_reply()) return std::nullopt;
  if (state_->failed) return std::move(state_->failed);
  return state_->take_first();
}

void ReplyQueue::wait(const fiber::WaitReason& reason) {
  const auto state = state_;
  while (!state->has_reply()) await_answer(state->arrived, reason);
}

}  // namespace smp::server
