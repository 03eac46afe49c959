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

/// The frames to one peer at a time, and the frames set aside for each peer, up to a limit for all.
constexpr std::size_t kFramesPerPeer = 8;
constexpr std::size_t kMostFrames = 512;
/// The writes to one peer at a time: enough for a fast network to be busy, and so few that a frame
/// does not wait long behind them.
constexpr std::size_t kWritesPerPeer = 16;
/// The most reads of completions, or of frames of a peer, in one call, whatever comes.
constexpr int kMostReads = 64;
constexpr int kMostFramesRead = 64;
constexpr base::Nanoseconds kBetweenChecks = base::kSecond;

constexpr const char* kGone =
    ": that rank or the network between is gone; restart from a checkpoint";
constexpr const char* kDiffer = ": do all ranks run the same build?";

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
    peers_.push_back(std::make_unique<Peer>(this->members()[static_cast<int>(i)]));
    if (peers_.back()->rank != rank) peers_.back()->address = endpoint_->peer(addresses[i]);
  }
  make_frames();
  post_receives();
}

/// Ends the wire. Closing an endpoint over TCP in the middle of a write to it ends the process
/// (libfabric 1.17): then it stays open, and its own memory is kept. Places that other ranks were
/// granted are withdrawn.
OfiWire::~OfiWire() {
  if (receives_.empty()) {
    endpoint_->shut();
    return;
  }
  base::keep_until_exit(std::move(operations_));
  base::keep_until_exit(std::move(frame_memory_));
  base::keep_until_exit(std::move(frame_registration_));
  base::keep_until_exit(std::move(endpoint_));
}

template <class Action>
void OfiWire::for_each_peer(Action&& action) {
  for (auto& peer : peers_) {
    if (peer->rank != rank()) action(*peer);
  }
}

/// Makes the frames to send and to receive, registered once: they are small, and used again and
/// again.
void OfiWire::make_frames() {
  const std::size_t wanted = std::min(kFramesPerPeer * (peers_.size() - 1), kMostFrames);
  const std::size_t to_send = std::min(wanted, endpoint_->sends());
  const std::size_t to_receive = std::min(wanted, endpoint_->receives());
  frame_memory_.resize((to_send + to_receive) * options_.frame_bytes);
  if (frame_memory_.empty()) return;
  frame_registration_ = endpoint_->register_source(frame_memory_);
  for (std::size_t i = 0; i < to_send + to_receive; ++i) {
    auto& frame = *operations_.emplace_back(std::make_unique<Operation>());
    frame.kind = i < to_send ? Kind::kFrame : Kind::kReceive;
    frame.frame = std::span(frame_memory_).subspan(i * options_.frame_bytes, options_.frame_bytes);
    (i < to_send ? free_frames_ : unposted_).push_back(&frame);
  }
}

// ---- sending -----------------------------------------------------------------------------------

void OfiWire::post(GlobalRank peer, ByteBuffer&& bytes) {
  require_no_loss();
  auto& to = this->peer(peer);
  queue(to, OfiFrameKind::kControl, std::move(bytes));
  start_waiting_for(to);
}

void OfiWire::queue(Peer& to, OfiFrameKind kind, ByteBuffer&& bytes) {
  to.outbox.put(kind, std::move(bytes));
  ++waiting_;
}

void OfiWire::send(std::span<const std::byte> bytes, GlobalRank peer, TransferId id, Token token) {
  require_no_loss();
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

void OfiWire::start_transfer(Outgoing& transfer) {
  auto& to = *transfer.peer;
  const auto& grant = transfer.grant;
  if (grant.bytes != transfer.bytes.size()) {
    return lose(base::concat("sending ", transfer.bytes.size(), " bytes to rank ", to.rank,
                             ", which receives ", grant.bytes, " bytes"),
                kDiffer);
  }
  if (grant.segment == 0 || grant.segment > endpoint_->longest()) {
    return lose(base::concat("sending ", transfer.bytes.size(), " bytes to rank ", to.rank,
                             ", which receives ", grant.segment, " bytes at a time"),
                kDiffer);
  }
  // Where the bytes lie, instead of copies of them in memory that stays registered: a copy costs
  // more than registering, which providers that need it remember.
  transfer.memory = endpoint_->register_source(transfer.bytes);
  to.writing.push_back(&transfer);
  ++waiting_;
  start_waiting_for(to);
}

/// Starts what waits. Each time another peer is the first, since what libfabric takes at once is
/// for all of them.
void OfiWire::start_waiting() {
  if (waiting_ == 0) return;
  ++turn_;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    auto& peer = *peers_[(turn_ + i) % peers_.size()];
    if (peer.rank != rank()) start_waiting_for(peer);
  }
}

