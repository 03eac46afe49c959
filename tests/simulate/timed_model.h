// Small models with their traces, for tests of what happens in a step.
#pragma once

#include <cstddef>
#include <vector>

#include "simulate/trace.h"

namespace smp::simulate {

/// Modules are numbers; 0 is the model itself.
struct TimedModel {
  int modules = 1;
  Trace trace;

  /// Adds a module; `caller` calls it once, after all calls so far. Returns the index of the call.
  int call(int caller, double seconds, std::int64_t activation_bytes = 0) {
    return call_again(modules++, caller, seconds, activation_bytes);
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

/// A Sequential of modules that take `seconds` and keep one byte each.
inline TimedModel traced_chain(const std::vector<double>& seconds) {
  TimedModel model;
  model.trace.calls[model.call_again(0, -1, 0)].sequential = true;
  for (const double own : seconds) model.call(0, own, 1);
  return model;
}

/// Its last module returns the loss; else the body computes it in no time.
inline TimedModel with_loss(TimedModel chain) {
  chain.trace.loss_call = static_cast<int>(chain.trace.calls.size()) - 1;
  return chain;
}

/// One stage a module, the chain itself on stage 0.
inline std::vector<int> stage_each(const TimedModel& chain) {
  std::vector<int> stages = {0};
  for (int i = 1; i < chain.modules; ++i) stages.push_back(i - 1);
  return stages;
}

}  // namespace smp::simulate
