// partition/search/step_bound.cpp: the work there is, and who must wait for whom.
#include "partition/search/step_bound.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "partition/search/strategies.h"

namespace smp::partitioning {
namespace {

using simulate::IntervalId;
using simulate::IntervalTimes;
using simulate::Trace;

/// Seconds of an interval, at least.
struct LeastTimes {
  double forward = 0;
  double backward = 0;
  double inputs = 0;  ///< the part of `backward` that others wait for
};

LeastTimes least_of(const IntervalTimes& times) {
  return {times.forward, times.backward, times.backward - times.weights};
}

/// Of every interval (Trace::index_of), on the device of some stage that suits it best.
std::vector<LeastTimes> least_times(const Trace& trace, const simulate::Machine& machine) {
  std::vector<IntervalTimes> own(trace.num_intervals());
  for (int call = -1; call < static_cast<int>(trace.calls.size()); ++call) {
    for (const bool before : {false, true}) {
      const IntervalId id{call, before && call >= 0};
      own[Trace::index_of(id)] = trace.times_of(trace.interval(id));
    }
  }
  std::set<std::string> devices(machine.devices.begin(), machine.devices.end());
  std::vector<const std::vector<IntervalTimes>*> all;
  for (const auto& device : devices) {
    const auto* profile = trace.find_profile(device);
    all.push_back(profile != nullptr ? &profile->times : &own);
  }
  if (all.empty()) all.push_back(&own);
  std::vector<LeastTimes> least;
  for (std::size_t i = 0; i < own.size(); ++i) {
    least.push_back(least_of((*all.front())[i]));
    for (const auto* times : all) {
      const auto other = least_of((*times)[i]);
      least[i].forward = std::min(least[i].forward, other.forward);
      least[i].backward = std::min(least[i].backward, other.backward);
      least[i].inputs = std::min(least[i].inputs, other.inputs);
    }
  }
  return least;
}

/// A microbatch that was traced.
struct Microbatch {
  const Trace& trace;
  int times;                      // that a step has it
  std::vector<LeastTimes> least;  // by interval

