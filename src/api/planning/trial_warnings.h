// api/planning/trial_warnings.h: what a trial run could not find out, or showed to stand in a
// plan's way, for people to read.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "api/model/describe_model.h"
#include "simulate/trace.h"
#include "smp/plan.h"

namespace smp {

/// Why a trial run has no traces.
struct TrialFault {
  std::string module;          ///< path of the module that failed; empty: the step's body
  const char* how = " threw";  ///< between that and the text
  std::string text;
};

/// Warns that modules are not timed, because there are no values to run them with.
/// @param on_device  what they would compute on; else their initialisation is delayed
void warn_of_clock(bool on_device);

/// Warns that no repetition of the trial could be timed.
void warn_of_repeats();

/// Warns of nodes of which the traces do not have what they keep.
void warn_of_silent_nodes(const std::vector<simulate::Trace>& traces);

/// Warns of the module that holds more than its stage's share of the cost in modules that are not
/// routed, and so stay with it.
void warn_of_unrouted_cost(const ModelDescription& model, const PartitionPlan& plan);

/// Warns that modules are counted, because the trial failed.
/// @param no_values  why it had shapes only, as half a sentence; nullptr: it had values
/// @param sliced     whether a model has slices, which code may have taken for wholes
/// @param no_device  why it was not run on the device, where the program asked for that; else empty
void warn_of_failure(const TrialFault& fault, const char* no_values, bool sliced,
                     const std::string& no_device);

/// Tells that the trial goes on on `device`, in this process, and why.
void tell_of_device(at::Device device, const TrialFault& fault);

}  // namespace smp
