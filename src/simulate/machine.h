// simulate/machine.h: the stages as a plan and the simulator see them. Plain data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace smp::simulate {

/// The speed and memory of stages, and the price of messages. Times in seconds.
struct Machine {
  int stages = 1;
  /// The relative speed of each stage: 2 computes in half the traced time. Empty: all 1.
  std::vector<double> speeds = {};
  /// The device of each stage (base/machine/device.h), by which its times are distributed over the
  /// model as Trace::profiles say. Empty: all have the device of the trace.
  std::vector<std::string> devices = {};
  /// The bytes that each stage may hold. Empty: no limit.
  std::vector<std::int64_t> memory = {};

  /// A host with more stages than cores, which they share.
  struct Host {
    std::vector<int> stages;
    double cores = 0;
  };
  /// All such hosts. Stages elsewhere have a core each.
  std::vector<Host> oversubscribed = {};

  /// The time from the moment a message is sent until the peer could act on it. Holds between
  /// stages of one socket, and between all stages if there are no places.
  double latency = 10e-6;  ///< seconds
  double bytes_per_second = 4e9;

  /// The bandwidth of each stage over a direct link to other stages of its node that have one,
  /// bytes/s; 0: it has none. Empty: no stage has one.
  std::vector<double> direct_links = {};

  /// The place of a stage in the machine room.
  struct Place {
    int node = 0;
    int socket = 0;  ///< of the node
    int port = 0;    ///< of the node: the network adapter by which its messages go
    bool operator==(const Place&) const = default;
  };
  /// The place of each stage. Empty: all are in one place.
  std::vector<Place> places = {};
  struct Link {
    double latency = 0;  ///< seconds
    double bytes_per_second = 0;

    double travel(std::int64_t bytes) const {
      return latency + static_cast<double>(bytes) / bytes_per_second;
    }
    bool operator==(const Link&) const = default;
  };
  /// The links between stages of one node where they depend on the pair, as on a torus: that from
  /// stage a to b is at a * stages + b. They hold instead of all others within nodes. Empty: there
  /// are none.
  std::vector<Link> pairs = {};
  /// The link between sockets of one node.
  Link across_sockets = {10e-6, 4e9};
  /// The link between nodes. The bytes occupy a port of the sender's node as they leave, and one of
  /// the receiver's as they come: messages of one port and direction go one after the other.
  Link network = {30e-6, 12.5e9};
  /// The time that the sender's and the receiver's thread each spend on a message.
  double handling = 5e-6;  ///< seconds
  /// True if a thread that has requests out waits a moment before it computes, as the runtime does
  /// (schedule/yield_policy.h). Of no use if messages take no time.
  bool patient = true;

  /// The replicas of the pipeline, which train on other samples: the gradients of each stage are
  /// summed over its replicas, which a simulated step does not contain
  /// (partition/model/replica_sums.h).
  struct Replicas {
    int count = 1;
    Link link = {10e-6, 4e9};  ///< between two of a stage
    /// The bytes of a bucket if sums begin while the last microbatch's backward runs; 0: they begin
    /// when the stage has done all its work.
    std::int64_t bucket_bytes = 0;
    /// True if each part is summed at one replica and the others get the sums from there; else the
    /// sums stay there.
    bool all_get_sums = true;

    /// Returns the seconds of summing `bytes`: every replica sends (count - 1) / count of them, for
    /// sums and again to hand them on.
    double seconds_for(std::int64_t bytes) const {
      if (count == 1 || bytes == 0) return 0;
      const double share = static_cast<double>(count - 1) / count;
      return (all_get_sums ? 2 : 1) *
             (link.latency + share * static_cast<double>(bytes) / link.bytes_per_second);
    }
  };
  Replicas replicas = {};

  /// The ranks that share the modules of a stage. The times of their collectives are in the times
  /// of the trace already.
  struct Sharers {
    int count = 1;
    Link link = {10e-6, 4e9};  ///< between two of a stage
    double handling = 5e-6;    ///< as Machine::handling

    /// Returns the seconds of `rounds`, in each of which all send something to all others, of
    /// `bytes` from each in all.
    double seconds_for(int rounds, double bytes) const {
      return rounds * (link.latency + 2 * (count - 1) * handling) + bytes / link.bytes_per_second;
    }
  };
  Sharers sharers = {};

  /// True if a result travels from its owner directly to the stage that it is passed on to (config
  /// key promised_outputs); else it goes through the stage of its caller.
  bool promised_outputs = true;

  /// Sets the price of a small message in all, shared out between `latency` and `handling` as it is
  /// now.
  void set_message_seconds(double seconds) {
    const double factor = seconds / (latency + 2 * handling);
    latency *= factor;
    handling *= factor;
  }
  /// Lets stages use a core only for `share` of their time, above 0 and at most 1: while one waits,
  /// another computes there.
  void set_processor_share(double share) {
    for (Host& host : oversubscribed) host.cores /= share;
    std::erase_if(oversubscribed, [](const Host& host) {
      return host.cores >= static_cast<double>(host.stages.size());
    });
  }
  /// Returns the cores that the stages may use in all; 0: each has one of its own.
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
  /// Returns the link between two stages, of `pairs`.
  const Link& pair(int from, int to) const {
    return pairs[static_cast<std::size_t>(from) * static_cast<std::size_t>(stages) +
                 static_cast<std::size_t>(to)];
  }
  /// Returns the bytes per second between stages of one socket: those of the pair, or else of the
  /// slower of two direct links.
  double near_bandwidth(int from, int to) const {
    if (!pairs.empty()) return pair(from, to).bytes_per_second;
    const bool direct = !direct_links.empty() && direct_links[from] > 0 && direct_links[to] > 0;
    return direct ? std::min(direct_links[from], direct_links[to]) : bytes_per_second;
  }
  bool on_network(int from, int to) const {
    return !places.empty() && places[from].node != places[to].node;
  }
  /// True if `latency` and `bytes_per_second` hold between the two.
  bool is_near(int from, int to) const {
    return places.empty() ||
           (places[from].node == places[to].node && places[from].socket == places[to].socket);
  }
};

/// Returns a machine of equal stages between which messages cost nothing.
inline Machine ideal_machine(int stages) {
  Machine machine;
  machine.stages = stages;
  machine.latency = machine.handling = 0;
  machine.bytes_per_second = std::numeric_limits<double>::infinity();
  machine.patient = false;
  return machine;
}

}  // namespace smp::simulate
