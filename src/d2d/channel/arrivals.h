// d2d/channel/arrivals.h: frames that have come in part: their control bytes are here, tensors are
// missing. Threads: one at a time.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/clock.h"
#include "d2d/channel/frame.h"
#include "d2d/channel/route.h"
#include "d2d/wire/byte_buffer.h"
#include "d2d/wire/slots.h"
#include "smp/rank.h"

namespace smp::d2d {

/// A complete frame, and the buffer that its header and body lie in.
struct Arrival {
  GlobalRank source;
  ReadFrame frame;
  ByteBuffer control;
};

/// Reads control bytes and receives the tensors that they announce.
class Arrivals {
 public:
  /// Reads a frame from `control`, and adds it to `whole`, or, if tensors are still to come,
  /// receives them under one token.
  /// @throws InternalError     the bytes are malformed.
  /// @throws UnsupportedError  LibTorch has no such device here.
  void read(GlobalRank source, ByteBuffer&& control, const Routes& routes,
            std::vector<Arrival>& whole);
  /// Notes that one of the tensors under `token` has come. Adds the frame to `whole`, and returns
  /// true, if it was the last.
  bool received(Token token, std::vector<Arrival>& whole);
  /// True if no tensor is missing.
  bool empty() const noexcept { return incomplete_.empty(); }
  /// Returns a text about a frame whose tensors have been missing for longer than `deadline`, and
  /// another second for each MB; empty if there is none.
  std::string overdue(base::Nanoseconds deadline) const;

 private:
  struct Incomplete {
    Arrival arrival;
    std::size_t missing = 0;  // tensors
    std::size_t bytes = 0;    // of all that were
    base::Nanoseconds since = 0;
  };
  ReadFrame decode(GlobalRank source, const ByteBuffer& control, const Routes& routes);
  Wire& wire_of(const DataTensor& tensor, GlobalRank source, const Routes& routes) const;

  std::vector<DataTensor> data_tensors_;  // of the frame at hand
  Slots<Incomplete> incomplete_;
  base::SteadyClock clock_;
};

}  // namespace smp::d2d
