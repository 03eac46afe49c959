// base/machine/cores.h: the cores that processes may compute on.
#pragma once

#include <string>
#include <vector>

namespace smp::base {

/// Returns a string with one character per core of the machine: '1' if the calling thread may run
/// there, which a container's set of cores, taskset and mpirun's binding may forbid. Empty if the
/// system does not say.
std::string own_cores();

/// Returns the number of cores that at least one of `sets` (own_cores() of processes on one
/// machine) has, at least 1.
int num_cores(const std::vector<std::string>& sets);

/// Returns the number of processors that this process's cgroup may use at once, such as 1.5, by the
/// limits of /sys/fs/cgroup (version 2); 0 if there is no limit.
double processors_of_cgroup();

}  // namespace smp::base
