// schedule/trace_ring.cpp: records in place, and steps out of them.
#include "schedule/trace_ring.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace smp::schedule {
namespace {

constexpr std::uint64_t kMagic = 0x31474e4952504d53;  // "SMPRING1"

struct Head {
  std::uint64_t magic;
  std::uint64_t capacity;  // records
  std::uint64_t written;   // ever
  std::int32_t pp_rank;
  std::uint32_t oversubscribed;
  std::int64_t clock_offset;  // see set_clock_offset()
  std::uint64_t unused[3];
};
static_assert(sizeof(Head) == TraceRing::kHeadBytes);

enum RecordKind : std::uint8_t { kNone, kBeginOfStep, kEndOfStep, kSpan, kEvent };

}  // namespace

struct TraceRecord {
  std::int64_t time;        // start of a span
  std::int64_t end;         // of a span; number of a step or of a request
  std::int64_t cpu;         // of a span
  std::int32_t microbatch;  // of a span; caller of a request
  std::int32_t module;      // of a span
  std::uint8_t kind;        // RecordKind
  std::uint8_t what;        // phase, or kind of an event
  std::uint8_t unused[6];
};
static_assert(sizeof(TraceRecord) == TraceRing::kRecordBytes);

TraceRing::TraceRing(std::span<std::byte> memory, int pp_rank, bool oversubscribed)
    : memory_(memory), capacity_((memory.size() - kHeadBytes) / kRecordBytes) {
  static_assert(std::is_trivially_copyable_v<TraceRecord>);
  SMP_ASSERT(memory.size() >= bytes_for(1), memory.size(), " bytes");
  const Head head{kMagic, capacity_, 0, pp_rank, oversubscribed ? 1u : 0u, 0, {}};
  std::memcpy(memory.data(), &head, sizeof head);
}

void TraceRing::set_clock_offset(base::Nanoseconds offset) noexcept {
  auto& head = *reinterpret_cast<Head*>(memory_.data());
  std::atomic_ref(head.clock_offset).store(offset, std::memory_order_relaxed);
}

TraceRecord& TraceRing::next() noexcept {
  auto* const place = memory_.data() + kHeadBytes + written_ % capacity_ * kRecordBytes;
  auto& record = *reinterpret_cast<TraceRecord*>(place);
  if (&record == open_) open_ = nullptr;  // a long span: its end has no place any more
  return record;
}

void TraceRing::publish() noexcept {
  auto& head = *reinterpret_cast<Head*>(memory_.data());
  std::atomic_ref(head.written).store(++written_, std::memory_order_release);
}

void TraceRing::begin_step(std::int64_t step, base::Nanoseconds time) noexcept {
  next() = {time, step, 0, -1, -1, kBeginOfStep, 0, {}};
  publish();
}

void TraceRing::end_step(std::int64_t step, base::Nanoseconds time) noexcept {
  next() = {time, step, 0, -1, -1, kEndOfStep, 0, {}};
  publish();
}

void TraceRing::begin(const Span& span) noexcept {
  auto& record = next();
  record = {
      span.start, 0, 0, span.microbatch, span.module, kSpan, static_cast<std::uint8_t>(span.phase),
      {}};
  open_ = &record;
  publish();
}

void TraceRing::end(base::Nanoseconds time, base::Nanoseconds cpu) noexcept {
  if (open_ == nullptr) return;
  open_->cpu = cpu;
  std::atomic_ref(open_->end).store(time, std::memory_order_release);
  open_ = nullptr;
}

void TraceRing::add(const RequestEvent& event) noexcept {
  next() = {
      event.time, event.request, 0, event.caller, -1, kEvent, static_cast<std::uint8_t>(event.kind),
      {}};
  publish();
}

namespace {

/// Converts a time to the clock of the first rank. A damaged file may hold any two numbers, so the
/// subtraction must not overflow.
std::int64_t moved_back(std::int64_t time, std::int64_t offset) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(time) -
                                   static_cast<std::uint64_t>(offset));
}

void move_back(TraceRecord& record, std::int64_t offset) {
  record.time = moved_back(record.time, offset);
  if (record.kind == kSpan && record.end != 0) record.end = moved_back(record.end, offset);
}

Span span_of(const TraceRecord& record) {
  return {record.time,       record.end,    record.cpu,
          record.microbatch, record.module, static_cast<Phase>(record.what)};
}

/// Builds the steps from records, which are added the oldest first.
class RingReading {
 public:
  explicit RingReading(const Head& head) : head_(head) {}

  void add(const TraceRecord& record) {
    if (record.kind == kBeginOfStep) return begin_step(record);
    if (between_steps_ && record.kind == kSpan) before_.push_back(span_of(record));
    if (steps_.empty() || between_steps_) {  // of a step that is overwritten in part
      between_steps_ |= record.kind == kEndOfStep;
      return;
    }
    auto& step = steps_.back();
    if (record.kind == kEndOfStep) {
      step.trace.end = record.time;
      step.ended = between_steps_ = true;
    } else if (record.kind == kSpan) {
      step.trace.spans.push_back(span_of(record));
    } else if (record.kind == kEvent) {
      step.trace.requests.push_back({record.time, record.microbatch, record.end,
                                     static_cast<RequestEvent::Kind>(record.what)});
    }
  }

  std::vector<RingStep> steps() && { return std::move(steps_); }

 private:
  void begin_step(const TraceRecord& record) {
    auto& trace = steps_.emplace_back().trace;
    trace.pp_rank = head_.pp_rank;
    trace.oversubscribed = head_.oversubscribed != 0;
    trace.step = record.end;
    trace.start = record.time;
    trace.between = std::exchange(before_, {});
    between_steps_ = false;
  }

  const Head& head_;
  std::vector<RingStep> steps_;
  std::vector<Span> before_;  // the next step
  bool between_steps_ = false;
};

}  // namespace

std::vector<RingStep> read_ring(std::string_view memory, const std::string& name) {
  Head head{};
  SMP_REQUIRE(memory.size() >= sizeof head, name, " is no record of spans: it has ", memory.size(),
              " bytes");
  std::memcpy(&head, memory.data(), sizeof head);
  SMP_REQUIRE(head.magic == kMagic, name,
              " is no record of spans, or of another version of this library");
  const auto room = (memory.size() - sizeof head) / TraceRing::kRecordBytes;
  SMP_REQUIRE(head.capacity >= 1 && head.capacity <= room, name, " is cut: ", head.capacity,
              " records, but room for ", room);
  RingReading reading(head);
  const auto oldest = head.written - std::min(head.written, head.capacity);
  for (auto number = oldest; number < head.written; ++number) {
    TraceRecord record;
    const auto at = sizeof head + number % head.capacity * TraceRing::kRecordBytes;
    std::memcpy(&record, memory.data() + at, sizeof record);
    move_back(record, head.clock_offset);
    reading.add(record);
  }
  return std::move(reading).steps();
}

}  // namespace smp::schedule
