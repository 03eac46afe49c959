// Spans in memory of fixed size: what was written is read, also if the writer was killed.
#include "schedule/trace_ring.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "base/files.h"
#include "base/memory/mapped_file.h"
#include "support/refusal.h"

namespace smp::schedule {
namespace {

using testing::HasSubstr;

struct Memory {
  explicit Memory(std::size_t records) : words(TraceRing::bytes_for(records) / 8) {}
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(words)); }
  std::string text() {
    const auto all = bytes();
    return {reinterpret_cast<const char*>(all.data()), all.size()};
  }
  std::vector<std::int64_t> words;
};

TEST(TraceRing, GivesBackWhatWasWritten) {
  Memory memory(100);
  TraceRing ring(memory.bytes(), 3, true);
  ring.begin_step(7, 1000);
  ring.begin({1010, 0, 0, 2, 5, Phase::kBackward});
  ring.add({1020, 1, 99, RequestEvent::Kind::kAsked});
  ring.end(1030, 15);
  ring.begin({1040, 0, 0, 4, -1, Phase::kForward});
  ring.end(1050, 9);
  ring.end_step(7, 1100);
  ring.begin_step(8, 1200);
  ring.begin({1210, 0, 0, 0, 1, Phase::kForward});
  const auto steps = read_ring(memory.text(), "memory");
  ASSERT_EQ(steps.size(), 2u);
  const auto& first = steps[0].trace;
  EXPECT_TRUE(steps[0].ended);
  EXPECT_EQ(first.pp_rank, 3);
  EXPECT_TRUE(first.oversubscribed);
  EXPECT_EQ(first.step, 7);
  EXPECT_EQ(first.start, 1000);
  EXPECT_EQ(first.end, 1100);
  ASSERT_EQ(first.spans.size(), 2u);
  EXPECT_EQ(first.spans[0].start, 1010);
  EXPECT_EQ(first.spans[0].end, 1030);
  EXPECT_EQ(first.spans[0].cpu, 15);
  EXPECT_EQ(first.spans[0].microbatch, 2);
  EXPECT_EQ(first.spans[0].module, 5);
  EXPECT_EQ(first.spans[0].phase, Phase::kBackward);
  EXPECT_EQ(first.spans[1].module, -1);
  ASSERT_EQ(first.requests.size(), 1u);
  EXPECT_EQ(first.requests[0].time, 1020);
  EXPECT_EQ(first.requests[0].caller, 1);
  EXPECT_EQ(first.requests[0].request, 99);
  EXPECT_EQ(first.requests[0].kind, RequestEvent::Kind::kAsked);
  EXPECT_FALSE(steps[1].ended);
  EXPECT_EQ(steps[1].trace.spans.at(0).end, 0) << "it runs";
}

/// That of another machine began four days earlier.
TEST(TraceRing, GivesTimesByTheClockOfTheFirstRank) {
  constexpr base::Nanoseconds kEarlier = 345'600 * base::kSecond;
  Memory memory(100);
  TraceRing ring(memory.bytes(), 1, false);
  ring.begin_step(1, kEarlier + 10);
  ring.begin({kEarlier + 20, 0, 0, 0, 1, Phase::kForward});
  ring.end(kEarlier + 30, 7);
  ring.add({kEarlier + 35, 1, 99, RequestEvent::Kind::kAsked});
  ring.begin({kEarlier + 40, 0, 0, 1, 1, Phase::kForward});
  ring.set_clock_offset(kEarlier);
  const auto steps = read_ring(memory.text(), "memory");
  ASSERT_EQ(steps.size(), 1u);
  const auto& step = steps[0].trace;
  EXPECT_EQ(step.start, 10);
  ASSERT_EQ(step.spans.size(), 2u);
  EXPECT_EQ(step.spans[0].start, 20);
  EXPECT_EQ(step.spans[0].end, 30);
  EXPECT_EQ(step.spans[0].cpu, 7);
  EXPECT_EQ(step.spans[1].end, 0) << "it runs";
  ASSERT_EQ(step.requests.size(), 1u);
  EXPECT_EQ(step.requests[0].time, 35);
  EXPECT_EQ(step.requests[0].request, 99);
}

TEST(TraceRing, KeepsTheLatest) {
  constexpr std::size_t kRecords = 10;
  Memory memory(kRecords);
  TraceRing ring(memory.bytes(), 0, false);
  for (int step = 1; step <= 50; ++step) {
    ring.begin_step(step, 100 * step);
    for (int i = 1; i <= 2; ++i) {
      ring.begin({100 * step + i, 0, 0, i, 0, Phase::kForward});
      ring.end(100 * step + i + 1, 1);
    }
    ring.end_step(step, 100 * step + 9);
  }
  const auto steps = read_ring(memory.text(), "memory");
  ASSERT_EQ(steps.size(), 2u) << "4 records each; of a third only the end is left";
  EXPECT_EQ(steps[0].trace.step, 49);
  EXPECT_EQ(steps[1].trace.step, 50);
  for (const auto& step : steps) EXPECT_EQ(step.trace.spans.size(), 2u);
}

