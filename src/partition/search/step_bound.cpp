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

/// The least seconds that an interval can take.
struct LeastTimes {
  double forward = 0;
  double backward = 0;
  double inputs = 0;  ///< the part of `backward` that others wait for
};

LeastTimes least_of(const IntervalTimes& times) {
  return {times.forward, times.backward, times.backward - times.weights};
}

/// Returns the least times of every interval (by Trace::index_of): those on the fastest of the
/// stages' devices.
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

/// One traced microbatch, and how often it stands for one of a step.
struct Microbatch {
  const Trace& trace;
  int times;                      // that it occurs in a step
  std::vector<LeastTimes> least;  // by interval

  /// Seconds of all intervals in a row, forward and backward; without the gradients of weights if
  /// the schedule may compute these later.
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

/// Returns the seconds of every node's own work, for one microbatch.
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

/// The seconds, by node, of a microbatch's forward `before` the node can compute for the first
/// time, and of its backward `after` the node has computed for the last time.
struct Around {
  explicit Around(std::size_t nodes)
      : before(nodes, std::numeric_limits<double>::infinity()), after(before) {}
  std::vector<double> before, after;
};

/// Lowers `around` to the times of `microbatch` where these are less. A caller can compute as soon
/// as it is called: the runtime does before its requests what it only does between them to pass
/// results on (kOnlyPassesOn).
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

/// Returns the least times over all microbatches: any of them may be the first to reach a node, and
/// any the last to leave it.
Around work_around_nodes(const std::vector<Microbatch>& microbatches, const CostTree& costs) {
  Around around(costs.nodes.size());
  for (const auto& microbatch : microbatches) note_work_around(microbatch, costs, around);
  return around;
}

/// Returns the seconds of all nodes that compute, ascending. The i-th stage to begin (or end) waits
/// at least the i-th of these, since no two stages begin, or end, with the same node.
std::vector<double> of_computing_nodes(const std::vector<double>& by_node, const CostTree& costs) {
  std::vector<double> seconds;
  for (std::size_t n = 0; n < by_node.size(); ++n) {
    if (std::isfinite(by_node[n]) && costs.nodes[n].seconds > 0) seconds.push_back(by_node[n]);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

/// The sum of the speeds of all stages, where stages of one host share its cores.
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

/// The least work, in seconds at traced speed, that is not done because stages wait at the
/// beginning and the end of the step. The fastest stage is taken to wait least.
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