/// Starts what waits for a peer, the short first. If libfabric does not take something now, that
/// waits, and so does all behind it.
void OfiWire::start_waiting_for(Peer& to) {
  if (start_grants(to)) start_messages(to);
  start_writes(to);
}

bool OfiWire::start_grants(Peer& to) {
  while (!to.grants.empty()) {
    auto* const operation = free_frame(to);
    if (operation == nullptr) return false;
    const std::size_t room = options_.frame_bytes - sizeof(OfiTrailer);
    const std::size_t count = std::min(to.grants.size(), room / sizeof(OfiGrant));
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(operation->frame.data() + i * sizeof(OfiGrant), &to.grants[i], sizeof(OfiGrant));
    }
    OfiTrailer trailer;
    trailer.kind = OfiFrameKind::kGrants;
    if (!start_frame(to, *operation, count * sizeof(OfiGrant), trailer)) return false;
    to.grants.erase(to.grants.begin(), to.grants.begin() + static_cast<std::ptrdiff_t>(count));
    waiting_ -= count;
  }
  return true;
}

void OfiWire::start_messages(Peer& to) {
  while (!to.outbox.empty()) {
    auto* const operation = free_frame(to);
    if (operation == nullptr) return;
    const auto next = to.outbox.write_next(operation->frame);
    if (!start_frame(to, *operation, next.bytes, next.trailer)) return;
    if (to.outbox.pass(next, buffers_)) --waiting_;
  }
}

OfiWire::Operation* OfiWire::free_frame(const Peer& to) const {
  if (free_frames_.empty() || to.frames_in_flight == kFramesPerPeer || is_full()) return nullptr;
  return free_frames_.back();
}

/// Starts a frame. `operation` is the last of the free frames, and stays so if it is not started.
bool OfiWire::start_frame(Peer& to, Operation& operation, std::size_t bytes,
                          const OfiTrailer& trailer) {
  auto named = trailer;
  named.secret = options_.secret;
  named.source = static_cast<std::uint32_t>(members().position(rank()));
  std::memcpy(operation.frame.data() + bytes, &named, sizeof named);
  operation.peer = &to;
  operation.bytes = bytes + sizeof named;
  const auto status = endpoint_->send(operation.frame.first(operation.bytes),
                                      frame_registration_.descriptor(), to.address, operation);
  if (!is_started(status, operation)) return false;
  free_frames_.pop_back();
  ++to.frames_in_flight;
  ++frames_in_flight_;
  return true;
}

void OfiWire::start_writes(Peer& to) {
  while (!to.writing.empty()) {
    auto& transfer = *to.writing.front();
    if (to.writes_in_flight == kWritesPerPeer || is_full() || !start_segment(transfer)) return;
    if (transfer.written < transfer.bytes.size()) continue;
    to.writing.pop_front();
    --waiting_;
  }
}

bool OfiWire::start_segment(Outgoing& transfer) {
  if (free_writes_.empty()) {
    operations_.push_back(std::make_unique<Operation>());
    free_writes_.push_back(operations_.back().get());
  }
  const auto& grant = transfer.grant;
  const auto rest = transfer.bytes.subspan(transfer.written);
  auto& operation = *free_writes_.back();
  operation.kind = Kind::kWrite;
  operation.peer = transfer.peer;
  operation.transfer = &transfer;
  operation.bytes = std::min<std::size_t>(rest.size(), grant.segment);
  const auto status =
      endpoint_->write(rest.first(operation.bytes), transfer.memory.descriptor(),
                       {transfer.peer->address, grant.address + transfer.written, grant.key},
                       grant.receive, operation);
  if (!is_started(status, operation)) return false;
  free_writes_.pop_back();
  transfer.written += operation.bytes;
  ++transfer.writes_in_flight;
  ++transfer.peer->writes_in_flight;
  ++writes_in_flight_;
  return true;
}

/// True if the endpoint takes no more for anybody, which says nothing of a peer.
bool OfiWire::is_full() const {
  return frames_in_flight_ + writes_in_flight_ >= endpoint_->sends();
}

bool OfiWire::is_started(int status, Operation& operation) {
  auto& to = *operation.peer;
  if (status == 0) {
    to.is_reached = true;
    to.refused_since = 0;
  } else if (status == OfiEndpoint::kLater) {
    refuse(to);
  } else {
    fail(&operation, OfiEndpoint::error_text(status));
  }
  return status == 0;
}