/// One span in each, and two between them.
void write_steps(TraceRing& ring, int count) {
  for (int step = 1; step <= count; ++step) {
    const auto time = base::Nanoseconds{100} * step;
    ring.begin_step(step, time);
    ring.begin({time + 10, 0, 0, 0, 3, Phase::kForward});
    ring.end(time + 20, 9);
    ring.end_step(step, time + 50);
    ring.begin({time + 50, 0, 0, -1, -1, Phase::kHost});
    ring.end(time + 60, 5);
    ring.begin({time + 60, 0, 0, -1, -1, Phase::kOptimizer});
    ring.end(time + 100, 30);
  }
}

TEST(TraceRing, GivesBackWhatWasBetweenSteps) {
  Memory memory(100);
  TraceRing ring(memory.bytes(), 0, false);
  write_steps(ring, 3);
  const auto steps = read_ring(memory.text(), "memory");
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_TRUE(steps[0].trace.between.empty());
  for (int i : {1, 2}) {
    EXPECT_EQ(steps[i].trace.spans.size(), 1u);
    const auto& between = steps[i].trace.between;
    ASSERT_EQ(between.size(), 2u);
    EXPECT_EQ(between[0].phase, Phase::kHost);
    EXPECT_EQ(between[0].start, steps[i - 1].trace.end);
    EXPECT_EQ(between[1].phase, Phase::kOptimizer);
    EXPECT_EQ(between[1].end, steps[i].trace.start);
    EXPECT_EQ(between[1].cpu, 30);
  }
}

TEST(TraceRing, TellsSpansBetweenStepsFromThoseOfAStepThatIsOverwrittenInPart) {
  for (std::size_t records = 1; records <= 12; ++records) {
    Memory memory(records);
    TraceRing ring(memory.bytes(), 0, false);
    write_steps(ring, 7);
    ring.begin_step(8, 800);
    for (const auto& step : read_ring(memory.text(), "memory")) {
      for (const auto& span : step.trace.spans) EXPECT_EQ(span.phase, Phase::kForward);
      for (const auto& span : step.trace.between) EXPECT_NE(span.phase, Phase::kForward);
      EXPECT_LE(step.trace.between.size(), 2u);
    }
  }
}

/// Its record has been given to something else.
TEST(TraceRing, ForgetsTheEndOfASpanThatIsOlderThanAllOthers) {
  Memory memory(4);
  TraceRing ring(memory.bytes(), 0, false);
  ring.begin({1, 0, 0, 0, 0, Phase::kForward});
  for (int i = 0; i < 6; ++i) ring.add({10 + i, 0, i, RequestEvent::Kind::kAsked});
  const auto before = memory.text();
  ring.end(100, 99);
  EXPECT_EQ(memory.text(), before);
}

TEST(TraceRing, SurvivesTheEndOfItsProcess) {
  const auto path =
      std::filesystem::temp_directory_path() / ("smp-trace-ring-" + std::to_string(::getpid()));
  const auto child = ::fork();
  if (child == 0) {
    const base::MappedFile file(path, TraceRing::bytes_for(1000));
    TraceRing ring(file.bytes(), 2, false);
    ring.begin_step(41, 5);
    for (int i = 0; i < 100; ++i) {
      ring.begin({10 * i, 0, 0, i, i, Phase::kForward});
      if (i < 99) ring.end(10 * i + 9, 8);
    }
    std::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  const auto steps = read_ring(base::read_file(path), path);
  std::filesystem::remove(path);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].trace.step, 41);
  EXPECT_FALSE(steps[0].ended);
  ASSERT_EQ(steps[0].trace.spans.size(), 100u);
  EXPECT_EQ(steps[0].trace.spans[98].end, 989);
  EXPECT_EQ(steps[0].trace.spans[99].end, 0);
}

TEST(TraceRing, RefusesWhatIsNone) {
  Memory memory(4);
  EXPECT_THAT(refusal([&] { (void)read_ring("short", "a.ring"); }),
              HasSubstr("a.ring is no record"));
  EXPECT_THAT(refusal([&] { (void)read_ring(memory.text(), "a.ring"); }),
              HasSubstr("or of another version"));
  TraceRing ring(memory.bytes(), 0, false);
  auto text = memory.text();
  EXPECT_TRUE(read_ring(text, "a.ring").empty());
  text.resize(text.size() - 1);
  EXPECT_THAT(refusal([&] { (void)read_ring(text, "a.ring"); }), HasSubstr("a.ring is cut"));
}

}  // namespace
}  // namespace smp::schedule
