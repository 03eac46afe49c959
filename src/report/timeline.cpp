// report/timeline.cpp: lanes, a time axis, sums and a legend.
#include "report/timeline.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "report/svg_writer.h"

namespace smp::report {
namespace {

using base::concat;
using base::Nanoseconds;
using base::Phase;
using base::Span;
using base::StepTrace;

constexpr double kWidth = 1280;
constexpr double kLeft = 76;
constexpr double kRight = 190;  // for the sums
constexpr double kTop = 74;
constexpr double kLane = 40;
constexpr double kGap = 10;
constexpr double kAxis = 40;  // below the lanes
constexpr double kLegendRow = 22;
constexpr double kMinWidthOfNumber = 13;
constexpr const char* kIdle = "url(#idle)";
constexpr const char* kOther = "#9a9a9a";

double milliseconds(Nanoseconds time) { return static_cast<double>(time) / 1e6; }

std::string in_milliseconds(Nanoseconds time) {
  const double value = milliseconds(time);
  char text[32];
  std::snprintf(text, sizeof text,
                value < 10    ? "%.2f ms"
                : value < 100 ? "%.1f ms"
                              : "%.0f ms",
                value);
  return text;
}

std::string percent(double share) {
  char text[16];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

// Neighbouring microbatches get hues far apart: steps of the golden angle.
std::string span_color(int microbatch, Phase phase) {
  if (microbatch < 0 || phase == Phase::kOptimizer || phase == Phase::kOther) return kOther;
  const double hue = std::fmod(210 + 137.508 * microbatch, 360);
  return phase == Phase::kForward ? color(hue, 0.70, 0.76) : color(hue, 0.62, 0.40);
}

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kOptimizer:
      return "optimizer";
    case Phase::kOther:
      return "other";
  }
  return "";
}

class TimelinePicture {
 public:
  explicit TimelinePicture(const StepTimeline& timeline)
      : timeline_(timeline), svg_(kWidth, height(timeline)) {
    for (const StepTrace& rank : timeline.ranks) measure(rank);
    if (end_ <= start_) end_ = start_ + 1;
  }

  std::string draw() {
    svg_.define_hatch("idle", "#fafafa", "#d6d6d6");
    draw_title();
    draw_axis();
    for (std::size_t lane = 0; lane < timeline_.ranks.size(); ++lane) draw_lane(lane);
    draw_legend();
    return std::move(svg_).finish();
  }

 private:
  static double lanes_height(const StepTimeline& timeline) {
    return static_cast<double>(timeline.ranks.size()) * (kLane + kGap);
  }
  static double height(const StepTimeline& timeline) {
    return kTop + lanes_height(timeline) + kAxis + 2 * kLegendRow + 14;
  }

  void measure(const StepTrace& rank) {
    if (&rank == &timeline_.ranks.front()) {
      start_ = rank.start;
      end_ = rank.end;
    }
    start_ = std::min(start_, rank.start);
    end_ = std::max(end_, rank.end);
    oversubscribed_ |= rank.oversubscribed;
    for (const Span& span : rank.spans) {
      start_ = std::min(start_, span.start);
      end_ = std::max(end_, span.end);
      num_microbatches_ = std::max(num_microbatches_, span.microbatch + 1);
    }
  }

  double x(Nanoseconds time) const {
    return kLeft + static_cast<double>(time - start_) / static_cast<double>(end_ - start_) *
                       (kWidth - kLeft - kRight);
  }
  double lane_top(std::size_t lane) const {
    return kTop + static_cast<double>(lane) * (kLane + kGap);
  }

  void draw_title() {
    const std::size_t ranks = timeline_.ranks.size();
    const std::int64_t step = ranks == 0 ? 0 : timeline_.ranks.front().step;
    svg_.text({20, 26},
              concat("Step ", step, ": ", in_milliseconds(end_ - start_), " on ", ranks,
                     ranks == 1 ? " rank, " : " ranks, ", num_microbatches_,
                     num_microbatches_ == 1 ? " microbatch, " : " microbatches, ", "bubble ",
                     percent(base::bubble(timeline_.ranks))),
              {.size = 16, .fill = "#111111", .bold = true});
    if (!oversubscribed_) {
      svg_.text({20, 46}, "bubble = share of all ranks' time in which no module runs",
                {.fill = "#666666"});
      return;
    }
    svg_.text({20, 46},
              "oversubscribed: ranks outnumber cores, so bars include waiting for a core, and the "
              "bubble, which counts processor time, cannot be small",
              {.fill = "#b5541c", .bold = true, .group = "oversubscribed"});
  }