/// Notes that libfabric takes nothing for a peer. Its TCP provider does not tell that a process is
/// gone: it tries to connect again for ever, and takes nothing meanwhile. Never so much is under
/// way to one peer that it would take nothing because of that.
void OfiWire::refuse(Peer& to) {
  const auto now = clock_.now();
  // While this rank did not ask, nothing could go on.
  if (now - to.refused_last > kBetweenChecks) to.refused_since = 0;
  to.refused_last = now;
  if (to.refused_since == 0) to.refused_since = now;
  if (!to.is_reached || to.has_left || now - to.refused_since < options_.patience) return;
  lose(base::concat("sending to rank ", to.rank,
                    " over libfabric failed (nothing could be sent for ",
                    static_cast<double>(options_.patience) / base::kSecond, " s)"),
       kGone);
}

// ---- receiving ---------------------------------------------------------------------------------

void OfiWire::receive(std::span<std::byte> bytes, GlobalRank peer, TransferId id, Token token) {
  require_no_loss();
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
  from.grants.push_back(grant);
  ++waiting_;
  start_waiting_for(from);
}

void OfiWire::post_receives() {
  while (!unposted_.empty()) {
    auto& operation = *unposted_.back();
    const auto status =
        endpoint_->receive(operation.frame, frame_registration_.descriptor(), operation);
    if (status == OfiEndpoint::kLater) return;
    if (status != 0) return fail(&operation, OfiEndpoint::error_text(status));
    unposted_.pop_back();
  }
}

bool OfiWire::complete() {
  bool told = false;
  for (int i = 0; i < kMostReads; ++i) {
    post_receives();
    completions_.clear();
    endpoint_->read(completions_);
    if (completions_.empty()) break;
    note_stir();
    for (const auto& completion : completions_) told |= finish(completion);
  }
  start_waiting();
  return told;
}

/// Handles a completion. Returns true if the handler was told of it.
bool OfiWire::finish(const OfiCompletion& completion) {
  const bool failed = !completion.error.empty();
  auto* const operation = static_cast<Operation*>(completion.operation);
  // One that is too long is of a stranger, whatever it says.
  if (failed && !completion.is_too_long) fail(operation, completion.error);
  if (operation == nullptr) return !failed && finish_segment(completion.immediate);
  switch (operation->kind) {
    case Kind::kFrame:
      --operation->peer->frames_in_flight;
      --frames_in_flight_;
      free_frames_.push_back(operation);
      return false;
    case Kind::kReceive:
      if (!failed) take_frame(*operation, completion.bytes);
      unposted_.push_back(operation);
      return false;
    case Kind::kWrite:
      return finish_write(*operation, failed);
  }
  return false;
}

bool OfiWire::finish_write(Operation& operation, bool failed) {
  auto& transfer = *operation.transfer;
  auto& to = *transfer.peer;
  --to.writes_in_flight;
  --writes_in_flight_;
  --transfer.writes_in_flight;
  free_writes_.push_back(&operation);
  if (failed && !to.has_left) return false;
  if (failed) give_up(transfer);
  if (transfer.written < transfer.bytes.size() || transfer.writes_in_flight > 0) return false;
  const auto token = transfer.token;
  if (transfer.is_awaited && to.inbox.is_over()) make_readable(to);
  to.outgoing.erase(transfer.id);
  --sends_in_flight_;
  handler().on_sent(token);
  return true;
}

/// Drops the rest of a transfer to a peer that has left, since it need not arrive.
void OfiWire::give_up(Outgoing& transfer) {
  transfer.written = transfer.bytes.size();
  waiting_ -= std::erase(transfer.peer->writing, &transfer);
}

bool OfiWire::finish_segment(std::uint32_t receive) {
  if (receive >= receives_.bound() || receives_[receive].missing == 0) {
    lose("a write over libfabric came that nobody receives", kDiffer);
    return false;
  }
  receives_[receive].peer->refused_since = 0;
  if (--receives_[receive].missing > 0) return false;
  auto whole = receives_.take(receive);
  whole.memory = {};  // before the handler, who may free it
  tell(*whole.peer, whole.id);
  handler().on_received(whole.token);
  return true;
}

