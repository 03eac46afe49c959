// api/planning/message_probe.h: what a message between stages costs, by a clock.
#pragma once

#include "simulate/machine.h"

namespace smp {

class Runtime;

/// Measures what messages between stages cost. All pp ranks call it at once, outside of steps; it
/// takes some milliseconds. pp_rank 0 makes round trips to some of the others, in turn: the medians
/// of small and of large messages become latency, handling and bandwidth; those to other sockets
/// and to other nodes become the latency and bandwidth of these links.
/// @param lends  true if large tensors are lent within a machine. These round trips are
///               collectives, which do not lend, so the bandwidth there stays as it is
/// @return on pp_rank 0 `machine` with the measured costs; `machine` on other ranks, and if there
///         is no other rank
[[nodiscard]] simulate::Machine with_measured_messages(Runtime& runtime, simulate::Machine machine,
                                                       bool lends);

}  // namespace smp
