// server/protocol/message_encoder.h: messages as frames. Headers have a fixed size and are copied
// as they are; what has no fixed size stands at the start of the body (frame_extra.h,
// number_list.h). Threads: the rank's.
#pragma once

#include <cstdint>
#include <memory>

#include "d2d/channel/channel.h"
#include "server/protocol/message.h"
#include "smp/rank.h"

namespace smp::server {

/// Sends one message of step `step`. Tensors leave without history. Safe in a poll.
/// @throws what d2d::Channel::send throws.
void send_message(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const Message& message);
void send_message(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const ForwardRequest& message);
void send_message(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const ForwardResponse& message);
void send_message(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const BackwardRequest& message);
void send_message(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const BackwardResponse& message);

/// @param departure  counts the tensors that have not left yet
void send_message(d2d::Channel& channel, GlobalRank peer, std::int64_t step,
                  const StepEnded& message, const std::shared_ptr<d2d::Departure>& departure);

}  // namespace smp::server