  /// Without a weight gradient where these may come later.
  double longest_chain(bool splits_backward) const {
    double sum = 0;
    for (const auto& times : least) {
      sum += times.forward + (splits_backward ? times.inputs : times.backward);
    }
    return sum;
  }
};

std::vector<Microbatch> microbatches_of(const Trace& trace, const simulate::Machine& machine,
                                        int microbatches) {
  const int traced = static_cast<int>(trace.num_traced());
  std::vector<Microbatch> all;
  for (int i = 0; i < std::min(traced, microbatches); ++i) {
    const Trace& own = trace.of_microbatch(static_cast<std::size_t>(i));
    all.push_back({own, (microbatches - i + traced - 1) / traced, least_times(own, machine)});
  }
  return all;
}

/// Own work of every node, for one microbatch.
std::vector<double> work_of_nodes(const Microbatch& microbatch, const CostTree& costs) {
  std::vector<double> sums(costs.nodes.size(), 0);
  const auto add = [&](int module, const IntervalId& interval) {
    const auto& times = microbatch.least[Trace::index_of(interval)];
    sums[costs.node_of_module[module]] += times.forward + times.backward;
  };
  add(0, {-1, false});
  const auto& calls = microbatch.trace.calls;
  for (int i = 0; i < static_cast<int>(calls.size()); ++i) {
    add(calls[i].caller < 0 ? 0 : calls[calls[i].caller].module, {i, true});
    add(calls[i].module, {i, false});
  }
  return sums;
}

/// Of every node: seconds of a microbatch's forward before it can compute for the first time, and
/// of its backward after the node has computed for the last time.
struct Around {
  explicit Around(std::size_t nodes)
      : before(nodes, std::numeric_limits<double>::infinity()), after(before) {}
  std::vector<double> before, after;
};

/// Brings them down to those of `microbatch`. A caller can compute as soon as it is called: the
/// runtime does before its requests what it only does between them to pass results on
/// (kOnlyPassesOn).
void note_work_around(const Microbatch& microbatch, const CostTree& costs, Around& around) {
  double before = 0, after = 0;
  const auto pass = [&](const IntervalId& interval) {
    const auto& times = microbatch.least[Trace::index_of(interval)];
    before += times.forward;
    after += times.backward;
  };
  const auto enter = [&](int module) {
    const auto node = static_cast<std::size_t>(costs.node_of_module[module]);
    around.before[node] = std::min(around.before[node], before);
    around.after[node] = std::min(around.after[node], after);
  };
  std::vector<int> open;  // running calls, innermost last
  const auto leave_until = [&](int caller) {
    for (; !open.empty() && open.back() != caller; open.pop_back()) pass({open.back(), false});
  };
  enter(0);
  const auto& calls = microbatch.trace.calls;
  for (int i = 0; i < static_cast<int>(calls.size()); ++i) {
    leave_until(calls[i].caller);
    pass({i, true});
    enter(calls[i].module);
    open.push_back(i);
  }
}

/// Whichever microbatch comes to a node first, and whichever leaves it last.
Around work_around_nodes(const std::vector<Microbatch>& microbatches, const CostTree& costs) {
  Around around(costs.nodes.size());
  for (const auto& microbatch : microbatches) note_work_around(microbatch, costs, around);
  return around;
}

/// Of all nodes that compute, ascending: no two stages begin, or end, with the same one.
std::vector<double> of_computing_nodes(const std::vector<double>& by_node, const CostTree& costs) {
  std::vector<double> seconds;
  for (std::size_t n = 0; n < by_node.size(); ++n) {
    if (std::isfinite(by_node[n]) && costs.nodes[n].seconds > 0) seconds.push_back(by_node[n]);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

/// What all stages can compute in a second, if those of a host share its cores.
double capacity(const simulate::Machine& machine) {
  double all = 0;
  for (int stage = 0; stage < machine.stages; ++stage) all += machine.speed(stage);
  for (const auto& host : machine.oversubscribed) {
    double own = 0, fastest = 0;
    for (const int stage : host.stages) {
      own += machine.speed(stage);
      fastest = std::max(fastest, machine.speed(stage));
    }
    all += std::min(0.0, host.cores * fastest - own);
  }
  return all;
}

bool splits_backward(const StepSettings& settings, int stages) {
  for (int stage = 0; stage < stages; ++stage) {
    if (schedule::splits_any_backward(*settings.schedule, stage, settings.microbatches))
      return true;
  }
  return false;
}

/// Work that is not done because stages wait at the ends of the step, at least: at traced speed,
/// the fastest stage waits least.
double lost_work(const std::vector<Microbatch>& microbatches, const CostTree& costs,
                 const simulate::Machine& machine, const StepSettings& settings) {
  if (!machine.oversubscribed.empty()) return 0;
  const auto around = work_around_nodes(microbatches, costs);
  std::vector<double> speeds;
  for (int stage = 0; stage < machine.stages; ++stage) speeds.push_back(machine.speed(stage));
  std::sort(speeds.begin(), speeds.end(), std::greater<>());
  double lost = 0;
  const auto wait = [&](const std::vector<double>& by_node) {
    const auto seconds = of_computing_nodes(by_node, costs);
    for (std::size_t i = 0; i < std::min(speeds.size(), seconds.size()); ++i) {
      lost += seconds[i] / speeds.front() * speeds[i];
    }
  };
  wait(around.before);
  // Gradients of weights that may come later fill the end.
  if (!splits_backward(settings, machine.stages)) wait(around.after);
  return lost;
}

}  // namespace

double step_lower_bound(const Trace& trace, const CostTree& costs, const simulate::Machine& machine,
                        const StepSettings& settings) {
  const auto microbatches = microbatches_of(trace, machine, settings.microbatches);
  CostTree work = costs;
  for (auto& node : work.nodes) node.own = 0;
  const bool splits = splits_backward(settings, machine.stages);
  double longest = 0, all = 0;
  for (const auto& microbatch : microbatches) {
    const auto own = work_of_nodes(microbatch, costs);
    for (std::size_t n = 0; n < own.size(); ++n) work.nodes[n].own += microbatch.times * own[n];
    all += microbatch.times * std::accumulate(own.begin(), own.end(), 0.0);
    longest = std::max(longest, microbatch.longest_chain(splits));
  }
  double fastest = 0;
  for (int stage = 0; stage < machine.stages; ++stage) {
    fastest = std::max(fastest, machine.speed(stage));
  }
  all += lost_work(microbatches, costs, machine, settings);
  return std::max(
      {longest / fastest, bottleneck_lower_bound(work, machine), all / capacity(machine)});
}

}  // namespace smp::partitioning
