// api/planning/message_probe.h: what a message between stages costs, by a clock.
#pragma once

#include "simulate/machine.h"

namespace smp {

class Rank;

/// Outside of steps, called by all pp ranks at once; takes some milliseconds. Round trips from
/// pp_rank 0 to some of the others, in turn: the medians of small and of large messages become
/// latency, handling and bandwidth; those to other sockets and to other nodes the latency and
/// bandwidth of these links.
/// @param lends  large tensors are lent within a machine, which these round trips, collectives, do
/// not do: there the bandwidth stays as it is
/// @return on pp_rank 0: `machine` with the measured costs; elsewhere, and where no other rank is
/// there: `machine`
[[nodiscard]] simulate::Machine with_measured_messages(const Rank& rank, simulate::Machine machine,
                                                       bool lends);

}  // namespace smp
