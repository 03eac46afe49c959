// d2d/wires/ofi/ofi_wire.cpp: see the header.
#include "d2d/wires/ofi/ofi_wire.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/keep_until_exit.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

/// As many frames as may be under way to each peer are set aside, up to this limit for all.
constexpr std::size_t kMostFrames = 512;
/// The most reads of completions, or of frames of a peer, in one call, whatever comes.
constexpr int kMostReads = 64;
constexpr int kMostFramesRead = 64;

}  // namespace

OfiWire::OfiWire(GlobalRank rank, Members members, std::unique_ptr<OfiEndpoint> endpoint,
                 const std::vector<std::string>& addresses, const OfiWireOptions& options)
    : Wire(rank, std::move(members)), options_(options), endpoint_(std::move(endpoint)) {
  options_.segment_bytes = std::min(options_.segment_bytes, endpoint_->longest());
  SMP_ASSERT(addresses.size() == static_cast<std::size_t>(this->members().size()), addresses.size(),
             " addresses");
  SMP_ASSERT(options_.frame_bytes >= sizeof(OfiTrailer) + sizeof(OfiGrant), options_.frame_bytes);
  SMP_ASSERT(options_.segment_bytes <= UINT32_MAX, options_.segment_bytes);
  SMP_REQUIRE_AS(PeerLostError, options_.frame_bytes <= endpoint_->longest(), "rank ", rank,
                 ": this provider of libfabric sends no more than ", endpoint_->longest(),
                 " bytes at a time; choose another one with FI_PROVIDER");
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    peers_.push_back(std::make_unique<OfiPeer>(this->members()[static_cast<int>(i)]));
    if (peers_.back()->rank != rank) peers_.back()->address = endpoint_->peer(addresses[i]);
  }
  const auto others = peers_.size() - 1;
  tasks_ = std::make_unique<OfiTasks>(*endpoint_, options_.frame_bytes,
                                      std::min(OfiSender::kFramesPerPeer * others, kMostFrames));
  sender_.emplace(OfiSender::Parts{options_, *endpoint_, *tasks_, peers_, buffers_, loss_},
                  this->members().position(rank));
  tasks_->post_receives(loss_);
}

/// Ends the wire. Closing an endpoint over TCP in the middle of a write to it ends the process
/// (libfabric 1.17): then it stays open, and its own memory is kept. Places that other ranks were
/// granted are withdrawn.
OfiWire::~OfiWire() {
  if (receives_.empty()) {
    endpoint_->shut();
    return;
  }
  base::keep_until_exit(std::move(tasks_));
  base::keep_until_exit(std::move(endpoint_));
}

template <class Action>
void OfiWire::for_each_peer(Action&& action) {
  for (auto& peer : peers_) {
    if (peer->rank != rank()) action(*peer);
  }
}

// ---- sending -----------------------------------------------------------------------------------

void OfiWire::post(GlobalRank peer, ByteBuffer&& bytes) {
  loss_.require_none(rank());
  auto& to = this->peer(peer);
  sender_->queue(to, OfiFrameKind::kControl, std::move(bytes));
  sender_->start_waiting_for(to);
}

void OfiWire::send(std::span<const std::byte> bytes, GlobalRank peer, TransferId id, Token token) {
  loss_.require_none(rank());
  ++sends_in_flight_;
  auto& to = this->peer(peer);
  auto& transfer = to.outgoing[id];
  transfer.peer = &to;
  transfer.id = id;
  transfer.bytes = bytes;
  transfer.token = token;
  transfer.is_sent = true;
  if (transfer.is_granted) start_transfer(transfer);
}

void OfiWire::start_transfer(OfiTransfer& transfer) {
  auto& to = *transfer.peer;
  const auto& grant = transfer.grant;
  if (grant.bytes != transfer.bytes.size()) {
    return loss_.note(base::concat("sending ", transfer.bytes.size(), " bytes to rank ", to.rank,
                                   ", which receives ", grant.bytes, " bytes"),
                      OfiLoss::kDiffer);
  }
  if (grant.segment == 0 || grant.segment > endpoint_->longest()) {
    return loss_.note(base::concat("sending ", transfer.bytes.size(), " bytes to rank ", to.rank,
                                   ", which receives ", grant.segment, " bytes at a time"),
                      OfiLoss::kDiffer);
  }
  // Where the bytes lie, instead of copies of them in memory that stays registered: a copy costs
  // more than registering, which providers that need it remember.
  transfer.memory = endpoint_->register_source(transfer.bytes);
  sender_->write(transfer);
  sender_->start_waiting_for(to);
}

