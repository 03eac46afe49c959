// api/planning/message_probe.cpp: ping-pong by broadcasts in groups of two, the way messages go
// that are not lent.
#include "api/planning/message_probe.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "api/rank/rank.h"
#include "base/clock.h"

namespace smp {
namespace {

/// The number of peers that stand for all; they are evenly spread, so that far ones are among them.
constexpr int kMostPeers = 8;
constexpr int kWarmUp = 3;
constexpr int kRoundTrips = 15;
constexpr std::int64_t kLargeBytes = 4 << 20;

/// Returns the median; 0 if there are no values.
double median(std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class Probe {
 public:
  explicit Probe(const Rank& rank) : rank_(rank), pipeline_(rank.groups().of(Group::kPp)) {}

  int size() const { return pipeline_.size(); }

  /// Measures the cost of messages between pp_rank 0 and some of `peers`; the result is on pp_rank
  /// 0. Nothing if there are no peers.
  std::optional<simulate::Machine::Link> link(const std::vector<int>& peers) const {
    const double small = seconds(1, peers);
    const double large = seconds(kLargeBytes, peers);
    if (peers.empty()) return std::nullopt;
    const auto bytes = static_cast<double>(kLargeBytes);
    return simulate::Machine::Link{small, large > small ? bytes / (large - small) : 0};
  }

 private:
  /// Returns the median time of one message in seconds, which is half a round trip.
  double seconds(std::int64_t bytes, const std::vector<int>& peers) const {
    const auto payload = at::empty({bytes}, at::kByte);
    std::vector<double> seconds;
    const auto count = std::min<std::size_t>(kMostPeers, peers.size());
    for (std::size_t i = 1; i <= count; ++i) {
      const int peer = peers[i * peers.size() / count - 1];
      if (pipeline_.rank() == 0 || pipeline_.rank() == peer) measure(peer, payload, seconds);
    }
    return median(seconds);
  }

  /// Adds the seconds of messages to one peer. @param peer  position in the pipeline
  void measure(int peer, const at::Tensor& payload, std::vector<double>& seconds) const {
    const auto& members = pipeline_.members();
    const auto pair = rank_.groups().among({members[0], members[peer]});
    const base::SteadyClock clock;
    for (int i = 0; i < kWarmUp + kRoundTrips; ++i) {
      const auto start = clock.now();
      for (int sender = 0; sender < 2; ++sender) {
        d2d::Payload own;
        if (sender == pair.rank()) own.tensors = {payload};
        pair.broadcast(std::move(own), pair.members()[sender]);
      }
      const auto round_trip = static_cast<double>(clock.now() - start);
      if (i >= kWarmUp) seconds.push_back(round_trip / 2 / base::kSecond);
    }
  }

  const Rank& rank_;
  const d2d::Communicator pipeline_;
};

void take_bandwidth(double& of_machine, const simulate::Machine::Link& measured) {
  if (measured.bytes_per_second > 0) of_machine = measured.bytes_per_second;
}

/// Sets the latency of `link`. @param measured  nothing if no peer is at the end of such a link
void take_latency(simulate::Machine::Link& link,
                  const std::optional<simulate::Machine::Link>& measured,
                  const simulate::Machine& machine) {
  if (measured) link.latency = std::max(0.0, measured->latency - 2 * machine.handling);
}

}  // namespace

simulate::Machine with_measured_messages(const Rank& rank, simulate::Machine machine, bool lends) {
  const Probe probe(rank);
  std::vector<int> near, across, far;
  for (int peer = 1; peer < probe.size(); ++peer) {
    auto& kind = machine.on_network(0, peer) ? far : machine.is_near(0, peer) ? near : across;
    kind.push_back(peer);
  }
  const auto to_near = probe.link(near), to_across = probe.link(across), to_far = probe.link(far);
  if (!rank.is_first_stage()) return machine;
  if (to_near) machine.set_message_seconds(to_near->latency);
  take_latency(machine.across_sockets, to_across, machine);
  take_latency(machine.network, to_far, machine);
  if (to_near && !lends) take_bandwidth(machine.bytes_per_second, *to_near);
  if (to_across && !lends) take_bandwidth(machine.across_sockets.bytes_per_second, *to_across);
  if (to_far) take_bandwidth(machine.network.bytes_per_second, *to_far);
  return machine;
}

}  // namespace smp
