// d2d/wires/ofi/ofi_sender.cpp: the short goes before the long, and nobody before his turn.
#include "d2d/wires/ofi/ofi_sender.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace smp::d2d {
namespace {

/// The writes to one peer at a time: enough for a fast network to be busy, and so few that a frame
/// does not wait long behind them.
constexpr std::size_t kWritesPerPeer = 16;

}  // namespace

void OfiSender::queue(OfiPeer& to, OfiFrameKind kind, ByteBuffer&& bytes) {
  to.outbox.put(kind, std::move(bytes));
  ++waiting_;
}

void OfiSender::tell(OfiPeer& to, TransferId received) {
  to.outbox.tell(received);
  if (to.outbox.untold() >= most_received_in(parts_.options.frame_bytes) && to.outbox.empty()) {
    queue(to, OfiFrameKind::kNothing);
  }
}

void OfiSender::grant(OfiPeer& to, const OfiGrant& grant) {
  to.grants.push_back(grant);
  ++waiting_;
}

void OfiSender::write(OfiTransfer& transfer) {
  transfer.peer->writing.push_back(&transfer);
  ++waiting_;
}

void OfiSender::give_up(OfiTransfer& transfer) {
  transfer.written = transfer.bytes.size();
  waiting_ -= std::erase(transfer.peer->writing, &transfer);
}

void OfiSender::start_waiting() {
  if (waiting_ == 0) return;
  ++turn_;
  const auto& peers = parts_.peers;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    const std::size_t at = (turn_ + i) % peers.size();
    if (at != position_) start_waiting_for(*peers[at]);
  }
}

void OfiSender::start_waiting_for(OfiPeer& to) {
  if (start_grants(to)) start_messages(to);
  start_writes(to);
}

bool OfiSender::start_grants(OfiPeer& to) {
  while (!to.grants.empty()) {
    auto* const task = free_frame(to);
    if (task == nullptr) return false;
    const std::size_t room = parts_.options.frame_bytes - sizeof(OfiTrailer);
    const std::size_t count = std::min(to.grants.size(), room / sizeof(OfiGrant));
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(task->frame.data() + i * sizeof(OfiGrant), &to.grants[i], sizeof(OfiGrant));
    }
    OfiTrailer trailer;
    trailer.kind = OfiFrameKind::kGrants;
    if (!start_frame(to, *task, count * sizeof(OfiGrant), trailer)) return false;
    to.grants.erase(to.grants.begin(), to.grants.begin() + static_cast<std::ptrdiff_t>(count));
    waiting_ -= count;
  }
  return true;
}

void OfiSender::start_messages(OfiPeer& to) {
  while (!to.outbox.empty()) {
    auto* const task = free_frame(to);
    if (task == nullptr) return;
    const auto next = to.outbox.write_next(task->frame);
    if (!start_frame(to, *task, next.bytes, next.trailer)) return;
    if (to.outbox.pass(next, parts_.buffers)) --waiting_;
  }
}

OfiTask* OfiSender::free_frame(const OfiPeer& to) const {
  if (to.frames_in_flight == kFramesPerPeer || is_full()) return nullptr;
  return parts_.tasks.free_frame();
}

/// Starts a frame. `task` is the last of the free frames, and stays so if it is not started.
bool OfiSender::start_frame(OfiPeer& to, OfiTask& task, std::size_t bytes,
                            const OfiTrailer& trailer) {
  auto named = trailer;
  named.secret = parts_.options.secret;
  named.source = static_cast<std::uint32_t>(position_);
  std::memcpy(task.frame.data() + bytes, &named, sizeof named);
  task.peer = &to;
  task.bytes = bytes + sizeof named;
  const auto status = parts_.endpoint.send(task.frame.first(task.bytes), parts_.tasks.descriptor(),
                                           to.address, task);
  if (!is_started(status, task)) return false;
  parts_.tasks.note_started(OfiTask::Kind::kFrame);
  ++to.frames_in_flight;
  return true;
}

void OfiSender::start_writes(OfiPeer& to) {
  while (!to.writing.empty()) {
    auto& transfer = *to.writing.front();
    if (to.writes_in_flight == kWritesPerPeer || is_full() || !start_segment(transfer)) return;
    if (transfer.written < transfer.bytes.size()) continue;
    to.writing.pop_front();
    --waiting_;
  }
}

bool OfiSender::start_segment(OfiTransfer& transfer) {
  const auto& grant = transfer.grant;
  const auto rest = transfer.bytes.subspan(transfer.written);
  auto& task = parts_.tasks.free_write();
  task.peer = transfer.peer;
  task.transfer = &transfer;
  task.bytes = std::min<std::size_t>(rest.size(), grant.segment);
  const auto status = parts_.endpoint.write(
      rest.first(task.bytes), transfer.memory.descriptor(),
      {transfer.peer->address, grant.address + transfer.written, grant.key}, grant.receive, task);
  if (!is_started(status, task)) return false;
  parts_.tasks.note_started(OfiTask::Kind::kWrite);
  transfer.written += task.bytes;
  ++transfer.writes_in_flight;
  ++transfer.peer->writes_in_flight;
  return true;
}

/// True if the endpoint takes no more for anybody, which says nothing of a peer.
bool OfiSender::is_full() const { return parts_.tasks.in_flight() >= parts_.endpoint.sends(); }

bool OfiSender::is_started(int status, OfiTask& task) {
  auto& to = *task.peer;
  if (status == 0) {
    to.is_reached = true;
    to.refused_since = 0;
  } else if (status == OfiEndpoint::kLater) {
    refuse(to);
  } else {
    parts_.loss.note_failed(&task, OfiEndpoint::error_text(status));
  }
  return status == 0;
}

/// Notes that libfabric takes nothing for a peer. Its TCP provider does not tell that a process is
/// gone: it tries to connect again for ever, and takes nothing meanwhile. Never so much is under
/// way to one peer that it would take nothing because of that.
void OfiSender::refuse(OfiPeer& to) {
  const auto now = clock_.now();
  // While this rank did not ask, nothing could go on.
  if (now - to.refused_last > kBetweenChecks) to.refused_since = 0;
  to.refused_last = now;
  if (to.refused_since == 0) to.refused_since = now;
  if (!to.is_reached || to.has_left || now - to.refused_since < parts_.options.patience) return;
  parts_.loss.note(
      base::concat("sending to rank ", to.rank,
                   " over libfabric failed (nothing could be sent for ",
                   static_cast<double>(parts_.options.patience) / base::kSecond, " s)"),
      OfiLoss::kGone);
}

void OfiSender::end_frame(OfiTask& task) {
  --task.peer->frames_in_flight;
  parts_.tasks.note_ended(task);
}

void OfiSender::end_write(OfiTask& task) {
  --task.peer->writes_in_flight;
  --task.transfer->writes_in_flight;
  parts_.tasks.note_ended(task);
}

}  // namespace smp::d2d
