// server/collectives.cpp: everyone sends to everyone; groups are small and calls are rare.
#include "server/collectives.h"

#include "base/check.h"

namespace smp::server {
namespace {

std::uint64_t id_of(const std::vector<int>& ranks) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const int rank : ranks) hash = (hash ^ static_cast<std::uint64_t>(rank)) * 0x100000001b3ull;
  return hash;
}

}  // namespace

std::uint64_t Collectives::next_number(const std::vector<int>& ranks) {
  return numbers_[id_of(ranks)]++;
}

void Collectives::send(int peer, std::uint64_t group, std::uint64_t number, const Packet& packet) {
  ++sent_[peer];
  Message message;
  message.kind = Kind::kCollective;
  message.record = group;
  message.request = number;
  message.body = packet.bytes;
  message.tensors = packet.tensors;
  send_(peer, std::move(message));
}

Packet Collectives::receive(int peer, std::uint64_t group, std::uint64_t number, const char* what) {
  const Slot slot{peer, group, number};
  base::Event arrived;
  const base::WaitReason reason{what, "", peer, -1};
  while (arrived_.count(slot) == 0) {
    SMP_REQUIRE_AS(PeerLostError, aborted_.empty(), "rank ", rank_, ": ", what, ": ", aborted_);
    SMP_REQUIRE_AS(PeerLostError, !is_gone(peer), "rank ", rank_, ": ", what, " waits for rank ",
                   peer, ", but ", left_[peer].why);
    waiting_[slot] = &arrived;
    arrived.wait(reason);
    waiting_.erase(slot);
  }
  auto message = std::move(arrived_.at(slot));
  arrived_.erase(slot);
  return {std::move(message.body), std::move(message.tensors)};
}

std::vector<Packet> Collectives::all_gather(const std::vector<int>& ranks, Packet own,
                                            const char* what) {
  const auto group = id_of(ranks);
  const auto number = next_number(ranks);
  for (const int peer : ranks) {
    if (peer != rank_) send(peer, group, number, own);
  }
  std::vector<Packet> all;
  for (const int peer : ranks) {
    all.push_back(peer == rank_ ? std::move(own) : receive(peer, group, number, what));
  }
  return all;
}

Packet Collectives::broadcast(const std::vector<int>& ranks, int root, Packet own) {
  const auto group = id_of(ranks);
  const auto number = next_number(ranks);
  if (rank_ != root) return receive(root, group, number, "a broadcast");
  for (const int peer : ranks) {
    if (peer != rank_) send(peer, group, number, own);
  }
  return own;
}

void Collectives::barrier(const std::vector<int>& ranks) { all_gather(ranks, {}, "a barrier"); }

void Collectives::deliver(int source, Message&& message) {
  const Slot slot{source, message.record, message.request};
  arrived_.emplace(slot, std::move(message));
  ++received_[source];
  if (is_gone(source)) return wake_all();
  if (const auto found = waiting_.find(slot); found != waiting_.end()) found->second->signal();
}

void Collectives::peer_left(int peer, std::uint64_t sent, const std::string& why) {
  left_[peer] = {sent, why};
  if (is_gone(peer)) wake_all();
}

std::uint64_t Collectives::sent_to(int peer) const {
  const auto found = sent_.find(peer);
  return found == sent_.end() ? 0 : found->second;
}

bool Collectives::is_gone(int peer) const {
  const auto left = left_.find(peer);
  if (left == left_.end()) return false;
  const auto received = received_.find(peer);
  return left->second.sent <= (received == received_.end() ? 0 : received->second);
}

void Collectives::abort(const std::string& why) {
  aborted_ = why;
  wake_all();
}

void Collectives::wake_all() {
  for (const auto& [slot, event] : waiting_) event->signal();
}

}  // namespace smp::server
