// api/message_probe.cpp: ping-pong by broadcasts in groups of two, the way every message goes.
#include "api/message_probe.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "api/runtime.h"
#include "base/clock.h"

namespace smp {
namespace {

/// Peers that stand for all, evenly spread: far ones among them.
constexpr int kMostPeers = 8;
constexpr int kWarmUp = 3;
constexpr int kRoundTrips = 15;
constexpr std::int64_t kLargeBytes = 4 << 20;

/// 0 of none.
double median(std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class Probe {
 public:
  explicit Probe(Runtime& runtime)
      : runtime_(runtime), pipeline_(runtime.communicator(Group::kPp)) {}

  int size() const { return pipeline_.size(); }

  /// Seconds of one message of `bytes`, half a round trip.
  double seconds(std::int64_t bytes) const {
    const auto payload = at::empty({bytes}, at::kByte);
    std::vector<double> seconds;
    const int peers = std::min(kMostPeers, size() - 1);
    for (int i = 1; i <= peers; ++i) {
      const int peer = i * (size() - 1) / peers;
      if (pipeline_.rank() == 0 || pipeline_.rank() == peer) measure(peer, payload, seconds);
    }
    return median(seconds);
  }

 private:
  /// @param peer  position in the pipeline
  void measure(int peer, const at::Tensor& payload, std::vector<double>& seconds) const {
    const auto& members = pipeline_.members();
    const auto pair = runtime_.communicator({members[0], members[peer]});
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

  Runtime& runtime_;
  const d2d::Communicator pipeline_;
};

}  // namespace

simulate::Machine with_measured_messages(Runtime& runtime, simulate::Machine machine) {
  const Probe probe(runtime);
  const double small = probe.seconds(1);
  const double large = probe.seconds(kLargeBytes);
  if (!runtime.is_first_stage() || probe.size() == 1) return machine;
  machine.set_message_seconds(small);
  if (large > small) machine.bytes_per_second = static_cast<double>(kLargeBytes) / (large - small);
  return machine;
}

}  // namespace smp
