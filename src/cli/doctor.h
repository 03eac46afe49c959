// cli/doctor.h: `smp doctor`: looks whether this machine is fit for a job, and says what to do.
#pragma once

namespace smp::cli {

/// Prints what base/machine/machine_check.h and base/machine/transport_check.h find on this
/// machine, the paths between ranks of a job that it really starts (cli/job_paths.h), and the
/// messages of that job. Takes a few seconds.
/// @param ranks  the ranks that are to run on this machine; 0: one for each core
/// @return 1 if a job would fail, else 0
int examine_machine(int ranks);

}  // namespace smp::cli
