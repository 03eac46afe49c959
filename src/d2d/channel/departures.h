// d2d/channel/departures.h: tensors that are being sent: kept alive, and watched for changes.
// Threads: the rank's thread only.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "d2d/wire/slots.h"
#include "d2d/wire/wire.h"
#include "smp/rank.h"

namespace smp::fiber {
class Event;
}

namespace smp::d2d {

/// Tells a fiber when the tensors of its frames have left.
struct Departure {
  std::size_t in_flight = 0;        ///< tensors
  fiber::Event* on_left = nullptr;  ///< signalled when the last one has left
};

/// The table of tensors in flight.
class Departures {
 public:
  /// Adds `tensor`, number `index` of a frame to `peer`. It shares its version counter with the
  /// sender's tensor, unless it is a copy, of which nobody else knows.
  /// @param memory  what keeps its memory as it is, whoever writes to it
  /// (d2d/tensors/copy_on_write.h); nullptr: writes reach it
  Token start(GlobalRank peer, std::size_t index, at::Tensor tensor,
              c10::intrusive_ptr<c10::StorageImpl> memory, std::shared_ptr<Departure> departure);
  /// Lets go of the tensor. Returns a text if its memory was changed while it was on its way.
  std::optional<std::string> finish(Token token);

 private:
  struct Departing {
    GlobalRank peer;
    std::size_t index = 0;
    std::uint32_t version = 0;
    at::Tensor tensor;
    c10::intrusive_ptr<c10::StorageImpl> memory;
    std::shared_ptr<Departure> departure;
  };
  Slots<Departing> tensors_;
};

}  // namespace smp::d2d
