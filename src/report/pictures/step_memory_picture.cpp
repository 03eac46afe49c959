// report/pictures/step_memory_picture.cpp: a column of pixels shows the most of its moments, so
// that no peak is lost however long the step is.
#include "report/pictures/step_memory_picture.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "partition/text/short_text.h"
#include "report/page/svg_writer.h"

namespace smp::report {
namespace {

using base::concat;
using base::Nanoseconds;
using partitioning::short_bytes;
using partitioning::short_seconds;
using Moments = std::vector<simulate::LiveMoment>;

constexpr double kLeft = 84;
constexpr int kColumns = 760;
constexpr double kRight = 156;  // for the peaks
constexpr double kWidth = kLeft + kColumns + kRight;
constexpr double kTop = 96;
constexpr double kAxis = 40;
constexpr double kGap = 12;
constexpr std::size_t kFewStages = 8;
constexpr double kHighLane = 84, kLowLane = 30;
constexpr double kFull = 1.06;  // of the most that is drawn

constexpr const char* kFixed = "#9ecae9";
constexpr const char* kLive = "#ffb08a";
constexpr const char* kHeld = "#7a4fa3";
constexpr const char* kOver = "#c22f2f";
constexpr const char* kNameOfFixed = "weights, gradients, optimizer, buffers";
constexpr const char* kNameOfLive = "activations";
constexpr const char* kNameOfHeld = "if nothing were computed again";

std::int64_t fixed_of(const StageSummary& stage) { return stage.memory() - stage.activations; }

std::int64_t peak_of(const Moments& live) {
  std::int64_t peak = 0;
  for (const auto& moment : live) peak = std::max(peak, moment.most);
  return peak;
}

class StepMemoryPicture {
 public:
  StepMemoryPicture(const PlanSummary& summary, const partitioning::StepMemory& memory)
      : summary_(summary),
        memory_(memory),
        length_(std::max<Nanoseconds>(1, memory.length)),
        lane_(summary.stages.size() > kFewStages ? kLowLane : kHighLane),
        svg_(kWidth, kTop + lanes_height() + kAxis) {
    std::int64_t most = 1;
    for (std::size_t stage = 0; stage < summary_.stages.size(); ++stage) {
      most = std::max({most, peak(stage), fixed(stage) + peak_of(held(stage))});
    }
    // A limit far above tells nothing, and would press all else to the floor.
    std::int64_t limit = 0;
    for (const auto& stage : summary_.stages) limit = std::max(limit, stage.memory_limit);
    full_ = kFull * static_cast<double>(limit < 3 * most ? std::max(most, limit) : most);
  }

  std::string draw() {
    draw_head();
    draw_times();
    for (std::size_t stage = 0; stage < summary_.stages.size(); ++stage) draw_stage(stage);
    return std::move(svg_).finish();
  }

 private:
  static const Moments& at(const partitioning::StepMemory::OfStages& stages, std::size_t stage) {
    static const Moments nothing;
    return stage < stages.size() ? stages[stage] : nothing;
  }
  const Moments& live(std::size_t stage) const { return at(memory_.live, stage); }
  const Moments& held(std::size_t stage) const { return at(memory_.held, stage); }
  std::int64_t fixed(std::size_t stage) const { return fixed_of(summary_.stages[stage]); }
  std::int64_t peak(std::size_t stage) const { return fixed(stage) + peak_of(live(stage)); }

  double lanes_height() const {
    return static_cast<double>(summary_.stages.size()) * (lane_ + kGap);
  }
  double floor_of(std::size_t stage) const {
    return kTop + static_cast<double>(stage) * (lane_ + kGap) + lane_;
  }
  double height(std::int64_t bytes) const { return static_cast<double>(bytes) / full_ * lane_; }

  void draw_head() {
    std::size_t largest = 0;
    for (std::size_t stage = 1; stage < summary_.stages.size(); ++stage) {
      if (peak(stage) > peak(largest)) largest = stage;
    }
    svg_.headline(concat("Memory over a simulated step: at most ", short_bytes(peak(largest)),
                         " (stage ", largest, ")"));
    svg_.text({20, 46},
              concat("a training step of ", short_seconds(static_cast<double>(length_) / 1e9),
                     ", schedule ", summary_.pipeline,
                     memory_.held.empty() ? "" : "; calls run again in their backwards, not ahead"),
              {.fill = "#555555"});
    double left = 20;
    const auto entry = [&](const char* name, const char* fill) {
      svg_.rectangle({left, 59}, 16, 13, {.fill = fill, .stroke = "#9a9a9a", .group = "legend"});
      svg_.text({left + 22, 70}, name);
      left += 40 + text_length(name, 12);
    };
    entry(kNameOfFixed, kFixed);
    entry(kNameOfLive, kLive);
    if (!memory_.held.empty()) {
      svg_.line({left, 66}, {left + 16, 66}, {.fill = "", .stroke = kHeld, .stroke_width = 1.5});
      svg_.text({left + 22, 70}, kNameOfHeld);
    }
  }

