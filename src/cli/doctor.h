// cli/doctor.h: `smp doctor`: looks whether this machine is fit for a job, and says what to do.
#pragma once

namespace smp::cli {

/// Prints what base/machine_check.h says of this machine, and the paths between ranks that it
/// really starts. Takes a few seconds.
/// @param ranks  that are to run here; 0: one a core
/// @return 1 if a job would fail, else 0
int examine_machine(int ranks);

/// What examine_machine() starts under mpirun: rank 0 prints over which paths it reaches the
/// others.
void show_paths();

}  // namespace smp::cli
