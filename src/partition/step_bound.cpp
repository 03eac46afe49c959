// partition/step_bound.cpp: the work there is, and who must wait for whom.
#include "partition/step_bound.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "partition/strategies.h"

namespace smp::partitioning {
namespace {

/// Seconds of an interval that count.
using Work = std::function<double(const simulate::ComputeInterval&)>;

double backward_seconds(const simulate::Trace& trace, const simulate::ComputeInterval& interval) {
  return interval.seconds * trace.backward_ratio;
}

/// Own work of every node, for one microbatch.
std::vector<double> work_of_nodes(const simulate::Trace& trace, const CostTree& costs,
                                  const Work& work) {
  std::vector<double> sums(costs.nodes.size(), 0);
  const auto add = [&](int module, const simulate::ComputeInterval& interval) {
    sums[costs.node_of_module[module]] += work(interval);
  };
  add(0, trace.body_after);
  for (const auto& call : trace.calls) {
    add(call.caller < 0 ? 0 : trace.calls[call.caller].module, call.before);
    add(call.module, call.after);
  }
  return sums;
}

/// The work before each node that computes can do so for the first time, ascending. A caller
/// can as soon as it is called: the runtime does before its requests what it only does between them
/// to pass results on (kOnlyPassesOn).
std::vector<double> work_before_nodes(const simulate::Trace& trace, const CostTree& costs,
                                      const Work& work) {
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
      passed += work(trace.calls[open.back()].after);
    }
  };
  enter(0);
  for (std::size_t i = 0; i < trace.calls.size(); ++i) {
    const auto& call = trace.calls[i];
    leave_until(call.caller);
    passed += work(call.before);
    enter(call.module);
    open.push_back(static_cast<int>(i));
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
double lost_work(const simulate::Trace& trace, const CostTree& costs,
                 const simulate::Machine& machine, const StepSettings& settings) {
  if (!machine.oversubscribed.empty()) return 0;
  const bool ends_late = splits_backward(settings, machine.stages);
  const auto before = work_before_nodes(trace, costs, [&](const auto& interval) {
    return interval.seconds + (ends_late ? 0 : backward_seconds(trace, interval));
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

double step_lower_bound(const simulate::Trace& trace, const CostTree& costs,
                        const simulate::Machine& machine, const StepSettings& settings) {
  const auto own = work_of_nodes(trace, costs, [&](const auto& interval) {
    return interval.seconds + backward_seconds(trace, interval);
  });
  const double of_microbatch = std::accumulate(own.begin(), own.end(), 0.0);
  CostTree work = costs;
  for (std::size_t n = 0; n < own.size(); ++n) work.nodes[n].own = settings.microbatches * own[n];
  double fastest = 0;
  for (int stage = 0; stage < machine.stages; ++stage) {
    fastest = std::max(fastest, machine.speed(stage));
  }
  const double all =
      settings.microbatches * of_microbatch + lost_work(trace, costs, machine, settings);
  return std::max(
      {of_microbatch / fastest, bottleneck_lower_bound(work, machine), all / capacity(machine)});
}

}  // namespace smp::partitioning