// ---- receiving ---------------------------------------------------------------------------------

void OfiWire::receive(std::span<std::byte> bytes, GlobalRank peer, TransferId id, Token token) {
  loss_.require_none(rank());
  auto& from = this->peer(peer);
  auto memory = endpoint_->register_target(bytes);
  OfiGrant grant;
  grant.id = id;
  grant.address = memory.address();
  grant.key = memory.key();
  grant.bytes = bytes.size();
  grant.segment = static_cast<std::uint32_t>(options_.segment_bytes);
  const std::size_t segments = segments_of(bytes.size(), options_.segment_bytes);
  grant.receive =
      static_cast<std::uint32_t>(receives_.put({&from, id, token, segments, std::move(memory)}));
  sender_->grant(from, grant);
  sender_->start_waiting_for(from);
}

bool OfiWire::complete() {
  bool told = false;
  for (int i = 0; i < kMostReads; ++i) {
    tasks_->post_receives(loss_);
    completions_.clear();
    endpoint_->read(completions_);
    if (completions_.empty()) break;
    note_stir();
    for (const auto& completion : completions_) told |= finish(completion);
  }
  sender_->start_waiting();
  return told;
}

/// Handles a completion. Returns true if the handler was told of it.
bool OfiWire::finish(const OfiCompletion& completion) {
  const bool failed = !completion.error.empty();
  auto* const task = static_cast<OfiTask*>(completion.operation);
  // One that is too long is of a stranger, whatever it says.
  if (failed && !completion.is_too_long) loss_.note_failed(task, completion.error);
  if (task == nullptr) return !failed && finish_segment(completion.immediate);
  switch (task->kind) {
    case OfiTask::Kind::kFrame:
      sender_->end_frame(*task);
      return false;
    case OfiTask::Kind::kReceive:
      if (!failed) take_frame(*task, completion.bytes);
      tasks_->note_ended(*task);
      return false;
    case OfiTask::Kind::kWrite:
      return finish_write(*task, failed);
  }
  return false;
}

bool OfiWire::finish_write(OfiTask& task, bool failed) {
  auto& transfer = *task.transfer;
  auto& to = *transfer.peer;
  sender_->end_write(task);
  if (failed && !to.has_left) return false;
  if (failed) sender_->give_up(transfer);
  if (transfer.written < transfer.bytes.size() || transfer.writes_in_flight > 0) return false;
  const auto token = transfer.token;
  if (transfer.is_awaited && to.inbox.is_over()) make_readable(to);
  to.outgoing.erase(transfer.id);
  --sends_in_flight_;
  handler().on_sent(token);
  return true;
}

bool OfiWire::finish_segment(std::uint32_t receive) {
  if (receive >= receives_.bound() || receives_[receive].missing == 0) {
    loss_.note("a write over libfabric came that nobody receives", OfiLoss::kDiffer);
    return false;
  }
  receives_[receive].peer->refused_since = 0;
  if (--receives_[receive].missing > 0) return false;
  auto whole = receives_.take(receive);
  whole.memory = {};  // before the handler, who may free it
  sender_->tell(*whole.peer, whole.id);
  handler().on_received(whole.token);
  return true;
}

void OfiWire::take_frame(OfiTask& task, std::size_t bytes) {
  const auto frame = task.frame.first(std::min(bytes, task.frame.size()));
  if (!is_of_job(frame, options_.secret)) return;
  if (!makes_sense(frame, members().size(), members().position(rank()))) {
    return loss_.note(
        base::concat("a frame over libfabric came that makes no sense (", frame.size(), " bytes)"),
        OfiLoss::kDiffer);
  }
  const auto trailer = trailer_of(frame);
  auto& source = *peers_[trailer.source];
  source.refused_since = 0;
  if (trailer.kind == OfiFrameKind::kGrants) {
    return take_grants(source, frame.first(frame.size() - sizeof trailer));
  }
  auto copy = buffers_.take();  // its buffer goes back to the endpoint, whatever it waits for
  copy.resize(frame.size());
  std::memcpy(copy.data(), frame.data(), frame.size());
  if (!source.inbox.put(std::move(copy))) {
    return loss_.note(
        base::concat("frame ", trailer.number, " from rank ", source.rank,
                     " over libfabric came, and frame ", source.inbox.next(), " was to come"),
        OfiLoss::kDiffer);
  }
  if (source.inbox.has_next()) make_readable(source);
}