  void draw_axis() {
    const double bottom = kTop + lanes_height(timeline_);
    const double length = milliseconds(end_ - start_);
    const auto ticks = round_ticks(0, length, 10);
    const double distance = ticks.size() > 1 ? ticks[1] - ticks[0] : length;
    for (const double tick : ticks) {
      const double at = x(start_ + static_cast<Nanoseconds>(tick * 1e6));
      svg_.line({at, kTop - 6}, {at, bottom}, {.fill = "", .stroke = "#dddddd"});
      svg_.text({at, bottom + 14}, tick_label(tick, distance),
                {.anchor = "middle", .group = "tick"});
    }
    svg_.text({(kLeft + kWidth - kRight) / 2, bottom + 31}, "time since the start of the step, ms",
              {.anchor = "middle"});
    svg_.text({kWidth - kRight + 12, kTop - 10}, "busy", {.fill = "#666666"});
  }

  void draw_lane(std::size_t lane) {
    const StepTrace& rank = timeline_.ranks[lane];
    const double top = lane_top(lane);
    svg_.text({kLeft - 12, top + kLane / 2 + 4}, concat("rank ", rank.pp_rank),
              {.size = 13, .anchor = "end", .bold = true});
    svg_.rectangle({kLeft, top}, kWidth - kLeft - kRight, kLane, {.fill = kIdle, .group = "lane"});
    for (const Span& span : rank.spans) draw_span(span, top);
    draw_sums(rank, top);
  }

  void draw_span(const Span& span, double top) {
    const double left = x(span.start);
    const double width = x(span.end) - left;
    svg_.rectangle(
        {left, top}, width, kLane,
        {.fill = span_color(span.microbatch, span.phase), .group = phase_name(span.phase)},
        tip(span));
    if (width < kMinWidthOfNumber || span.microbatch < 0) return;
    svg_.text({left + width / 2, top + kLane / 2 + 4}, std::to_string(span.microbatch),
              {.size = 11,
               .fill = span.phase == Phase::kBackward ? "#ffffff" : "#222222",
               .anchor = "middle"});
  }

  std::string tip(const Span& span) const {
    std::string text = concat(phase_name(span.phase), " of ", module_name(span.module));
    if (span.microbatch >= 0) text += concat(", microbatch ", span.microbatch);
    return concat(text, ": ", in_milliseconds(span.end - span.start), ", processor ",
                  in_milliseconds(span.cpu));
  }

  std::string module_name(int module) const {
    if (module < 0) return "the step body";
    if (module >= static_cast<int>(timeline_.module_paths.size())) return concat("module ", module);
    const std::string& path = timeline_.module_paths[module];
    return path.empty() ? "the model" : path;
  }

  void draw_sums(const StepTrace& rank, double top) {
    const double left = kWidth - kRight + 12;
    const double share = static_cast<double>(rank.busy_wall()) / static_cast<double>(end_ - start_);
    svg_.text({left, top + (oversubscribed_ ? 17 : 25)},
              concat(in_milliseconds(rank.busy_wall()), "  (", percent(share), ")"),
              {.bold = true, .group = "busy"});
    if (!oversubscribed_) return;
    svg_.text({left, top + 33}, concat("processor ", in_milliseconds(rank.busy_cpu())),
              {.fill = "#b5541c", .group = "processor"});
  }

  double legend_entry(double left, double y, const std::string& fill, const std::string& name) {
    svg_.rectangle({left, y - 11}, 20, 14, {.fill = fill, .stroke = "#bbbbbb", .group = "legend"});
    svg_.text({left + 26, y}, name);
    return left + 26 + 7 * static_cast<double>(name.size()) + 20;
  }

  void draw_legend() {
    double y = kTop + lanes_height(timeline_) + kAxis + kLegendRow;
    double left = kLeft;
    left = legend_entry(left, y, span_color(0, Phase::kForward), "light: forward");
    left = legend_entry(left, y, span_color(0, Phase::kBackward), "dark: backward");
    left = legend_entry(left, y, kOther, "outside of microbatches");
    left = legend_entry(left, y, kIdle, "idle");
    y += kLegendRow;
    svg_.text({kLeft, y}, "microbatch");
    left = kLeft + 80;
    const int shown = std::min(num_microbatches_, 20);
    for (int microbatch = 0; microbatch < shown; ++microbatch) {
      svg_.rectangle({left, y - 11}, 10, 14,
                     {.fill = span_color(microbatch, Phase::kForward), .group = "legend"});
      svg_.rectangle({left + 10, y - 11}, 10, 14,
                     {.fill = span_color(microbatch, Phase::kBackward), .group = "legend"});
      svg_.text({left + 24, y}, std::to_string(microbatch));
      left += 50;
    }
    if (num_microbatches_ > shown) svg_.text({left, y}, "...");
  }

  const StepTimeline& timeline_;
  SvgWriter svg_;
  Nanoseconds start_ = 0;
  Nanoseconds end_ = 0;
  bool oversubscribed_ = false;
  int num_microbatches_ = 0;
};

}  // namespace

std::string draw_timeline(const StepTimeline& timeline) { return TimelinePicture(timeline).draw(); }

}  // namespace smp::report
