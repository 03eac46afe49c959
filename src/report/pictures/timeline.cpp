// report/pictures/timeline.cpp: lanes, a time axis, sums and a legend.
#include "report/pictures/timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "report/analysis/critical_path.h"
#include "report/analysis/idle_time.h"
#include "report/analysis/step_arrows.h"
#include "report/page/svg_writer.h"

namespace smp::report {
namespace {

using base::concat;
using base::Nanoseconds;
using schedule::Phase;
using schedule::Span;
using schedule::StepTrace;

constexpr double kWidth = 1280;
constexpr double kLeft = 84;
constexpr double kRight = 190;  // for the sums
constexpr double kTop = 74;
constexpr double kSeen = 1;   // bars of less pixels are joined with their neighbours
constexpr double kAxis = 40;  // below the lanes
constexpr double kLegendRow = 22;
constexpr double kLong = 10'000;  // milliseconds, from where on times are in seconds
constexpr double kMinWidthOfNumber = 13;
constexpr std::size_t kMostArrows = 300;  // more hide what they lead to
constexpr const char* kArrow = "#9a9a9a";
constexpr double kArrowWidth = 0.6;     // they cross bars
constexpr const char* kAnswer = "3 2";  // dashes
constexpr const char* kCritical = "#c2185b";
constexpr const char* kOptimizer = "#9a9a9a";
constexpr const char* kHost = "#e3d5b0";
constexpr const char* kLibrary = "#5f5f5f";

/// The pattern in which a kind of idle time is drawn, and its text in the legend.
struct IdleStyle {
  const char* name;  // of the pattern and of its elements
  const char* ground;
  const char* stroke;
  const char* text;
};
const IdleStyle& style_of(IdleGap::Kind kind) {
  static constexpr IdleStyle kFill{"idle-fill", "#edf3ee", "#a9c4b0", "idle: fills or drains"};
  static constexpr IdleStyle kWork{"idle-work", "#fff4de", "#e0a53c",
                                   "waits for work of another rank"};
  static constexpr IdleStyle kTransport{"idle-transport", "#eef0ff", "#7f8ce0",
                                        "waits for what is on its way"};
  static constexpr IdleStyle kOther{"idle", "#fafafa", "#d6d6d6", "idle for other reasons"};
  switch (kind) {
    case IdleGap::Kind::kFilling:
    case IdleGap::Kind::kDraining:
      return kFill;
    case IdleGap::Kind::kForWork:
      return kWork;
    case IdleGap::Kind::kTransport:
      return kTransport;
    case IdleGap::Kind::kOther:
      break;
  }
  return kOther;
}
/// The kinds of idle time in the legend, one for each style.
constexpr std::array kIdleKinds{IdleGap::Kind::kFilling, IdleGap::Kind::kForWork,
                                IdleGap::Kind::kTransport, IdleGap::Kind::kOther};
std::string fill_of(IdleGap::Kind kind) { return concat("url(#", style_of(kind).name, ")"); }

double milliseconds(Nanoseconds time) { return static_cast<double>(time) / 1e6; }

std::string duration(Nanoseconds time) {
  const double value = milliseconds(time);
  char text[32];
  if (value >= kLong) {
    std::snprintf(text, sizeof text, "%.1f s", value / 1e3);
    return text;
  }
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
  if (phase == Phase::kHost) return kHost;
  if (phase == Phase::kOther) return kLibrary;
  if (microbatch < 0 || phase == Phase::kOptimizer) return kOptimizer;
  const double hue = std::fmod(210 + 137.508 * microbatch, 360);
  return phase == Phase::kForward ? color(hue, 0.70, 0.76) : color(hue, 0.62, 0.40);
}

// Lanes of few ranks are high enough to be looked at, those of many fit a page.
struct Lanes {
  double height;
  double gap;
  double text;  // size
};
Lanes lanes_for(std::size_t ranks) {
  if (ranks <= 16) return {40, 10, 13};
  return ranks <= 32 ? Lanes{22, 6, 12} : Lanes{13, 3, 11};
}

class TimelinePicture {
 public:
  explicit TimelinePicture(const StepTimeline& timeline)
      : timeline_(timeline),
        arrows_(arrows_of(timeline)),
        idle_(idle_time(timeline, arrows_)),
        lanes_(lanes_for(timeline.ranks.size())),
        svg_(kWidth, kTop + lanes_height() + kAxis + 3 * kLegendRow + 14) {
    const auto whole = whole_step(timeline);
    start_ = whole.start;
    end_ = std::max(whole.end, start_ + 1);
    before_ = start_ - with_time_before(timeline).start;
    left_ = start_ - std::min(before_, end_ - start_);
    for (const StepTrace& rank : timeline.ranks) measure(rank);
  }

