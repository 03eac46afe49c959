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

}  // namespace

NeuronCopies::NeuronCopies(NeuronRuntime& runtime, RelativeCore core) : requests_(runtime, core) {}

NeuronCopies::~NeuronCopies() {
  if (wait()) return;
  requests_.keep_tracker();  // what is under way may still write its result
  base::keep_until_exit(std::move(under_way_));
}

bool NeuronCopies::wait() noexcept {
  if (requests_.runtime().is_closed()) return true;
  const auto end = requests_.now() + NeuronRequests::kEndPatience;
  try {
    for (int rounds = 0; !idle() && requests_.now() < end; ++rounds) {
      for (auto& queue : under_way_) {
        while (!queue.empty() && requests_.is_done(*queue.front())) queue.pop();
      }
      if (!idle()) wait_politely(rounds);
    }
  } catch (const std::exception&) {  // a core that is lost; whoever asked was told
  }
  return idle();
}

bool NeuronCopies::start(Direction direction, const NeuronPlace& place, std::byte* host,
                         std::size_t size, Ticket ticket) {
  requests_.runtime().require_usable("an asynchronous copy");
  SMP_ASSERT(size <= place.room, size, " bytes where a tensor has ", place.room);
  auto& queue = under_way_[static_cast<std::size_t>(direction)];
  if (spare_.empty()) spare_.push_back(std::make_unique<Copy>());
  *spare_.back() = Copy{{.started = requests_.now()}, ticket, size};
  const int status = put(direction, place, host, *spare_.back());
  if (status == neuron_status::kSuccess) {
    queue.push(std::move(spare_.back()));
    spare_.pop_back();
    return true;
  }
  const Copy refused = *spare_.back();
  if (status == neuron_status::kQueueFull) return false;
  requests_.runtime().fail(
      status, describe(direction, refused),
      direction == Direction::kToHost ? "nrta_tensor_read" : "nrta_tensor_write", requests_.core());
}

/// Calls what the installed release has under the name.
int NeuronCopies::put(Direction direction, const NeuronPlace& place, std::byte* host,
                      Copy& copy) const {
  const auto& library = requests_.library();
  const bool to_host = direction == Direction::kToHost;
  if (library.interface == NeuronInterface::kErrorTracker) {
    if (to_host) {
      return library.tracked.read(host, place.tensor, place.offset, copy.size, kQueue,
                                  requests_.tracker(), &copy.sequence);
    }
    return library.tracked.write(place.tensor, host, place.offset, copy.size, kQueue,
                                 requests_.tracker(), &copy.sequence);
  }
  const auto core = static_cast<std::uint32_t>(requests_.core().value());
  if (to_host) {
    return library.told.read(host, place.tensor, place.offset, copy.size, core, kQueue,
                             &copy.result, &copy.sequence);
  }
  return library.told.write(place.tensor, host, place.offset, copy.size, core, kQueue, &copy.result,
                            &copy.sequence);
}

const std::vector<NeuronCopies::Ticket>& NeuronCopies::done(Direction direction) {
  done_.clear();
  auto& queue = under_way_[static_cast<std::size_t>(direction)];
  if (queue.empty()) return done_;
  requests_.runtime().require_usable("nrta_is_completed");
  while (!queue.empty() && requests_.is_done(*queue.front())) {
    const int result = requests_.result_of(*queue.front());
    const Copy copy = *queue.front();
    spare_.push_back(queue.pop());
    requests_.runtime().require(
        result, [&] { return describe(direction, copy); }, "what it left", requests_.core());
    done_.push_back(copy.ticket);
  }
  return done_;
}

void NeuronCopies::require_alive() {
  for (std::size_t i = 0; i < under_way_.size(); ++i) {
    if (under_way_[i].empty()) continue;
    const auto& oldest = *under_way_[i].front();
    const auto waited = requests_.now() - oldest.started;
    SMP_REQUIRE_AS(
        PeerLostError, waited < NeuronRequests::kLongestCopy, "rank ", requests_.runtime().rank(),
        ", Neuron core ", requests_.runtime().claim().absolute(requests_.core()), ": ",
        describe(static_cast<Direction>(i), oldest), " is not done after ", waited / base::kSecond,
        " s: the core does not answer; restart from a checkpoint (`dmesg` tells what "
        "the driver saw)");
  }
}

std::string NeuronCopies::describe(Direction direction, const Copy& copy) const {
  return base::concat("copying ", copy.size, " bytes ",
                      direction == Direction::kToHost ? "to the host" : "from the host");
}

}  // namespace smp::d2d
