// schedule/trace_ring.h: the latest spans and messages of one rank as plain memory of fixed size,
// which may be a file: so that a run that was killed can still be looked at. Paper §4.2.
//
// The memory: a head of 64 bytes, then records of 40 bytes; record n is in place n modulo their
// number. A record is complete before the head counts it. Little endian, as the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "schedule/step_trace.h"

namespace smp::schedule {

struct TraceRecord;

/// Writes the ring. A call takes some nanoseconds, without allocation or system call. Threads: one.
class TraceRing {
 public:
  /// Returns the bytes of memory for `records` records.
  static constexpr std::size_t bytes_for(std::size_t records) noexcept {
    return kHeadBytes + records * kRecordBytes;
  }

  /// @param memory  zeros, on an 8-byte boundary, for at least one record; outlives this object
  TraceRing(std::span<std::byte> memory, int pp_rank, bool oversubscribed);

  /// Sets by how much this rank's clock is ahead of that of the first rank, by which all times are
  /// read; a clock of another machine may have begun days earlier.
  void set_clock_offset(base::Nanoseconds offset) noexcept;
  void begin_step(std::int64_t step, base::Nanoseconds time) noexcept;
  void end_step(std::int64_t step, base::Nanoseconds time) noexcept;
  /// Records that a span begins, in a step or between two: its end and its processor time are not
  /// known yet.
  void begin(const Span& span) noexcept;
  /// Records the end of the span that began last.
  void end(base::Nanoseconds time, base::Nanoseconds cpu) noexcept;
  void add(const RequestEvent& event) noexcept;

  static constexpr std::size_t kHeadBytes = 64, kRecordBytes = 40;

 private:
  TraceRecord& next() noexcept;
  void publish() noexcept;

  std::span<std::byte> memory_;
  std::uint64_t capacity_;
  std::uint64_t written_ = 0;
  TraceRecord* open_ = nullptr;  // of the span that began last
};

/// One step as a ring holds it.
struct RingStep {
  /// The trace of the step. `end`, and the end of spans that still run, are 0 where they are not
  /// known. `between` is complete, or empty.
  StepTrace trace;
  bool ended = false;  ///< true if the step ended on this rank
};

/// Returns the steps whose beginning `memory` still holds, in the order they began, with times by
/// the first rank's clock.
/// @param name  of the file, for messages
/// @throws UsageError  it is no such memory, of another version, or cut
[[nodiscard]] std::vector<RingStep> read_ring(std::string_view memory, const std::string& name);

}  // namespace smp::schedule
