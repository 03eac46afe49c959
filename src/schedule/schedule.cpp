// schedule/schedule.cpp: the two schedules of paper §4.3, and all schedules by name.
#include "schedule/schedule.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "schedule/list_check.h"
#include "schedule/list_generators.h"
#include "schedule/list_schedule.h"

namespace smp::schedule {
namespace {

constexpr std::string_view kFilePrefix = "file:";

class Simple final : public Schedule {
 public:
  const char* name() const noexcept override { return "simple"; }
  bool may_start(const Progress&) const noexcept override { return true; }
  bool may_begin_backward(const Progress& progress) const noexcept override {
    return progress.forward_done == progress.microbatches;
  }
  std::int64_t priority(Phase phase, int microbatch, const Progress& p) const noexcept override {
    return phase == Phase::kForward ? microbatch : p.microbatches + microbatch;
  }
  int most_alive(int, int microbatches) const noexcept override { return microbatches; }
};

class Interleaved final : public Schedule {
 public:
  Interleaved(int active_microbatches, int lead) : cap_(active_microbatches), lead_(lead) {}
  const char* name() const noexcept override { return "interleaved"; }
  bool may_start(const Progress& progress) const noexcept override {
    return progress.in_flight() < cap_;
  }
  bool may_begin_backward(const Progress&) const noexcept override { return true; }
  std::int64_t priority(Phase phase, int microbatch, const Progress&) const noexcept override {
    const std::int64_t place = microbatch;
    return phase == Phase::kForward ? 2 * place + 1 : 2 * (place + lead_);
  }
  int most_alive(int, int microbatches) const noexcept override {
    return std::min(cap_, microbatches);
  }

 private:
  int cap_;
  int lead_;
};

/// Where more is in flight than fills the pipeline. A backward that always went first would starve
/// forwards, whose backwards then come late: where ranks have several stages 1.08 of the ideal step
/// instead of 1.04 with 4 ranks and 1.07 instead of 1.01 with 8 (perf/bubble.cpp, planned).
int usual_lead(const StepShape& shape) {
  const int to_spare = shape.active_microbatches - shape.pp_size - 2;
  return std::clamp(to_spare, 0, shape.pp_size);
}

/// "1f1b+2": lists for ranks that may keep more microbatches.
struct GeneratorName {
  std::string_view generator;
  int more = 0;
};

/// @param most  no schedule uses more than that
GeneratorName split_name(std::string_view name, int most) {
  const auto plus = name.find('+');
  if (plus == std::string_view::npos) return {name, 0};
  const auto digits = name.substr(plus + 1);
  int more = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), more);
  const bool is_number = error == std::errc() && end == digits.data() + digits.size() && more >= 0;
  return {is_number ? name.substr(0, plus) : std::string_view(), std::min(more, most)};
}

std::unique_ptr<Schedule> from_file(const std::string& name, const StepShape& shape) {
  const auto path = name.substr(kFilePrefix.size());
  auto lists = ScheduleLists::read(path);
  SMP_REQUIRE(lists.pp_size() == shape.pp_size, path, ": a schedule for ", lists.pp_size(),
              " ranks, and the pipeline has ", shape.pp_size);
  SMP_REQUIRE(lists.microbatches == shape.microbatches, path, ": a schedule for ",
              lists.microbatches, " microbatches, and a step has ", shape.microbatches,
              "; change the file or the key microbatches");
  check_lists(lists, path);
  return make_list_schedule(name, lists);
}

}  // namespace

std::unique_ptr<Schedule> make_simple() { return std::make_unique<Simple>(); }

std::unique_ptr<Schedule> make_interleaved(int active_microbatches, int lead) {
  SMP_REQUIRE(active_microbatches >= 1, "active_microbatches is ", active_microbatches,
              "; at least one microbatch must be in flight");
  SMP_ASSERT(lead >= 0, "a lead of ", lead);
  return std::make_unique<Interleaved>(active_microbatches, lead);
}

std::unique_ptr<Schedule> make_schedule(const std::string& name, const StepShape& shape) {
  const auto [pp_size, microbatches, active_microbatches] = shape;
  if (name == "simple") return make_simple();
  if (name == "interleaved") return make_interleaved(active_microbatches, usual_lead(shape));
  const auto [generator, more] = split_name(name, microbatches);
  if (generator == "1f1b") {
    return make_list_schedule(name, one_forward_one_backward_lists(pp_size, microbatches, more));
  }
  if (generator == "zero_bubble") {
    return make_list_schedule(name, zero_bubble_lists(pp_size, microbatches, more));
  }
  SMP_REQUIRE(name.starts_with(kFilePrefix), "unknown pipeline schedule \"", name,
              "\"; use \"simple\", \"interleaved\", \"1f1b\", \"zero_bubble\" (or "
              "\"1f1b+N\", \"zero_bubble+N\") or \"file:PATH\"");
  return from_file(name, shape);
}

}  // namespace smp::schedule