/// Lets the next frame tell the peer that a transfer was received; makes a frame if there are many
/// to tell.
void OfiWire::tell(Peer& to, TransferId received) {
  to.outbox.tell(received);
  if (to.outbox.untold() >= most_received_in(options_.frame_bytes) && to.outbox.empty()) {
    queue(to, OfiFrameKind::kNothing);
  }
}

void OfiWire::take_frame(Operation& operation, std::size_t bytes) {
  const auto frame = operation.frame.first(std::min(bytes, operation.frame.size()));
  if (!is_of_job(frame, options_.secret)) return;
  if (!makes_sense(frame, members().size(), members().position(rank()))) {
    return lose(
        base::concat("a frame over libfabric came that makes no sense (", frame.size(), " bytes)"),
        kDiffer);
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
    return lose(
        base::concat("frame ", trailer.number, " from rank ", source.rank,
                     " over libfabric came, and frame ", source.inbox.next(), " was to come"),
        kDiffer);
  }
  if (source.inbox.has_next()) make_readable(source);
}

void OfiWire::take_grants(Peer& from, std::span<const std::byte> grants) {
  for (; grants.size() >= sizeof(OfiGrant); grants = grants.subspan(sizeof(OfiGrant))) {
    OfiGrant grant;
    std::memcpy(&grant, grants.data(), sizeof grant);
    auto& transfer = from.outgoing[grant.id];
    if (transfer.is_granted) {  // it is being sent already
      return lose(base::concat("rank ", from.rank, " granted transfer ", grant.id, " twice"),
                  kDiffer);
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
  start_waiting();
  if (!told) require_no_loss();  // whoever is lost may have said why
  return told;
}

void OfiWire::make_readable(Peer& source) {
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
bool OfiWire::read_frames_of(Peer& source, Reading reading) {
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
bool OfiWire::must_wait(Peer& source, TransferId received) {
  const auto transfer = source.outgoing.find(received);
  if (transfer == source.outgoing.end()) return false;
  auto& sent = transfer->second;
  const bool has_left = sent.is_sent && sent.written == sent.bytes.size();
  if (!has_left || sent.is_awaited) {  // to wait for it could be for ever
    lose(base::concat("rank ", source.rank, " received transfer ", received, " of ",
                      sent.bytes.size(), " bytes, of which ", sent.written, " were sent",
                      sent.is_awaited ? ", twice" : ""),
         kDiffer);
    return false;
  }
  return sent.is_awaited = true;
}

// ---- links, losses, leaving --------------------------------------------------------------------

void OfiWire::check_links() {
  const auto now = clock_.now();
  if (now - checked_ < kBetweenChecks) return;
  checked_ = now;
  for_each_peer([this](Peer& peer) {
    const bool is_busy = !peer.outbox.empty() || peer.frames_in_flight > 0;
    if (peer.has_left || is_busy) return;
    queue(peer, OfiFrameKind::kNothing);
    start_waiting_for(peer);
  });
}

/// Notes that an operation failed. A failure of one to a peer that has left is no loss.
void OfiWire::fail(const Operation* operation, const std::string& why) {
  if (operation == nullptr || operation->peer == nullptr) {
    return lose(base::concat("receiving over libfabric failed (", why, ')'), kGone);
  }
  if (operation->peer->has_left) return;
  lose(base::concat("sending ", operation->bytes, " bytes to rank ", operation->peer->rank,
                    " over libfabric failed (", why, ')'),
       kGone);
}

void OfiWire::lose(const std::string& what, const char* why) {
  if (lost_.empty()) lost_ = what + why;
}

void OfiWire::require_no_loss() const {
  SMP_REQUIRE_AS(PeerLostError, lost_.empty(), "rank ", rank(), ": ", lost_);
}

bool OfiWire::drained() const noexcept {
  return waiting_ == 0 && frames_in_flight_ == 0 && sends_in_flight_ == 0;
}

/// Leaves: every rank says goodbye, which is the last that others hear of it. A rank that nobody
/// polls any more, because it carries nothing, leaves as well.
bool OfiWire::leave() {
  if (leaving_ == Leaving::kLeft) return true;
  complete();
  read_frames(Reading::kNoControl);
  if (leaving_ == Leaving::kNo) {
    if (!drained()) return false;
    for_each_peer([this](Peer& peer) { queue(peer, OfiFrameKind::kGoodbye); });
    start_waiting();
    leaving_ = Leaving::kWaiting;
  }
  bool all = drained();
  for_each_peer([&all](Peer& peer) { all &= peer.has_left; });
  if (all) leaving_ = Leaving::kLeft;
  return all;
}

}  // namespace smp::d2d
