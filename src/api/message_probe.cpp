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
      : collectives_(runtime.server().collectives()),
        rank_(runtime.topology().pp_rank()),
        size_(static_cast<int>(runtime.pp_ranks().size())) {}

  /// Seconds of one message of `bytes`, half a round trip.
  double seconds(std::int64_t bytes) const {
    const auto payload = at::empty({bytes}, at::kByte);
    std::vector<double> seconds;
    const int peers = std::min(kMostPeers, size_ - 1);
    for (int i = 1; i <= peers; ++i) {
      const int peer = i * (size_ - 1) / peers;
      if (rank_ == 0 || rank_ == peer) measure(peer, payload, seconds);
    }
    return median(seconds);
  }

 private:
  void measure(int peer, const at::Tensor& payload, std::vector<double>& seconds) const {
    const base::SteadyClock clock;
    for (int i = 0; i < kWarmUp + kRoundTrips; ++i) {
      const auto start = clock.now();
      for (const int sender : {0, peer}) {
        Packet own;
        if (sender == rank_) own.tensors = {payload};
        collectives_.broadcast({0, peer}, sender, std::move(own));
      }
      const auto round_trip = static_cast<double>(clock.now() - start);
      if (i >= kWarmUp) seconds.push_back(round_trip / 2 / base::kSecond);
    }
  }

  server::Collectives& collectives_;
  int rank_;
  int size_;
};

}  // namespace

partition::Machine with_measured_messages(Runtime& runtime, partition::Machine machine) {
  const Probe probe(runtime);
  const double small = probe.seconds(1);
  const double large = probe.seconds(kLargeBytes);
  if (runtime.topology().pp_rank() != 0 || runtime.pp_ranks().size() == 1) return machine;
  machine.set_message_seconds(small);
  if (large > small) machine.bytes_per_second = static_cast<double>(kLargeBytes) / (large - small);
  return machine;
}

}  // namespace smp
