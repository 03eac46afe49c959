// d2d/local_transport.cpp: see the header.
#include "d2d/local_transport.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "d2d/tensor_data.h"

namespace smp::d2d {
namespace {

// Exponential with a heavy tail. Spelled out: the standard's distributions differ between
// libraries.
base::Nanoseconds random_delay(base::SimClock& clock, base::Nanoseconds mean) {
  const double uniform = static_cast<double>(clock.random()() >> 11) * 0x1p-53;
  const int stretch = clock.random()() % 16 == 0 ? 20 : 1;
  const double delay = -std::log1p(-uniform) * static_cast<double>(mean);
  return 1 + static_cast<base::Nanoseconds>(delay) * stretch;
}

bool has_larger_tensor(const Frame& frame, std::size_t bytes) {
  return std::any_of(frame.tensors.begin(), frame.tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.nbytes() > bytes;
  });
}

}  // namespace

LocalHub::LocalHub(int ranks, LocalOptions options)
    : options_(options), mailboxes_(std::max(ranks, 0)), in_flight_(std::max(ranks, 0)) {
  SMP_REQUIRE(ranks > 0, "a local transport between ", ranks, " ranks: at least one is needed.");
  last_arrival_.resize(static_cast<std::size_t>(ranks) * ranks);
}

bool LocalHub::loses_next() {
  return std::find(lost_.begin(), lost_.end(), frames_sent_++) != lost_.end();
}

base::Nanoseconds LocalHub::arrival(int source, int destination, bool ordered) {
  base::SimClock& clock = *options_.clock;
  const base::Nanoseconds delay =
      options_.fixed_delay ? *options_.fixed_delay : random_delay(clock, options_.mean_delay);
  base::Nanoseconds arrival = clock.now() + delay;
  if (ordered) {
    base::Nanoseconds& last = last_arrival_[source * mailboxes_.size() + destination];
    last = arrival = std::max(last + 1, arrival);
  }
  return arrival;
}

void LocalHub::trace(int source, int destination, base::Nanoseconds arrival, const Frame& frame) {
  base::SimClock& clock = *options_.clock;
  clock.trace(static_cast<std::uint64_t>(source) * mailboxes_.size() + destination);
  clock.trace(static_cast<std::uint64_t>(arrival));
  clock.trace(XXH3_64bits(frame.header.data(), frame.header.size()));
}

LocalTransport::LocalTransport(std::shared_ptr<LocalHub> hub, int rank)
    : hub_(std::move(hub)), rank_(rank) {
  SMP_REQUIRE(rank >= 0 && rank < hub_->size(), "rank ", rank, " of a local transport between ",
              hub_->size(), " ranks: out of range.");
  LocalHub::Mailbox& mailbox = hub_->mailboxes_[rank];
  SMP_REQUIRE(mailbox.owner == nullptr, "rank ", rank, " has a local transport already.");
  mailbox.owner = this;
}

LocalTransport::~LocalTransport() { hub_->mailboxes_[rank_].owner = nullptr; }

void LocalTransport::send(int peer, Frame frame) {
  SMP_REQUIRE(peer >= 0 && peer < size() && peer != rank_, "rank ", rank_, ": sending to rank ",
              peer, " of ", size(), ": it must be another rank of this transport.");
  for (std::size_t i = 0; i < frame.tensors.size(); ++i) {
    if (frame.tensors[i].defined()) check_sendable(frame.tensors[i], i);
  }
  for (at::Tensor& tensor : frame.tensors) tensor = independent_copy(tensor);
  count_sent(frame);
  if (hub_->loses_next()) return;
  ++hub_->in_flight_[rank_];
  if (hub_->options_.clock == nullptr) {
    hub_->mailboxes_[peer].arrived.push_back({rank_, std::move(frame)});
    return;
  }
  const bool ordered = !has_larger_tensor(frame, hub_->options_.inline_bytes);
  const base::Nanoseconds arrival = hub_->arrival(rank_, peer, ordered);
  hub_->trace(rank_, peer, arrival, frame);
  auto mail = std::make_shared<LocalHub::Mail>(LocalHub::Mail{rank_, std::move(frame)});
  hub_->options_.clock->at(arrival, [hub = hub_, peer, mail] {
    LocalHub::Mailbox& mailbox = hub->mailboxes_[peer];
    mailbox.arrived.push_back(std::move(*mail));
    if (mailbox.owner != nullptr) mailbox.owner->deliver_all();
  });
}

void LocalTransport::count_sent(const Frame& frame) {
  ++counters_.frames_sent;
  counters_.header_bytes_sent += frame.header.size();
  for (const at::Tensor& tensor : frame.tensors) {
    if (tensor.defined()) counters_.tensor_bytes_sent += tensor.nbytes();
  }
}

bool LocalTransport::poll() {
  const std::uint64_t before = counters_.frames_received;
  deliver_all();
  return counters_.frames_received != before;
}

// The receiver may send, even to a rank that answers at once: it is not entered again.
void LocalTransport::deliver_all() {
  if (delivering_ || !receiver_) return;
  delivering_ = true;
  std::deque<LocalHub::Mail>& arrived = hub_->mailboxes_[rank_].arrived;
  while (!arrived.empty()) {
    LocalHub::Mail mail = std::move(arrived.front());
    arrived.pop_front();
    --hub_->in_flight_[mail.source];
    ++counters_.frames_received;
    receiver_(mail.source, std::move(mail.frame));
  }
  delivering_ = false;
}

}  // namespace smp::d2d
