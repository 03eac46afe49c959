// Small models with their traces, for tests of what happens in a step.
#pragma once

#include <string>
#include <vector>

#include "partition/module_tree.h"
#include "partition/trace.h"

namespace smp::partition {

struct TimedModel {
  ModuleTree tree;
  Trace trace;

  TimedModel() { tree.add("", -1); }

  /// Adds a module below `parent`; `caller` calls it once, after all calls so far.
  int call(int parent, int caller, double seconds, std::int64_t activation_bytes = 0) {
    const int module = tree.add("m" + std::to_string(tree.nodes.size()), parent);
    return call_again(module, caller, seconds, activation_bytes);
  }

  /// Returns the index of the call.
  int call_again(int module, int caller, double seconds, std::int64_t activation_bytes = 0) {
    TracedCall call;
    call.module = module;
    call.caller = caller;
    call.after.seconds = seconds;
    call.after.activation_bytes = activation_bytes;
    trace.calls.push_back(call);
    return static_cast<int>(trace.calls.size()) - 1;
  }
};

/// A sequential of modules that take `seconds` and keep one byte each.
inline TimedModel traced_chain(const std::vector<double>& seconds) {
  TimedModel model;
  model.tree.nodes[0].sequential = true;
  model.call_again(0, -1, 0);
  for (const double own : seconds) model.call(0, 0, own, 1);
  return model;
}

/// One stage a module, the chain itself on stage 0.
inline std::vector<int> stage_each(const TimedModel& chain) {
  std::vector<int> stages = {0};
  for (std::size_t i = 1; i < chain.tree.nodes.size(); ++i)
    stages.push_back(static_cast<int>(i) - 1);
  return stages;
}

}  // namespace smp::partition
