// api/job_machine.h: the machine that a job runs on, as the partitioner and the simulator see it.
#pragma once

#include "simulate/machine.h"

namespace smp {

class Runtime;

/// Speeds and memory as configured, or the memory of this machine, where every host is taken to
/// have as much; hosts with fewer cores than ranks; messages as usual, or as
/// measured with `trace_repeats`. Called by all pp ranks at once, outside of steps, since it may
/// measure; what was measured is known on pp_rank 0 only.
[[nodiscard]] simulate::Machine job_machine(Runtime& runtime);

}  // namespace smp
