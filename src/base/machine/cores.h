// base/machine/cores.h: the cores that processes may compute on.
#pragma once

#include <string>
#include <vector>

namespace smp::base {

/// A character a core of the machine: '1' if the calling thread may run there, which a container's
/// set of cores, taskset and mpirun's binding may forbid. Empty: the system does not say.
std::string own_cores();

/// The cores that at least one of `sets`, of processes on one machine, has. At least 1.
int num_cores(const std::vector<std::string>& sets);

/// The processors that this process's cgroup may use at once, such as 1.5, by the limits of
/// /sys/fs/cgroup (version 2); 0: no limit.
double processors_of_cgroup();

}  // namespace smp::base
