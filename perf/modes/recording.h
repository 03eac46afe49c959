// perf/modes/recording.h: steps that are written down.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "api/rank/rank.h"
#include "schedule/trace_ring.h"
#include "server/running/span_recorder.h"
#include "smp/smp.h"

namespace smp::perf::modes {

/// What the run's log has a rank write down while it works.
class Recording {
 public:
  static server::SpanRecorder& recorder() { return Rank::current().server().recorder(); }

  Recording()
      : memory_(schedule::TraceRing::bytes_for(kRecords) / sizeof(std::int64_t)),
        ring_(std::as_writable_bytes(std::span(memory_)), rank(), false) {
    recorder().enable(true);
    recorder().write_to(&ring_);
  }
  ~Recording() {
    recorder().enable(false);
    recorder().write_to(nullptr);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  static constexpr std::size_t kRecords = 1 << 16;
  std::vector<std::int64_t> memory_;
  schedule::TraceRing ring_;
};

}  // namespace smp::perf::modes
