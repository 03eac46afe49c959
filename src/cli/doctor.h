// cli/doctor.h: `smp doctor`: looks whether this machine is fit for a job, and says what to do.
#pragma once

namespace smp::cli {

/// Prints what base/machine/machine_check.h and base/machine/transport_check.h say of this machine,
/// the paths between ranks of a job that it really starts (cli/job_paths.h), and what that job
/// said. Takes a few seconds.
/// @param ranks  that are to run here; 0: one a core
/// @return 1 if a job would fail, else 0
int examine_machine(int ranks);

}  // namespace smp::cli