void OfiWire::take_grants(OfiPeer& from, std::span<const std::byte> grants) {
  for (; grants.size() >= sizeof(OfiGrant); grants = grants.subspan(sizeof(OfiGrant))) {
    OfiGrant grant;
    std::memcpy(&grant, grants.data(), sizeof grant);
    auto& transfer = from.outgoing[grant.id];
    if (transfer.is_granted) {  // it is being sent already
      return loss_.note(base::concat("rank ", from.rank, " granted transfer ", grant.id, " twice"),
                        OfiLoss::kDiffer);
    }
    transfer.peer = &from;
    transfer.id = grant.id;
    transfer.grant = grant;
    transfer.is_granted = true;
    if (transfer.is_sent) start_transfer(transfer);
  }
}

bool OfiWire::poll() {
  bool told = complete();
  told |= read_frames(Reading::kAll);
  sender_->start_waiting();
  if (!told) loss_.require_none(rank());  // whoever is lost may have said why
  return told;
}

void OfiWire::make_readable(OfiPeer& source) {
  if (!std::exchange(source.is_readable, true)) readable_.push_back(&source);
}

/// Reads frames of the peers that were readable before. Returns true if the handler was told of
/// anything.
bool OfiWire::read_frames(Reading reading) {
  bool told = false;
  reading_.swap(readable_);
  for (auto* const source : reading_) {
    source->is_readable = false;
    told |= read_frames_of(*source, reading);
  }
  reading_.clear();
  return told;
}

/// Reads frames of one peer. An answer tells that what it answers has left, but a write may be over
/// here later than it is there. So each frame names the transfers that its sender had received, and
/// waits for the end of those here.
bool OfiWire::read_frames_of(OfiPeer& source, Reading reading) {
  auto& inbox = source.inbox;
  bool told = false;
  for (int i = 0; inbox.has_next(); ++i) {
    inbox.note_received([&](TransferId received) { return must_wait(source, received); });
    if (inbox.waits()) return told;  // made readable by the last of them
    const auto kind = inbox.next_kind();
    const bool is_control = kind == OfiFrameKind::kControl;
    if (i == kMostFramesRead || (is_control && reading == Reading::kNoControl)) {
      make_readable(source);
      return told;
    }
    source.has_left |= kind == OfiFrameKind::kGoodbye;
    auto message = inbox.take(buffers_);
    if (!message) continue;
    complete();
    handler().on_control(source.rank, std::move(*message));
    told = true;
  }
  return told;
}

/// Returns true if `received` is not over here, though a frame says that it has been received: the
/// frame must wait.
bool OfiWire::must_wait(OfiPeer& source, TransferId received) {
  const auto transfer = source.outgoing.find(received);
  if (transfer == source.outgoing.end()) return false;
  auto& sent = transfer->second;
  const bool has_left = sent.is_sent && sent.written == sent.bytes.size();
  if (!has_left || sent.is_awaited) {  // to wait for it could be for ever
    loss_.note(base::concat("rank ", source.rank, " received transfer ", received, " of ",
                            sent.bytes.size(), " bytes, of which ", sent.written, " were sent",
                            sent.is_awaited ? ", twice" : ""),
               OfiLoss::kDiffer);
    return false;
  }
  return sent.is_awaited = true;
}

// ---- links, losses, leaving --------------------------------------------------------------------

void OfiWire::check_links() {
  const auto now = clock_.now();
  if (now - checked_ < OfiSender::kBetweenChecks) return;
  checked_ = now;
  for_each_peer([this](OfiPeer& peer) {
    const bool is_busy = !peer.outbox.empty() || peer.frames_in_flight > 0;
    if (peer.has_left || is_busy) return;
    sender_->queue(peer, OfiFrameKind::kNothing);
    sender_->start_waiting_for(peer);
  });
}

bool OfiWire::drained() const noexcept { return sender_->drained() && sends_in_flight_ == 0; }

/// Leaves: every rank says goodbye, which is the last that others hear of it. A rank that nobody
/// polls any more, because it carries nothing, leaves as well.
bool OfiWire::leave() {
  if (leaving_ == Leaving::kLeft) return true;
  complete();
  read_frames(Reading::kNoControl);
  if (leaving_ == Leaving::kNo) {
    if (!drained()) return false;
    for_each_peer([this](OfiPeer& peer) { sender_->queue(peer, OfiFrameKind::kGoodbye); });
    sender_->start_waiting();
    leaving_ = Leaving::kWaiting;
  }
  bool all = drained();
  for_each_peer([&all](OfiPeer& peer) { all &= peer.has_left; });
  if (all) leaving_ = Leaving::kLeft;
  return all;
}

}  // namespace smp::d2d
