// api/files/run_measures.h: what the ranks of a run measure, brought together for its log.
#pragma once

#include <cstdint>
#include <vector>

#include "api/rank/clock_offset.h"
#include "api/rank/rank.h"
#include "report/analysis/step_timeline.h"
#include "report/folder/run_folder.h"
#include "report/pictures/traffic.h"
#include "schedule/step_trace.h"
#include "smp/distributed_model.h"
#include "smp/run_log.h"

namespace smp {

/// Returns the offset of this rank's clock against that of the first stage. Collective over the
/// stages.
ClockOffset clock_of(Rank& rank);

/// Returns the traces of all stages, by the clock of the first, on every rank. Collective over the
/// stages.
report::StepTimeline gather_traces(Rank& rank, const schedule::StepTrace& own,
                                   const ClockOffset& clock);

/// Returns the messages between all stages since this rank had sent `before`. Collective over the
/// stages. @param steps  that ran since
report::Traffic gather_traffic(Rank& rank, const d2d::ChannelCounters& before, std::int64_t steps);

/// Returns what the ranks compute with. Collective among the ranks that train the model.
std::vector<report::ComputingRanks> gather_computing(const Rank& rank);

/// Returns the trace with its busy time in one span, which is all that the bubble needs.
schedule::StepTrace without_details(const schedule::StepTrace& trace);

/// Returns how long a step took, of which `traces` has all stages.
StepTiming timing_of(const std::vector<schedule::StepTrace>& traces);

/// Returns the bytes of the parameters that `device` holds for this process.
std::int64_t weights_of(const DistributedModelBase& model, at::Device device);

}  // namespace smp