  std::string draw() {
    for (const auto kind : kIdleKinds) {
      const auto& style = style_of(kind);
      svg_.define_hatch(style.name, style.ground, style.stroke);
    }
    draw_title();
    draw_axis();
    for (std::size_t lane = 0; lane < timeline_.ranks.size(); ++lane) draw_lane(lane);
    if (shows_arrows()) draw_arrows();
    if (!arrows_.empty()) draw_critical_path();
    draw_legend();
    return std::move(svg_).finish();
  }

 private:
  double lanes_height() const {
    return static_cast<double>(timeline_.ranks.size()) * (lanes_.height + lanes_.gap);
  }

  void measure(const StepTrace& rank) {
    oversubscribed_ |= rank.oversubscribed;
    for (const Span& span : rank.spans) {
      num_microbatches_ = std::max(num_microbatches_, span.microbatch + 1);
    }
  }

  double x(Nanoseconds time) const {
    return kLeft + static_cast<double>(std::max(time, left_) - left_) /
                       static_cast<double>(end_ - left_) * (kWidth - kLeft - kRight);
  }
  double lane_top(std::size_t lane) const {
    return kTop + static_cast<double>(lane) * (lanes_.height + lanes_.gap);
  }

  std::string title() const {
    const std::size_t ranks = timeline_.ranks.size();
    const char* what = timeline_.simulated ? "stage" : "rank";
    return concat(step_name(timeline_), ": ", duration(end_ - start_), " on ", ranks, " ", what,
                  ranks == 1 ? "" : "s", ", ", num_microbatches_,
                  num_microbatches_ == 1 ? " microbatch, " : " microbatches, ", "bubble ",
                  percent(schedule::bubble(timeline_.ranks)));
  }

  void draw_title() {
    svg_.headline(title());
    if (oversubscribed_) {
      svg_.text({20, 46},
                concat(timeline_.simulated ? "predicted; " : "",
                       "oversubscribed: ranks outnumber cores, so bars include waiting for a core, "
                       "and the bubble, which counts processor time, cannot be small"),
                {.fill = "#b5541c", .bold = true, .group = "oversubscribed"});
      return;
    }
    const std::string what = timeline_.simulated ? "stages" : "ranks";
    svg_.text({20, 46},
              concat(timeline_.simulated ? "predicted from the plan, not measured; " : "",
                     "bubble = share of all ", what, "' time in which no module runs",
                     timeline_.clock_error == 0 ? ""
                                                : concat("; the clocks of the machines agree to ",
                                                         duration(timeline_.clock_error))),
              {.fill = "#666666"});
  }

  void draw_axis() {
    const double bottom = kTop + lanes_height();
    const bool in_seconds = milliseconds(end_ - start_) >= kLong;
    const double unit = in_seconds ? 1e9 : 1e6;  // nanoseconds
    const double length = static_cast<double>(end_ - start_) / unit;
    const auto ticks = round_ticks(static_cast<double>(left_ - start_) / unit, length, 10);
    const double distance = ticks.size() > 1 ? ticks[1] - ticks[0] : length;
    for (const double tick : ticks) {
      const double at = x(start_ + static_cast<Nanoseconds>(tick * unit));
      const bool zero = left_ < start_ && tick == 0;
      svg_.line({at, kTop - 6}, {at, bottom}, {.fill = "", .stroke = zero ? "#666666" : "#dddddd"});
      svg_.text({at, bottom + 14}, tick_label(tick, distance),
                {.anchor = "middle", .group = "tick"});
    }
    svg_.text({(kLeft + kWidth - kRight) / 2, bottom + 31},
              concat("time since the start of the step, ", in_seconds ? "s" : "ms", before_text()),
              {.anchor = "middle"});
    svg_.text({kWidth - kRight + 12, kTop - 10}, "busy", {.fill = "#666666"});
  }

  std::string before_text() const {
    if (before_ == 0) return "";
    return concat("; before 0: since the end of the step before",
                  before_ > start_ - left_ ? concat(", ", duration(before_), ", cut off") : "");
  }

