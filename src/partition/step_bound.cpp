// partition/step_bound.cpp: the work there is, and who must wait for whom.
#include "partition/step_bound.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "partition/strategies.h"

namespace smp::partitioning {
namespace {

using simulate::IntervalId;
using simulate::IntervalTimes;
using simulate::Trace;

/// Seconds of an interval that count.
using Work = std::function<double(const IntervalId&)>;

/// Of every interval (Trace::index_of), on the device of some stage that suits it best.
std::vector<IntervalTimes> least_times(const Trace& trace, const simulate::Machine& machine) {
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
  if (all.empty()) return own;
  auto least = *all.front();
  for (const auto* times : all) {
    for (std::size_t i = 0; i < least.size(); ++i) {
      least[i].forward = std::min(least[i].forward, (*times)[i].forward);
      least[i].backward = std::min(least[i].backward, (*times)[i].backward);
    }
  }
  return least;
}

/// Own work of every node, for one microbatch.
std::vector<double> work_of_nodes(const Trace& trace, const CostTree& costs, const Work& work) {
  std::vector<double> sums(costs.nodes.size(), 0);
  const auto add = [&](int module, const IntervalId& interval) {
    sums[costs.node_of_module[module]] += work(interval);
  };
  add(0, {-1, false});
  for (int i = 0; i < static_cast<int>(trace.calls.size()); ++i) {
    const auto& call = trace.calls[i];
    add(call.caller < 0 ? 0 : trace.calls[call.caller].module, {i, true});
    add(call.module, {i, false});
  }
  return sums;
}

/// The work before each node that computes can do so for the first time, ascending. A caller
/// can as soon as it is called: the runtime does before its requests what it only does between them
/// to pass results on (kOnlyPassesOn).
std::vector<double> work_before_nodes(const Trace& trace, const CostTree& costs, const Work& work) {
  std::vector<double> before;
  std::vector<bool> seen(costs.nodes.size(), false);
  double passed = 0;
  const auto enter = [&](int module) {
    const int node = costs.node_of_module[module];
    if (!seen[node] && costs.nodes[node].seconds > 0) before.push_back(passed);
    seen[node] = true;
  };
  std::vector<int> open;  // running calls, innermost last
  const auto leave_until = [&](int caller) {
    for (; !open.empty() && open.back() != caller; open.pop_back()) {
      passed += work({open.back(), false});
    }
  };
  enter(0);
  for (int i = 0; i < static_cast<int>(trace.calls.size()); ++i) {
    const auto& call = trace.calls[i];
    leave_until(call.caller);
    passed += work({i, true});
    enter(call.module);
    open.push_back(i);
  }
  return before;
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
    for (int microbatch = 0; microbatch < settings.microbatches; ++microbatch) {
      if (settings.schedule->splits_backward(stage, microbatch)) return true;
    }
  }
  return false;
}

/// Work that is not done because stages wait at the ends of the step, at least: at traced speed,
/// the fastest stage waits least.
double lost_work(const Trace& trace, const std::vector<IntervalTimes>& least, const CostTree& costs,
                 const simulate::Machine& machine, const StepSettings& settings) {
  if (!machine.oversubscribed.empty()) return 0;
  const bool ends_late = splits_backward(settings, machine.stages);
  const auto before = work_before_nodes(trace, costs, [&](const IntervalId& interval) {
    const auto& times = least[Trace::index_of(interval)];
    return times.forward + (ends_late ? 0 : times.backward);
  });
  std::vector<double> speeds;
  for (int stage = 0; stage < machine.stages; ++stage) speeds.push_back(machine.speed(stage));
  std::sort(speeds.begin(), speeds.end(), std::greater<>());
  double lost = 0;
  for (std::size_t i = 0; i < std::min(speeds.size(), before.size()); ++i) {
    lost += before[i] / speeds.front() * speeds[i];
  }
  return lost;
}

}  // namespace

double step_lower_bound(const Trace& trace, const CostTree& costs, const simulate::Machine& machine,
                        const StepSettings& settings) {
  const auto least = least_times(trace, machine);
  const auto own = work_of_nodes(trace, costs, [&](const IntervalId& interval) {
    const auto& times = least[Trace::index_of(interval)];
    return times.forward + times.backward;
  });
  const double of_microbatch = std::accumulate(own.begin(), own.end(), 0.0);
  CostTree work = costs;
  for (std::size_t n = 0; n < own.size(); ++n) work.nodes[n].own = settings.microbatches * own[n];
  double fastest = 0;
  for (int stage = 0; stage < machine.stages; ++stage) {
    fastest = std::max(fastest, machine.speed(stage));
  }
  const double all =
      settings.microbatches * of_microbatch + lost_work(trace, least, costs, machine, settings);
  return std::max(
      {of_microbatch / fastest, bottleneck_lower_bound(work, machine), all / capacity(machine)});
}

}  // namespace smp::partitioning