  void draw_times() {
    const double bottom = kTop + lanes_height() - kGap / 2;
    for (int part = 0; part <= 4; ++part) {
      const double x = kLeft + part * kColumns / 4.0;
      svg_.line({x, kTop - 6}, {x, bottom}, {.fill = "", .stroke = "#dddddd"});
      const auto time = static_cast<double>(length_) * part / 4 / base::kSecond;
      svg_.text({x, bottom + 18}, part == 0 ? "0" : short_seconds(time),
                {.anchor = "middle", .group = "tick"});
    }
  }

  void draw_stage(std::size_t stage) {
    const double floor = floor_of(stage);
    const double middle = floor - lane_ / 2 + 4;
    svg_.text({kLeft - 10, middle}, concat("stage ", stage),
              {.anchor = "end", .bold = true, .group = "stage"});
    const double base = floor - height(fixed(stage));
    svg_.rectangle({kLeft, base}, kColumns, floor - base, {.fill = kFixed, .group = "fixed"},
                   concat(kNameOfFixed, ": ", short_bytes(fixed(stage))));
    auto area = outline(live(stage), base);
    area.push_back({kLeft + kColumns, base});
    svg_.path(area, {.fill = kLive, .group = "live"});
    if (!memory_.held.empty()) {
      svg_.path(outline(held(stage), base),
                {.stroke = kHeld, .stroke_width = 1.5, .group = "held"});
    }
    draw_limit(summary_.stages[stage], floor);
    svg_.line({kLeft, floor}, {kLeft + kColumns, floor}, {.fill = "", .stroke = "#888888"});
    svg_.text({kLeft + kColumns + 10, middle}, short_bytes(peak(stage)),
              {.bold = true, .group = "peak"});
  }

  void draw_limit(const StageSummary& stage, double floor) {
    if (stage.memory_limit == 0 || static_cast<double>(stage.memory_limit) > full_) return;
    const double y = floor - height(stage.memory_limit);
    svg_.line({kLeft, y}, {kLeft + kColumns, y},
              {.fill = "", .stroke = kOver, .stroke_width = 1.5, .dash = "4 3", .group = "limit"});
    svg_.text({kLeft + kColumns + 10, y + 4}, "limit", {.size = 11, .fill = kOver});
  }

  /// The corners of a line that is as high above `base` as bytes are live, from the left on.
  std::vector<Point> outline(const Moments& moments, double base) const {
    std::vector<Point> corners{{kLeft, base}};
    const auto columns = most_by_column(moments, length_, kColumns);
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const double y = base - height(columns[i]);
      if (y == corners.back().y) continue;
      const double x = kLeft + static_cast<double>(i);
      corners.push_back({x, corners.back().y});
      corners.push_back({x, y});
    }
    corners.push_back({kLeft + kColumns, corners.back().y});
    return corners;
  }

  const PlanSummary& summary_;
  const partitioning::StepMemory& memory_;
  const Nanoseconds length_;
  const double lane_;
  SvgWriter svg_;
  double full_ = 1;  // bytes at the upper edge of a lane
};

}  // namespace

std::vector<std::int64_t> most_by_column(const Moments& live, Nanoseconds length, int columns) {
  std::vector<std::int64_t> most(static_cast<std::size_t>(columns), 0);
  std::int64_t now = 0;
  std::size_t column = 0;
  const auto column_of = [&](Nanoseconds time) {
    const auto share = static_cast<double>(time) / static_cast<double>(length);
    return std::min(static_cast<std::size_t>(share * columns), most.size() - 1);
  };
  for (const auto& moment : live) {
    const auto next = column_of(moment.time);
    while (column < next) most[++column] = now;
    most[column] = std::max(most[column], moment.most);
    now = moment.bytes;
  }
  while (++column < most.size()) most[column] = now;
  return most;
}

std::string draw_step_memory(const PartitionPlan& plan, const partitioning::StepMemory& memory) {
  SMP_ASSERT(plan.summary().has_value());
  return StepMemoryPicture(*plan.summary(), memory).draw();
}

}  // namespace smp::report
