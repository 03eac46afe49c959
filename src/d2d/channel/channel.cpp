// d2d/channel/channel.cpp: see the header.
#include "d2d/channel/channel.h"

#include <c10/util/SmallVector.h>

#include <cstdio>
#include <exception>
#include <optional>
#include <utility>

#include "alive/writing.h"
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
    : traffic_(std::move(routes)), exceptions_at_start_(std::uncaught_exceptions()) {
  counters_.sent_to.resize(static_cast<std::size_t>(size()));
}

Channel::~Channel() {
  const bool unwinding = std::uncaught_exceptions() > exceptions_at_start_;
  const base::Nanoseconds patience =
      traffic_.wires().patience(unwinding || state_ == State::kFailed);
  const bool left = patience == 0 || close(patience);
  traffic_.stop_thread();
  if (left) return;
  const bool failed = state_ == State::kFailed;
  const bool told_handler = on_failure_ != nullptr;  // else it was printed
  if (failed && told_handler && !unwinding) std::fprintf(stderr, "smp: %s\n", end_.c_str());
  traffic_.give_up(failed ? 0 : patience, unwinding);
  // Until the process exits a wire may still write to what it was given: it is never freed.
  base::keep_until_exit(std::move(departures_));
}

// ---- sending ----

void Channel::send(GlobalRank peer, Port port, std::span<const std::byte> header,
                   std::string_view body, c10::ArrayRef<at::Tensor> tensors,
                   const std::shared_ptr<Departure>& departure) {
  check_can_send(peer);
  const FrameToSend frame{port, header, body, tensors};
  auto lock = traffic_.lock();
  Wire& control = routes().control(peer);
  ByteBuffer bytes = control.buffers().take();
  // What collectives send is part of what they go on to write.
  const bool of_server = port == Port::kServer;
  FrameLoans lent(of_server ? routes().loans(peer) : nullptr);
  encode_frame(frame, routes().data(peer), next_transfer_, bytes, data_tensors_, lent);
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
  traffic_.wires()[data.wire].send(elements, peer, data.transfer, token);
}

void Channel::check_can_send(GlobalRank peer) const {
  SMP_REQUIRE(made_here_.is_here(), "sending to rank ", peer, " in a child that rank ", rank(),
              " has forked: only the rank itself talks to others; hand it what the child has made, "
              "through a pipe, say");
  SMP_REQUIRE(routes().reaches(peer), "rank ", rank(), ": sending to rank ", peer,
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

// ---- receiving ----

bool Channel::poll() {
  if (polling_ || state_ == State::kFailed || !made_here_.is_here()) return false;
  polling_ = true;
  bool moved = true;
  guarded([&] {
    const bool delivered = any_kept_ && deliver_kept();
    traffic_.poll(news_);
    moved = delivered || news_.any;
    tell(news_);
    if (news_.failure) std::rethrow_exception(news_.failure);
  });
  news_.clear();
  polling_ = false;
  return moved;
}

/// Tells the news. Whoever is told may send: nobody polls a wire.
void Channel::tell(News& news) {
  for (const Token token : news.sent) {
    const std::optional<std::string> changed = departures_.finish(token);
    if (changed) fail(base::concat("rank ", rank(), ": ", *changed));
  }
  for (Arrival& arrival : news.arrived) deliver(std::move(arrival));
}

void Channel::deliver(Arrival&& arrival) {
  ReadFrame& frame = arrival.frame;
  Inlet& inlet = inlets_[static_cast<std::size_t>(frame.port)];
  if (!inlet.receiver || !inlet.kept.empty()) {
    inlet.kept.push_back(std::move(arrival));
    any_kept_ = true;
    return;
  }
  if (state_ == State::kOpen) {
    ++counters_.frames_received;
    for (const StagedTensor& staged : frame.staged) {
      auto& tensor = frame.tensors[staged.index];
      tensor = on_device(tensor, staged.device);
    }
    inlet.receiver(arrival.source, {frame.header, frame.body, std::move(frame.tensors)});
  }
  const auto lock = traffic_.lock();
  routes().control(arrival.source).buffers().give(std::move(arrival.control));
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
    for (Arrival& arrival : std::exchange(inlet.kept, {})) deliver(std::move(arrival));
    moved = true;
  }
  return moved;
}

void Channel::check_links() {
  guarded([&] {
    const auto lock = traffic_.lock();
    traffic_.wires().check_links();
  });
}

bool Channel::drained() const noexcept {
  const auto lock = traffic_.lock();
  return routes().wires().drained();
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
    traffic_.stop_thread();
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
  const base::EndOfPatience end(deadline);
  state_ = State::kClosing;
  bool left = false;
  for (int idle = 0; state_ != State::kFailed; ++idle) {
    if (poll()) idle = 0;
    guarded([&] {
      const auto lock = traffic_.lock();
      left = traffic_.wires().leave();
    });
    if (left) break;
    if (end.has_come()) return false;
    wait_politely(idle);
  }
  if (!left) return false;
  traffic_.stop_thread();  // it has nothing to look for where nobody is
  News last;
  traffic_.take(last);
  guarded([&] { tell(last); });
  state_ = State::kClosed;
  return true;
}

}  // namespace smp::d2d
