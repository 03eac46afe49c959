// base/machine/cpu_socket.cpp: the affinity mask, and what sysfs says of each processor in it.
#include "base/machine/cpu_socket.h"

#include <sched.h>

#include <fstream>

#include "base/check.h"

namespace smp::base {
namespace {

int socket_of(const std::string& cpus, int cpu) {
  std::ifstream file(concat(cpus, "/cpu", cpu, "/topology/physical_package_id"));
  int socket = -1;
  return file >> socket ? socket : -1;
}

}  // namespace

int bound_socket(const std::string& cpus) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return -1;
  int bound = -1;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const int socket = socket_of(cpus, cpu);
    if (socket < 0 || (bound >= 0 && socket != bound)) return -1;
    bound = socket;
  }
  return bound;
}

}  // namespace smp::base
