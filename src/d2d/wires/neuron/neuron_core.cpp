// d2d/wires/neuron/neuron_core.cpp: see the header.
#include "d2d/wires/neuron/neuron_core.h"

#include "base/check.h"

namespace smp::d2d {

AbsoluteCore CoreClaim::absolute(RelativeCore core) const {
  SMP_REQUIRE(core.value() >= 0 && core.value() < count, "Neuron core ", core, " of the ", count,
              " that this process has claimed (", text(), "); they are numbered from 0.");
  return AbsoluteCore(first_on_host + first + core.value());
}

std::string CoreClaim::text() const {
  if (count == 1) return std::to_string(first);
  return base::concat(first, '-', first + count - 1);
}

CoreClaim share_of_cores(int cores, int local_rank, int local_size, int first_on_host) {
  SMP_REQUIRE(local_rank >= 0 && local_rank < local_size, "rank ", local_rank, " of ", local_size,
              " ranks of a machine.");
  SMP_REQUIRE(cores >= local_size, "this machine has ", cores, " logical Neuron cores for ",
              local_size,
              " ranks, and each needs one; start fewer ranks on it, or let each physical core be a "
              "logical one (NEURON_LOGICAL_NC_CONFIG=1).");
  const int each = cores / local_size;
  return {local_rank * each, each, first_on_host};
}

}  // namespace smp::d2d
