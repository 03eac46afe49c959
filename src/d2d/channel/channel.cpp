// d2d/channel/channel.cpp: see the header.
#include "d2d/channel/channel.h"

#include <c10/util/SmallVector.h>

#include <cstdio>
#include <exception>
#include <optional>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/keep_until_exit.h"
#include "d2d/channel/frame_encoder.h"
#include "d2d/tensors/copy_on_write.h"
#include "d2d/tensors/tensor_data.h"

namespace smp::d2d {
namespace {

/// Keeps the bytes of a tensor that is being sent as they are, since a program may write to what it
/// handed on, as in one process. And a storage is not its memory: one that shares it, because it
/// was lent or cloned, gets another as soon as somebody takes a pointer to write, be it only to
/// read; and the others may end before what is sent from there has left. A small part of a large
/// storage is copied, lest a write copies all of that.
c10::intrusive_ptr<c10::StorageImpl> keep_memory(at::Tensor& tensor) {
  if (!tensor.is_cpu()) return nullptr;
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  if (tensor.nbytes() < storage.nbytes() / 2) {
    tensor = independent_copy(tensor);
    return nullptr;
  }
  return shared_until_written(storage);
}

}  // namespace

Channel::Channel(Routes routes)
    : routes_(std::move(routes)), exceptions_at_start_(std::uncaught_exceptions()) {
  routes_.set_handler(this);
  counters_.sent_to.resize(static_cast<std::size_t>(size()));
}

Channel::~Channel() {
  const bool unwinding = std::uncaught_exceptions() > exceptions_at_start_;
  const base::Nanoseconds patience = routes_.patience(unwinding || state_ == State::kFailed);
  const bool left = patience == 0 || close(patience);
  progress_.reset();
  if (!left) {
    const bool failed = state_ == State::kFailed;
    const bool told_handler = on_failure_ != nullptr;  // else it was printed
    if (failed && told_handler && !unwinding) std::fprintf(stderr, "smp: %s\n", end_.c_str());
    routes_.give_up(failed ? 0 : patience, unwinding);
    // Until the process exits a wire may still write to what it was given: it is never freed.
    base::keep_until_exit(std::move(departures_));
    base::keep_until_exit(std::move(arrivals_));
  }
  routes_.set_handler(nullptr);
}

// ---- sending ----

void Channel::send(GlobalRank peer, Port port, std::span<const std::byte> header,
                   std::string_view body, c10::ArrayRef<at::Tensor> tensors,
                   const std::shared_ptr<Departure>& departure) {
  check_can_send(peer);
  const FrameToSend frame{port, header, body, tensors};
  auto lock = own_wires();
  Wire& control = routes_.control(peer);
  ByteBuffer bytes = control.buffers().take();
  // What collectives send is part of what they go on to write.
  const bool of_server = port == Port::kServer;
  FrameLoans lent(of_server ? routes_.loans(peer) : nullptr);
  encode_frame(frame, routes_.data(peer), next_transfer_, bytes, data_tensors_, lent);
  // Copies, for which there may be no memory, before the peer hears of the frame.
  c10::SmallVector<c10::intrusive_ptr<c10::StorageImpl>, 8> memory;
  for (DataTensor& data : data_tensors_) {
    memory.push_back(of_server ? keep_memory(data.tensor) : nullptr);
  }
  counters_.count_sent(frame, members().position(peer));
  control.post(peer, std::move(bytes));
  lent.keep();
  try {
    for (std::size_t i = 0; i < data_tensors_.size(); ++i) {
      send_tensor(peer, data_tensors_[i], std::move(memory[i]), departure);
    }
  } catch (const PeerLostError&) {  // the peer waits for the rest of the frame
    lock = {};
    guarded([] { throw; });
    throw;
  }
  data_tensors_.clear();
}

void Channel::send_tensor(GlobalRank peer, DataTensor& data,
                          c10::intrusive_ptr<c10::StorageImpl> memory,
                          const std::shared_ptr<Departure>& departure) {
  const std::span<const std::byte> elements(
      static_cast<const std::byte*>(data.tensor.const_data_ptr()), data.tensor.nbytes());
  const Token token =
      departures_.start(peer, data.index, std::move(data.tensor), std::move(memory), departure);
  routes_.wires()[data.wire]->send(elements, peer, data.transfer, token);
}

void Channel::check_can_send(GlobalRank peer) const {
  SMP_REQUIRE(routes_.reaches(peer), "rank ", rank(), ": sending to rank ", peer,
              ": it must be another rank of this channel, which connects ", members(), '.');
  SMP_REQUIRE(state_ != State::kClosing && state_ != State::kClosed, "rank ", rank(),
              ": sending to rank ", peer, ": this channel was closed before; send before closing.");
  SMP_REQUIRE_AS(PeerLostError, state_ != State::kFailed, "rank ", rank(), ": sending to rank ",
                 peer, ": the channel has failed before (", end_, "); restart from a checkpoint.");
}

void ChannelCounters::count_sent(const FrameToSend& frame, int peer) {
  std::size_t tensor_bytes = 0;
  for (const at::Tensor& tensor : frame.tensors) {
    if (tensor.defined()) tensor_bytes += tensor.nbytes();
  }
  ++frames_sent;
  header_bytes_sent += frame.header.size() + frame.body.size();
  tensor_bytes_sent += tensor_bytes;
  auto& own = sent_to[static_cast<std::size_t>(peer)];
  ++own.frames;
  own.tensor_bytes += static_cast<std::int64_t>(tensor_bytes);
}

void Channel::on_sent(Token token) {
  if (beside_thread_) return moved_.sent.push_back(token);
  guarded([&] { finish_sent(token); });
}

void Channel::finish_sent(Token token) {
  const std::optional<std::string> changed = departures_.finish(token);
  if (changed) fail(base::concat("rank ", rank(), ": ", *changed));
}

// ---- receiving ----

bool Channel::poll() {
  if (polling_ || state_ == State::kFailed) return false;
  polling_ = true;
  bool moved = true;
  guarded([&] { moved = beside_thread_ ? poll_and_tell() : poll_and_deliver(); });
  polling_ = false;
  return moved;
}

bool Channel::poll_and_deliver() {
  bool moved = any_kept_ && deliver_kept();
  require_in_time();
  moved |= routes_.poll();
  routes_.take_back_loans();
  if (!received_.empty()) moved |= deliver_received();
  return moved;
}

/// Fails if tensors are overdue. A rank that was busy with other things for longer than the
/// deadline first takes what has come meanwhile: it must have polled for the missing tensors that
/// often.
void Channel::require_in_time() {
  constexpr std::uint32_t kPollsToAsk = 1 << 18;  // half a second, or more where the thread sleeps
  if (deadline_ == 0 || arrivals_.empty()) {
    polls_ = 0;
    return;
  }
  if (++polls_ % kPollsToAsk != 0) return;
  const auto late = arrivals_.overdue(deadline_);
  SMP_REQUIRE_AS(PeerLostError, late.empty(), "rank ", rank(), ": ", late,
                 ": the network loses data, or that rank does not send; restart from a checkpoint, "
                 "or raise abort_seconds");
}

void Channel::check_links() {
  guarded([&] {
    const auto lock = own_wires();
    routes_.check_links();
  });
}

bool Channel::drained() const noexcept {
  const auto lock = own_wires();
  return routes_.drained();
}

void Channel::on_control(GlobalRank source, ByteBuffer&& bytes) {
  const auto take = [&] {
    // It may be an answer, which tells that what it answers has arrived: let go of that first, so
    // that whoever gets the answer may write to it.
    routes_.complete_beside(routes_.control(source));
    return arrivals_.read(source, std::move(bytes), routes_);
  };
  if (beside_thread_) {
    if (auto arrival = take()) moved_.arrived.push_back(std::move(*arrival));
    return;
  }
  guarded([&] {
    if (auto arrival = take()) deliver(std::move(*arrival));
  });
}

void Channel::on_received(Token token) {
  const auto take = [&] {
    auto& whole = beside_thread_ ? moved_.arrived : received_;
    if (auto arrival = arrivals_.received(token)) whole.push_back(std::move(*arrival));
  };
  if (beside_thread_) return take();
  guarded(take);
}

// ---- with a progress thread ----

void Channel::move_beside_rank() {
  const auto* const bound = routes_.bound_to_one_thread();
  SMP_REQUIRE(bound == nullptr, "rank ", rank(), ": a progress thread beside the wire ",
              bound->name(), ", which only the thread of the rank may call; use other wires.");
  if (beside_thread_) return;
  beside_thread_ = true;
  try {
    progress_ = std::make_unique<ProgressThread>([this] { return move_aside(); });
  } catch (const std::system_error& error) {
    throw UnsupportedError(base::concat("rank ", rank(), ": no progress thread: ", error.what(),
                                        "; allow this user more processes (ulimit -u, or the "
                                        "container's limit), or set progress_thread = false"));
  }
}

/// Returns the lock for what the progress thread uses as well; no lock where there is no such
/// thread.
std::unique_lock<std::mutex> Channel::own_wires() const {
  if (!beside_thread_) return {};
  std::unique_lock lock(wires_, std::try_to_lock);
  if (lock) return lock;
  if (progress_) progress_->set_owner_waits(true);  // or it might be first again and again
  lock.lock();
  if (progress_) progress_->set_owner_waits(false);
  return lock;
}

/// Moves bytes on the progress thread, where LibTorch sees new tensors and no others.
ProgressThread::Motion Channel::move_aside() noexcept {
  using Motion = ProgressThread::Motion;
  const std::lock_guard lock(wires_);
  if (moved_.failure) return Motion::kNone;
  if (poll_wires()) return Motion::kSome;
  return arrivals_.empty() && routes_.drained() ? Motion::kNone : Motion::kAwaited;
}

/// Polls the wires and puts what moved, and what went wrong, into moved_. @return true if bytes
/// moved
bool Channel::poll_wires() noexcept {
  if (moved_.failure) return false;
  try {
    const bool moved = routes_.poll();
    // What has arrived may be an answer; see deliver_received().
    for (std::size_t seen = 0; seen < moved_.arrived.size();) {
      seen = moved_.arrived.size();
      routes_.complete();
    }
    moved_.any |= moved;
    return routes_.take_stir() || moved;
  } catch (...) {
    moved_.any = true;
    moved_.failure = std::current_exception();
    return true;
  }
}

/// Does the work of poll_and_deliver(), but calls the receivers, who may send, when nobody needs
/// the wires.
bool Channel::poll_and_tell() {
  const bool delivered = any_kept_ && deliver_kept();
  Moved news;
  {
    const auto lock = own_wires();
    require_in_time();
    poll_wires();
    routes_.take_back_loans();
    std::swap(news, moved_);
    moved_.failure = news.failure;  // a wire that is broken is left alone
  }
  if (progress_) progress_->note_owner_moved();
  for (const Token token : news.sent) finish_sent(token);
  for (Arrival& arrival : news.arrived) deliver(std::move(arrival));
  if (news.failure) std::rethrow_exception(news.failure);
  return delivered || news.any;
}

// It may be an answer as well, and wires look at transfers a few at a time.
bool Channel::deliver_received() {
  const bool moved = !received_.empty();
  while (!received_.empty()) {
    routes_.complete();
    for (Arrival& arrival : std::exchange(received_, {})) deliver(std::move(arrival));
  }
  return moved;
}

void Channel::deliver(Arrival&& arrival) {
  Inlet& inlet = inlets_[static_cast<std::size_t>(arrival.frame.port)];
  if (inlet.receiver && inlet.kept.empty()) {
    hand_over(std::move(arrival));
  } else {
    inlet.kept.push_back(std::move(arrival));
    any_kept_ = true;
  }
}

void Channel::hand_over(Arrival&& arrival) {
  ReadFrame& frame = arrival.frame;
  if (state_ == State::kOpen) {
    ++counters_.frames_received;
    for (const StagedTensor& staged : frame.staged) {
      auto& tensor = frame.tensors[staged.index];
      tensor = on_device(tensor, staged.device);
    }
    const Receiver& receiver = inlets_[static_cast<std::size_t>(frame.port)].receiver;
    receiver(arrival.source, {frame.header, frame.body, std::move(frame.tensors)});
  }
  const auto lock = own_wires();
  routes_.control(arrival.source).buffers().give(std::move(arrival.control));
}

bool Channel::deliver_kept() {
  bool moved = false;
  any_kept_ = false;
  for (Inlet& inlet : inlets_) {
    if (inlet.kept.empty()) continue;
    if (!inlet.receiver) {
      any_kept_ = true;
      continue;
    }
    for (Arrival& arrival : std::exchange(inlet.kept, {})) hand_over(std::move(arrival));
    moved = true;
  }
  return moved;
}

void Channel::set_receiver(Port port, Receiver receiver) {
  inlets_[static_cast<std::size_t>(port)].receiver = std::move(receiver);
}

// ---- failing ----

// Nobody waits for what goes wrong here.
template <class Action>
void Channel::guarded(Action&& action) noexcept {
  if (state_ == State::kFailed) return;
  try {
    action();
  } catch (const std::exception& error) {
    state_ = State::kFailed;
    end_ = error.what();
    if (!end_.starts_with("rank ")) end_ = base::concat("rank ", rank(), ": ", end_);
    progress_.reset();
    fail(end_);
  }
}

void Channel::end(const std::string& why) noexcept {
  guarded([&] { throw PeerLostError(why); });
}

void Channel::fail(const std::string& what) noexcept {
  if (on_failure_) {
    on_failure_(what);
  } else {
    std::fprintf(stderr, "smp: %s\n", what.c_str());
  }
}

// ---- leaving ----

bool Channel::close(base::Nanoseconds deadline) {
  if (state_ == State::kClosed) return true;
  if (state_ == State::kFailed) return false;
  const base::SteadyClock clock;
  const base::Nanoseconds end = clock.now() + deadline;
  state_ = State::kClosing;
  bool left = false;
  for (int idle = 0; state_ != State::kFailed; ++idle) {
    if (poll()) idle = 0;
    guarded([&] {
      const auto lock = own_wires();
      left = routes_.leave();
    });
    if (left) break;
    if (clock.now() > end) return false;
    wait_politely(idle);
  }
  if (!left) return false;
  progress_.reset();  // it has nothing to look for where nobody is
  guarded([&] {
    for (const Token token : std::exchange(moved_.sent, {})) finish_sent(token);
  });
  state_ = State::kClosed;
  return true;
}

}  // namespace smp::d2d
