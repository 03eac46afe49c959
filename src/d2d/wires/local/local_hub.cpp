// d2d/wires/local/local_hub.cpp: see the header.
#include "d2d/wires/local/local_hub.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace smp::d2d {
namespace {

// Exponential with a heavy tail. Spelled out: the standard's distributions differ between
// libraries.
base::Nanoseconds random_delay(fiber::SimClock& clock, base::Nanoseconds mean) {
  const double uniform = static_cast<double>(clock.random()() >> 11) * 0x1p-53;
  const int stretch = clock.random()() % 16 == 0 ? 20 : 1;
  const double delay = -std::log1p(-uniform) * static_cast<double>(mean);
  return 1 + static_cast<base::Nanoseconds>(delay) * stretch;
}

}  // namespace

LocalHub::LocalHub(int ranks, LocalOptions options) : size_(ranks), options_(options) {
  SMP_REQUIRE(ranks > 0, "local wires between ", ranks, " ranks: at least one is needed.");
}

void LocalHub::Space::arrive(int destination, Control&& control) {
  if (end(destination).closed) {
    --end(control.source).in_flight;
  } else {
    end(destination).control.push_back(std::move(control));
  }
}

void LocalHub::Space::arrive(int destination, Data&& data) {
  end(data.transfer.first).sent.push_back(data.token);
  End& reached = end(destination);
  if (reached.closed) return;
  reached.data.emplace(data.transfer, std::move(data.bytes));
  if (reached.receives.count(data.transfer) > 0) reached.ready.push_back(data.transfer);
}

std::shared_ptr<LocalHub::Space> LocalHub::open(GlobalRank rank, const Members& members) {
  for (const GlobalRank member : members) {
    SMP_REQUIRE(member.value() < size_, "connecting the ranks ", members,
                ": they must be within 0 and ", size_ - 1, ", the ranks of this process.");
  }
  const std::size_t opening = openings_[{members.ranks(), rank}]++;
  std::shared_ptr<Space>& space = spaces_[{members.ranks(), opening}];
  if (space == nullptr) {
    const auto size = static_cast<std::size_t>(members.size());
    space = std::make_shared<Space>();
    space->members = members;
    space->ends = std::vector<End>(size);
    space->last_arrival.resize(size * size);
  }
  return space;
}

bool LocalHub::loses_next() {
  return std::find(lost_.begin(), lost_.end(), frames_sent_++) != lost_.end();
}

base::Nanoseconds LocalHub::delay() {
  if (options_.fixed_delay) return *options_.fixed_delay;
  return random_delay(*options_.clock, options_.mean_delay);
}

base::Nanoseconds LocalHub::control_arrival(Space& space, int source, int destination) {
  const auto pair = static_cast<std::size_t>(source * space.members.size() + destination);
  base::Nanoseconds& last = space.last_arrival[pair];
  last = std::max(last + 1, options_.clock->now() + delay());
  return last;
}

void LocalHub::trace(const Space& space, int source, int destination, base::Nanoseconds arrival,
                     std::uint64_t content) {
  const auto pair = space.members[source].index() * static_cast<std::size_t>(size_) +
                    space.members[destination].index();
  options_.clock->trace(pair);
  options_.clock->trace(static_cast<std::uint64_t>(arrival));
  options_.clock->trace(content);
}

}  // namespace smp::d2d