  void draw_lane(std::size_t lane) {
    const StepTrace& rank = timeline_.ranks[lane];
    const double top = lane_top(lane);
    svg_.text({kLeft - 12, text_y(top)},
              concat(timeline_.simulated ? "stage " : "rank ", rank.pp_rank),
              {.size = lanes_.text, .anchor = "end", .bold = true});
    svg_.rectangle({kLeft, top}, kWidth - kLeft - kRight, lanes_.height,
                   {.fill = fill_of(IdleGap::Kind::kOther), .group = "lane"});
    for (const IdleGap& gap : idle_.gaps[lane]) draw_gap(gap, top);
    for (const auto* spans : {&rank.between, &rank.spans}) {
      for (std::size_t first = 0; first < spans->size();) {
        const std::size_t next = end_of_bar(*spans, first);
        if ((*spans)[next - 1].end > left_) draw_bar(*spans, first, next, top);
        first = next;
      }
    }
    draw_sums(rank, top);
  }

  // Shorter ones keep the ground of the lane.
  void draw_gap(const IdleGap& gap, double top) {
    const double left = x(gap.time.start), width = x(gap.time.end) - left;
    if (width < kSeen / 2) return;
    svg_.rectangle({left, top}, width, lanes_.height,
                   {.fill = fill_of(gap.kind), .group = style_of(gap.kind).name}, tip(gap));
  }

  std::string tip(const IdleGap& gap) const {
    const auto time = concat(": ", duration(gap.time.length()));
    switch (gap.kind) {
      case IdleGap::Kind::kFilling:
        return concat("idle, no work has come yet", time);
      case IdleGap::Kind::kDraining:
        return concat("idle, no work is left", time);
      case IdleGap::Kind::kForWork:
        return concat("waits for rank ", name_of(gap.awaited),
                      gap.work.empty() ? "" : concat(", ", gap.work), time);
      case IdleGap::Kind::kTransport:
        return concat("waits for what rank ", name_of(gap.awaited), " has sent", time);
      case IdleGap::Kind::kOther:
        break;
    }
    return concat("idle", time);
  }
  int name_of(std::size_t rank) const { return timeline_.ranks[rank].pp_rank; }

  double text_y(double top) const { return top + lanes_.height / 2 + 4; }

  // Neighbours of one microbatch and phase make one bar where each alone would not be seen.
  std::size_t end_of_bar(const std::vector<Span>& spans, std::size_t first) const {
    std::size_t next = first + 1;
    for (; next < spans.size(); ++next) {
      const Span& last = spans[next - 1];
      const Span& span = spans[next];
      const bool same = span.microbatch == last.microbatch && span.phase == last.phase;
      const bool small = x(span.end) - x(span.start) < kSeen || x(last.end) - x(last.start) < kSeen;
      if (!same || !small || x(span.start) - x(last.end) > kSeen / 4) break;
    }
    return next;
  }

  void draw_bar(const std::vector<Span>& spans, std::size_t first, std::size_t next, double top) {
    const Span& span = spans[first];
    const double left = x(span.start);
    const double width = x(spans[next - 1].end) - left;
    svg_.rectangle(
        {left, top}, width, lanes_.height,
        {.fill = span_color(span.microbatch, span.phase), .group = phase_name(span.phase)},
        tip(spans, first, next));
    if (width < kMinWidthOfNumber || span.microbatch < 0) return;
    svg_.text({left + width / 2, text_y(top)}, std::to_string(span.microbatch),
              {.size = 11,
               .fill = span.phase == Phase::kForward ? "#222222" : "#ffffff",
               .anchor = "middle"});
  }

  std::string tip(const std::vector<Span>& spans, std::size_t first, std::size_t next) const {
    const Span& span = spans[first];
    std::string text = name_between_steps(span.phase);
    if (text.empty()) {
      text = concat(phase_name(span.phase), " of ", module_name(timeline_, span.module));
    }
    if (next > first + 1) text += concat(" and ", next - first - 1, " more intervals");
    if (span.microbatch >= 0) text += concat(", microbatch ", span.microbatch);
    Nanoseconds wall = 0;
    Nanoseconds processor = 0;
    for (std::size_t i = first; i < next; ++i) {
      wall += spans[i].end - spans[i].start;
      processor += spans[i].cpu;
    }
    text += concat(": ", duration(wall));
    return timeline_.simulated ? text : concat(text, ", processor ", duration(processor));
  }

  bool shows_arrows() const { return !arrows_.empty() && arrows_.size() <= kMostArrows; }

