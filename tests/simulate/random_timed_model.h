// Models made of dice, for laws that hold in the simulated step of any of them.
#pragma once

#include <rapidcheck.h>

#include <cstdint>
#include <vector>

#include "simulate/timed_model.h"

namespace smp::simulate {

/// A random model: any call may call further modules, used modules are called again.
inline TimedModel random_timed_model() {
  TimedModel model;
  const int calls = *rc::gen::inRange(1, 30);
  for (int i = 0; i < calls; ++i) {
    // A caller that is still running: the last call or one of its callers.
    int caller = i - 1;
    while (caller >= 0 && *rc::gen::arbitrary<bool>()) caller = model.trace.calls[caller].caller;
    const double seconds = *rc::gen::inRange(0, 3000) * 1e-6;
    const bool again = *rc::gen::inRange(0, 4) == 0;
    if (again) {
      model.call_again(*rc::gen::inRange(0, model.modules), caller, seconds);
    } else {
      model.call(caller, seconds);
    }
    model.trace.calls.back().before.seconds = *rc::gen::inRange(0, 500) * 1e-6;
  }
  std::vector<bool> sequential;
  for (int m = 0; m < model.modules; ++m) sequential.push_back(*rc::gen::arbitrary<bool>());
  for (auto& call : model.trace.calls) call.sequential = sequential[call.module];
  model.trace.body_after.seconds = 1e-4;
  return model;
}

/// Bytes of all kinds.
inline void fill_in_bytes(Trace& trace) {
  const auto some = [] { return *rc::gen::inRange<std::int64_t>(0, 1000); };
  for (auto& call : trace.calls) {
    for (auto* interval : {&call.before, &call.after}) {
      interval->activation_bytes = some();
      interval->gradient_bytes = some();
    }
    call.input_bytes = some();
    call.output_bytes = some();
    call.caller_live_bytes = some();
    call.caller_gradient_bytes = some();
  }
}

}  // namespace smp::simulate
