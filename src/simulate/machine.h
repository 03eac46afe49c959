// simulate/machine.h: the stages as a plan and the simulator see them. Plain data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace smp::simulate {

/// Speed, memory and the price of messages. Times in seconds.
struct Machine {
  int stages = 1;
  /// Relative speed of each stage: 2 computes in half the traced time. Empty: all 1.
  std::vector<double> speeds = {};
  /// What each stage computes on (base/machine/device.h): its times are distributed over the model
  /// as Trace::profiles say. Empty: all on that of the trace.
  std::vector<std::string> devices = {};
  /// Bytes each stage may hold. Empty: no limit.
  std::vector<std::int64_t> memory = {};

  /// A host whose stages outnumber its cores: they share them.
  struct Host {
    std::vector<int> stages;
    double cores = 0;
  };
  /// Of all such hosts. Stages elsewhere have a core each.
  std::vector<Host> oversubscribed = {};

  /// From the moment a message is sent until the peer could act on it. Between stages of one
  /// socket, and of all stages if no places are told.
  double latency = 10e-6;  ///< seconds
  double bytes_per_second = 4e9;

  /// Of each stage: over a direct link to other stages of its node that have one, bytes/s; 0: it
  /// has none. Empty: nobody has.
  std::vector<double> direct_links = {};

  /// Where a stage is.
  struct Place {
    int node = 0;
    int socket = 0;  ///< of the node
    int port = 0;    ///< of the node: the network adapter by which its messages go
    bool operator==(const Place&) const = default;
  };
  /// Of each stage. Empty: all in one place.
  std::vector<Place> places = {};
  struct Link {
    double latency = 0;  ///< seconds
    double bytes_per_second = 0;

    double travel(std::int64_t bytes) const {
      return latency + static_cast<double>(bytes) / bytes_per_second;
    }
  };
  /// Between sockets of one node.
  Link across_sockets = {10e-6, 4e9};
  /// Between nodes. The bytes occupy a port of the sender's node as they leave, and one of the
  /// receiver's as they come: messages of one port and direction go one after the other.
  Link network = {30e-6, 12.5e9};
  /// What the sender's and the receiver's thread each spend on a message.
  double handling = 5e-6;  ///< seconds
  /// Whether a thread that has requests out waits a moment before it computes, as the runtime does
  /// (schedule/yield_policy.h). Of no use if messages take no time.
  bool patient = true;

  /// Pipelines that train on other samples: the gradients of each stage are summed over its
  /// replicas, which a simulated step does not contain (partition/model/replica_sums.h).
  struct Replicas {
    int count = 1;
    Link link = {10e-6, 4e9};  ///< between two of a stage
    /// Sums begin while the last microbatch's backward runs, in buckets of so many bytes; 0: when
    /// the stage has done all its work.
    std::int64_t bucket_bytes = 0;
    /// Each part is summed at one replica, and the others get the sums from there; else they stay.
    bool all_get_sums = true;

    /// Every one sends (count - 1) / count of the bytes, for sums and again to hand them on.
    double seconds_for(std::int64_t bytes) const {
      if (count == 1 || bytes == 0) return 0;
      const double share = static_cast<double>(count - 1) / count;
      return (all_get_sums ? 2 : 1) *
             (link.latency + share * static_cast<double>(bytes) / link.bytes_per_second);
    }
  };
  Replicas replicas = {};

  /// Ranks that share the modules of a stage. What their collectives take is in the times of the
  /// trace already.
  struct Sharers {
    int count = 1;
    Link link = {10e-6, 4e9};  ///< between two of a stage
    double handling = 5e-6;    ///< as Machine::handling

    /// Of `rounds`, in each of which all send something to all others, of `bytes` from each in all.
    double seconds_for(int rounds, double bytes) const {
      return rounds * (link.latency + 2 * (count - 1) * handling) + bytes / link.bytes_per_second;
    }
  };
  Sharers sharers = {};

  /// Whether a result travels from its owner directly to the stage that it is passed on to (config
  /// key promised_outputs); else it goes through the stage of its caller.
  bool promised_outputs = true;

  /// Sets what a small message costs in all, shared out between `latency` and `handling` as it is
  /// now.
  void set_message_seconds(double seconds) {
    const double factor = seconds / (latency + 2 * handling);
    latency *= factor;
    handling *= factor;
  }
  /// Stages use a core only for `share` of their time, above 0 and at most 1: while one waits,
  /// another computes there.
  void set_processor_share(double share) {
    for (Host& host : oversubscribed) host.cores /= share;
    std::erase_if(oversubscribed, [](const Host& host) {
      return host.cores >= static_cast<double>(host.stages.size());
    });
  }
  /// That the stages may use in all; 0: each has one of its own.
  double cores() const {
    if (oversubscribed.empty()) return 0;
    double sum = stages;
    for (const Host& host : oversubscribed) {
      sum += host.cores - static_cast<double>(host.stages.size());
    }
    return sum;
  }
  double speed(int stage) const { return speeds.empty() ? 1.0 : speeds[stage]; }
  double travel(std::int64_t bytes) const { return Link{latency, bytes_per_second}.travel(bytes); }
  /// Bytes per second between stages of one socket: as the slower of two direct links.
  double near_bandwidth(int from, int to) const {
    const bool direct = !direct_links.empty() && direct_links[from] > 0 && direct_links[to] > 0;
    return direct ? std::min(direct_links[from], direct_links[to]) : bytes_per_second;
  }
  bool on_network(int from, int to) const {
    return !places.empty() && places[from].node != places[to].node;
  }
  /// Whether `latency` and `bytes_per_second` hold between the two.
  bool is_near(int from, int to) const {
    return places.empty() ||
           (places[from].node == places[to].node && places[from].socket == places[to].socket);
  }
};

/// Equal stages between which messages cost nothing.
inline Machine ideal_machine(int stages) {
  Machine machine;
  machine.stages = stages;
  machine.latency = machine.handling = 0;
  machine.bytes_per_second = std::numeric_limits<double>::infinity();
  machine.patient = false;
  return machine;
}

}  // namespace smp::simulate
