// server/protocol/message_decoder.h: frames as messages again. Threads: the rank's.
#pragma once

#include <cstdint>

#include "d2d/channel/channel.h"
#include "server/protocol/message.h"

namespace smp::server {

struct ReceivedMessage {
  std::int64_t step = 0;  ///< of the sender
  Message message;
};
/// Decodes what send_message() sent. @throws InternalError  the frame is not one of ours.
[[nodiscard]] ReceivedMessage decode_message(d2d::ArrivedFrame&& frame);

}  // namespace smp::server
