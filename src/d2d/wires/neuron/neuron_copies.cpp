// d2d/wires/neuron/neuron_copies.cpp: see the header.
#include "d2d/wires/neuron/neuron_copies.h"

#include <exception>
#include <utility>

#include "base/check.h"
#include "base/keep_until_exit.h"
#include "d2d/wire/wire.h"
#include "d2d/wires/neuron/neuron_status.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

constexpr int kQueue = 0;  // of an execution unit; all have this one
constexpr base::Nanoseconds kLongestCopy = 30 * base::kSecond;
constexpr base::Nanoseconds kEndPatience = 5 * base::kSecond;

}  // namespace

NeuronCopies::NeuronCopies(NeuronRuntime& runtime, RelativeCore core)
    : runtime_(runtime), core_(core) {
  const auto& library = runtime_.library();
  if (library.interface != NeuronInterface::kErrorTracker) return;
  runtime_.require_usable("nrta_error_tracker_create");
  runtime_.require(library.tracked.create(static_cast<std::uint32_t>(core.value()), &tracker_),
                   "preparing copies", "nrta_error_tracker_create", core);
}

NeuronCopies::~NeuronCopies() {
  if (runtime_.is_closed()) return;
  if (wait()) {
    if (tracker_ != nullptr) runtime_.library().tracked.destroy(tracker_);
  } else {  // what is under way may still write its result
    base::keep_until_exit(std::move(under_way_));
  }
}

bool NeuronCopies::wait() noexcept {
  if (runtime_.is_closed()) return true;
  const auto end = clock_.now() + kEndPatience;
  try {
    for (int rounds = 0; !idle() && clock_.now() < end; ++rounds) {
      for (auto& queue : under_way_) {
        while (!queue.empty() && is_done(*queue.front())) queue.pop();
      }
      if (!idle()) wait_politely(rounds);
    }
  } catch (const std::exception&) {  // a core that is lost; whoever asked was told
  }
  return idle();
}

bool NeuronCopies::start(Direction direction, const NeuronPlace& place, std::byte* host,
                         std::size_t size, Ticket ticket) {
  runtime_.require_usable("an asynchronous copy");
  SMP_ASSERT(size <= place.room, size, " bytes where a tensor has ", place.room);
  auto& queue = under_way_[static_cast<std::size_t>(direction)];
  if (spare_.empty()) spare_.push_back(std::make_unique<Copy>());
  *spare_.back() = Copy{0, ticket, size, clock_.now(), kNoResult};
  const int status = put(direction, place, host, *spare_.back());
  if (status == neuron_status::kSuccess) {
    queue.push(std::move(spare_.back()));
    spare_.pop_back();
    return true;
  }
  const Copy refused = *spare_.back();
  if (status == neuron_status::kQueueFull) return false;
  runtime_.fail(status, describe(direction, refused),
                direction == Direction::kToHost ? "nrta_tensor_read" : "nrta_tensor_write", core_);
}

/// Calls what the installed release has under the name.
int NeuronCopies::put(Direction direction, const NeuronPlace& place, std::byte* host,
                      Copy& copy) const {
  const auto& library = runtime_.library();
  const bool to_host = direction == Direction::kToHost;
  if (library.interface == NeuronInterface::kErrorTracker) {
    if (to_host) {
      return library.tracked.read(host, place.tensor, place.offset, copy.size, kQueue, tracker_,
                                  &copy.sequence);
    }
    return library.tracked.write(place.tensor, host, place.offset, copy.size, kQueue, tracker_,
                                 &copy.sequence);
  }
  const auto core = static_cast<std::uint32_t>(core_.value());
  if (to_host) {
    return library.told.read(host, place.tensor, place.offset, copy.size, core, kQueue,
                             &copy.result, &copy.sequence);
  }
  return library.told.write(place.tensor, host, place.offset, copy.size, core, kQueue, &copy.result,
                            &copy.sequence);
}

/// Reads the flag: what the status says of a copy that is under way is not agreed on.
bool NeuronCopies::is_done(const Copy& copy) const {
  bool done = false;
  const int status = runtime_.library().is_completed(copy.sequence, &done);
  if (!done && status != neuron_status::kSuccess) {
    runtime_.fail(status, "asking for a copy", "nrta_is_completed", core_);
  }
  return done;
}

/// Returns how a copy went that is done.
int NeuronCopies::result_of(const Copy& copy) const {
  const auto& library = runtime_.library();
  if (library.interface == NeuronInterface::kResult) return copy.result;
  const NeuronLibrary::Error* errors = nullptr;
  std::size_t count = 0;
  runtime_.require(library.tracked.get_list(tracker_, &errors, &count), "asking how a copy went",
                   "nrta_error_tracker_get_list", core_);
  for (std::size_t i = 0; i < count; ++i) {
    if (errors[i].sequence == copy.sequence) return static_cast<int>(errors[i].status);
  }
  return neuron_status::kSuccess;
}

const std::vector<NeuronCopies::Ticket>& NeuronCopies::done(Direction direction) {
  done_.clear();
  auto& queue = under_way_[static_cast<std::size_t>(direction)];
  if (queue.empty()) return done_;
  runtime_.require_usable("nrta_is_completed");
  while (!queue.empty() && is_done(*queue.front())) {
    const int result = result_of(*queue.front());
    const Copy copy = *queue.front();
    spare_.push_back(queue.pop());
    runtime_.require(result, describe(direction, copy), "what it left", core_);
    done_.push_back(copy.ticket);
  }
  return done_;
}

void NeuronCopies::require_alive() {
  for (std::size_t i = 0; i < under_way_.size(); ++i) {
    if (under_way_[i].empty()) continue;
    const auto& oldest = *under_way_[i].front();
    const auto waited = clock_.now() - oldest.started;
    SMP_REQUIRE_AS(PeerLostError, waited < kLongestCopy, "rank ", runtime_.rank(), ", Neuron core ",
                   runtime_.claim().absolute(core_), ": ",
                   describe(static_cast<Direction>(i), oldest), " is not done after ",
                   waited / base::kSecond,
                   " s: the core does not answer; restart from a checkpoint (`dmesg` tells what "
                   "the driver saw)");
  }
}

std::string NeuronCopies::describe(Direction direction, const Copy& copy) const {
  return base::concat("copying ", copy.size, " bytes ",
                      direction == Direction::kToHost ? "to the host" : "from the host");
}

}  // namespace smp::d2d
