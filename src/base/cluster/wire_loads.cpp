// base/cluster/wire_loads.cpp: see the header.
#include "base/cluster/wire_loads.h"

#include <algorithm>

namespace smp::base {
namespace {

/// The share of a published bandwidth that is reached: of memory and of links between devices it is
/// assumed, as in base/machine/device.cpp; of an adapter users report 91 to 96 %.
constexpr double kReachedLink = 0.8, kReachedAdapter = 0.9;

}  // namespace

void WireLoads::pass(const Wire& wire, double bytes, double bandwidth) {
  seconds_[wire] += bytes / bandwidth;
}

void WireLoads::add(const Cluster::Place& from, const Cluster::Place& to, double bytes) {
  if (from.node != to.node) {
    const bool pooled = adapters_ == Adapters::kPooled;
    const double bandwidth = kReachedAdapter * type_.adapter * (pooled ? type_.adapters : 1);
    pass({Kind::kAdapterOut, from.node, pooled ? 0 : from.adapter, 0}, bytes, bandwidth);
    pass({Kind::kAdapterIn, to.node, pooled ? 0 : to.adapter, 0}, bytes, bandwidth);
  } else if (from.device == to.device) {
    pass({Kind::kMemory, from.node, from.device, 0}, bytes, kReachedLink * type_.within_device);
  } else if (type_.torus.empty()) {
    const double bandwidth = kReachedLink * type_.switch_port;
    pass({Kind::kPortOut, from.node, from.device, 0}, bytes, bandwidth);
    pass({Kind::kPortIn, to.node, to.device, 0}, bytes, bandwidth);
  } else {
    for (const auto& hop : torus_.route(from.device, to.device)) {
      const double link = type_.torus[static_cast<std::size_t>(hop.dimension)].link;
      pass({Kind::kLink, from.node, hop.from, hop.to}, bytes, kReachedLink * link);
    }
  }
}

double WireLoads::most_seconds() const {
  double most = 0;
  for (const auto& [wire, seconds] : seconds_) most = std::max(most, seconds);
  return most;
}

}  // namespace smp::base