  // From edge to edge of the lanes.
  void draw_arrows() {
    for (const Arrow& arrow : arrows_) {
      if (arrow.from == arrow.to) continue;
      const bool down = arrow.to > arrow.from;
      const Point from{x(arrow.start), lane_top(arrow.from) + (down ? lanes_.height : 0)};
      const Point to{x(arrow.end), lane_top(arrow.to) + (down ? 0 : lanes_.height)};
      svg_.line(from, to,
                {.stroke = kArrow,
                 .stroke_width = kArrowWidth,
                 .dash = arrow.answer ? kAnswer : "",
                 .group = arrow.answer ? "answer" : "request"});
      const double back = down ? -4 : 4;
      svg_.path({{to.x - 2, to.y + back}, to, {to.x + 2, to.y + back}},
                {.stroke = kArrow, .stroke_width = kArrowWidth});
    }
  }

  void draw_critical_path() {
    std::vector<Point> points;
    for (const PathPart& part : critical_path(timeline_, arrows_)) {
      const double y = lane_top(part.rank) + lanes_.height - 3;
      if (part.kind != PathPart::Kind::kMessage) points.push_back({x(part.start), y});
      points.push_back({x(part.end), y});
    }
    svg_.path(points, {.stroke = kCritical, .stroke_width = 2, .group = "critical"});
  }

  void draw_sums(const StepTrace& rank, double top) {
    const double left = kWidth - kRight + 12;
    const double share = static_cast<double>(rank.busy_wall()) / static_cast<double>(end_ - start_);
    svg_.text({left, oversubscribed_ ? top + 17 : text_y(top)},
              concat(duration(rank.busy_wall()), "  (", percent(share), ")"),
              {.bold = true, .group = "busy"});
    if (!oversubscribed_) return;
    svg_.text({left, top + 33}, concat("processor ", duration(rank.busy_cpu())),
              {.fill = "#b5541c", .group = "processor"});
  }

  double legend_entry(double left, double y, const std::string& fill, const std::string& name) {
    svg_.rectangle({left, y - 11}, 20, 14, {.fill = fill, .stroke = "#bbbbbb", .group = "legend"});
    svg_.text({left + 26, y}, name);
    return left + 26 + 7 * static_cast<double>(name.size()) + 20;
  }

  double legend_line(double left, double y, const Style& style, const std::string& name) {
    svg_.line({left, y - 4}, {left + 20, y - 4}, style);
    svg_.text({left + 26, y}, name);
    return left + 26 + 7 * static_cast<double>(name.size()) + 20;
  }

  void draw_legend() {
    double y = kTop + lanes_height() + kAxis + kLegendRow;
    double left = kLeft;
    left = legend_entry(left, y, span_color(0, Phase::kForward), "light: forward");
    left = legend_entry(left, y, span_color(0, Phase::kBackward), "dark: backward");
    if (before_ > 0) {
      left = legend_entry(left, y, kOptimizer, name_between_steps(Phase::kOptimizer));
      left = legend_entry(left, y, kHost, name_between_steps(Phase::kHost));
      left = legend_entry(left, y, kLibrary, name_between_steps(Phase::kOther));
    }
    if (shows_arrows()) {
      left = legend_line(left, y, {.stroke = kArrow}, "request");
      left = legend_line(left, y, {.stroke = kArrow, .dash = kAnswer}, "answer");
    }
    if (!arrows_.empty()) {
      legend_line(left, y, {.stroke = kCritical, .stroke_width = 2}, "critical path");
    }
    y += kLegendRow;
    left = kLeft;
    for (const auto kind : kIdleKinds) {
      const bool awaits = kind == IdleGap::Kind::kForWork || kind == IdleGap::Kind::kTransport;
      if (awaits && arrows_.empty()) continue;  // nobody knows of messages, or of other reasons
      const bool unknown = kind == IdleGap::Kind::kOther && arrows_.empty();
      left = legend_entry(left, y, fill_of(kind), unknown ? "idle" : style_of(kind).text);
    }
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
  const std::vector<Arrow> arrows_;
  const IdleTime idle_;
  Lanes lanes_;
  SvgWriter svg_;
  Nanoseconds start_ = 0;  // of the step
  Nanoseconds end_ = 0;
  Nanoseconds before_ = 0;  // what is known of the time since the last step
  Nanoseconds left_ = 0;    // where the picture begins
  bool oversubscribed_ = false;
  int num_microbatches_ = 0;
};

}  // namespace

std::string draw_timeline(const StepTimeline& timeline) { return TimelinePicture(timeline).draw(); }

}  // namespace smp::report
