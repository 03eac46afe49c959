// server/output_message.h: the outputs of a step's body, one packet a microbatch, as one message.
#pragma once

#include <vector>

#include "server/message.h"
#include "smp/call.h"

namespace smp::server {

/// Tensors leave without their autograd history.
Message pack_outputs(const std::vector<Packet>& outputs);
std::vector<Packet> unpack_outputs(Message&& message);

}  // namespace smp::server
