// report/pictures/loss_chart.cpp: axes, two lines and a baseline.
#include "report/pictures/loss_chart.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/check.h"

namespace smp::report {
namespace {

using base::concat;

constexpr double kWidth = 860;
constexpr double kHeight = 440;
constexpr double kLeft = 70;
constexpr double kRight = 24;
constexpr double kTop = 56;
constexpr double kBottom = 56;
constexpr const char* kGrid = "#e4e4e4";
constexpr const char* kEveryStep = "#a9c4e6";
constexpr const char* kMean = "#1f5fa8";
constexpr const char* kBaselineColor = "#b5541c";
constexpr const char* kNotFinite = "#c8102e";
/// Of each of several runs: its mean, or all there is; and its single steps behind that.
constexpr const char* kCurves[] = {"#1f5fa8", "#b5541c", "#2f7d4f", "#7a4fa3"};
constexpr const char* kCurvesBehind[] = {"#bcd2ec", "#ecc9b3", "#bddcc9", "#d8c8e8"};
constexpr std::size_t kFewSteps = 20;  // have no mean

/// The largest loss that is drawn: sums and differences of as many such losses as fit into memory
/// are finite. A comparison with it also excludes NaN.
constexpr double kMostLoss = 1e290;
/// The least margin around a loss that does not change, as a share of it: a double can still tell
/// the limits apart.
constexpr double kLeastMargin = 1e-9;

struct Range {
  double low = 0;
  double high = 1;
};

// From chart units to pixels.
class Frame {
 public:
  Frame(Range x, Range y) : x_(x), y_(y) {}
  Point place(Point value) const { return {x(value.x), y(value.y)}; }
  double x(double value) const {
    return kLeft + (value - x_.low) / (x_.high - x_.low) * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    return kHeight - kBottom - (value - y_.low) / (y_.high - y_.low) * (kHeight - kTop - kBottom);
  }
  const Range& x_range() const { return x_; }
  const Range& y_range() const { return y_; }

 private:
  Range x_;
  Range y_;
};

bool has_place(const Point& point) { return std::abs(point.y) < kMostLoss; }

std::vector<Point> finite(const std::vector<Point>& points) {
  std::vector<Point> kept;
  std::copy_if(points.begin(), points.end(), std::back_inserter(kept), has_place);
  return kept;
}

Frame frame_of(const LossChart& chart, const std::vector<Point>& points) {
  Range x{0, 1};
  Range y{0, 1};
  if (!points.empty()) {
    const auto by_y = [](const Point& a, const Point& b) { return a.y < b.y; };
    x = {chart.points.front().x, chart.points.back().x};
    const auto [low, high] = std::minmax_element(points.begin(), points.end(), by_y);
    y = {low->y, high->y};
  }
  if (chart.baseline) {
    y = {std::min(y.low, chart.baseline->value), std::max(y.high, chart.baseline->value)};
  }
  if (x.high <= x.low) x.high = x.low + 1;
  const double size = std::max(std::abs(y.low), std::abs(y.high));
  const double margin = std::max({0.06 * (y.high - y.low), 1e-6, kLeastMargin * size});
  return Frame(x, {y.low >= 0 ? std::max(0.0, y.low - margin) : y.low - margin, y.high + margin});
}

void draw_axes(SvgWriter& svg, const LossChart& chart, const Frame& frame) {
  const auto y_ticks = round_ticks(frame.y_range().low, frame.y_range().high, 6);
  const double y_distance = y_ticks.size() > 1 ? y_ticks[1] - y_ticks[0] : 0.01;
  for (const double tick : y_ticks) {
    const double y = frame.y(tick);
    svg.line({kLeft, y}, {kWidth - kRight, y}, {.fill = "", .stroke = kGrid});
    svg.text({kLeft - 8, y + 4}, tick_label(tick, y_distance), {.anchor = "end"});
  }
  const double bottom = kHeight - kBottom;
  for (const double tick : round_ticks(frame.x_range().low, frame.x_range().high, 10)) {
    if (tick != std::floor(tick)) continue;
    svg.line({frame.x(tick), bottom}, {frame.x(tick), bottom + 5},
             {.fill = "", .stroke = "#888888"});
    svg.text({frame.x(tick), bottom + 19}, tick_label(tick, 1), {.anchor = "middle"});
  }
  svg.line({kLeft, bottom}, {kWidth - kRight, bottom}, {.fill = "", .stroke = "#888888"});
  svg.text({(kLeft + kWidth - kRight) / 2, kHeight - 14}, "step", {.size = 13, .anchor = "middle"});
  svg.text({kLeft - 50, kTop - 12}, concat("loss", chart.unit.empty() ? "" : ", ", chart.unit),
           {.size = 13});
}

// The mean of each point and its neighbours within `reach` steps; fewer towards the ends, alike on
// both sides, so that the line does not lag.
std::vector<Point> running_mean(const std::vector<Point>& points, std::size_t reach) {
  std::vector<double> sums = {0};  // of all points before each
  for (const Point& point : points) sums.push_back(sums.back() + point.y);
  std::vector<Point> means;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const std::size_t side = std::min({reach, i, points.size() - 1 - i});
    const double sum = sums[i + side + 1] - sums[i - side];
    means.push_back({points[i].x, sum / static_cast<double>(2 * side + 1)});
  }
  return means;
}

std::size_t reach_of(const std::vector<Point>& points) {
  return std::max<std::size_t>(2, points.size() / 40);
}

// The lowest and the highest of neighbours that share a column of pixels: looks the same.
std::vector<Point> thinned(const std::vector<Point>& points) {
  constexpr std::size_t kMost = 4096;
  if (points.size() <= kMost) return points;
  const std::size_t step = (2 * points.size() + kMost - 1) / kMost;
  const auto by_y = [](const Point& a, const Point& b) { return a.y < b.y; };
  std::vector<Point> kept;
  for (std::size_t first = 0; first < points.size(); first += step) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end =
        points.begin() + static_cast<std::ptrdiff_t>(std::min(first + step, points.size()));
    auto [low, high] = std::minmax_element(begin, end, by_y);
    if (high < low) std::swap(low, high);
    kept.push_back(*low);
    if (low != high) kept.push_back(*high);
  }
  return kept;
}

void draw_line(SvgWriter& svg, const Frame& frame, std::vector<Point> points, const Style& style) {
  points = thinned(points);
  for (Point& point : points) point = frame.place(point);
  svg.path(points, style);
}

void draw_baseline(SvgWriter& svg, const Baseline& baseline, const Frame& frame) {
  const double y = frame.y(baseline.value);
  svg.line({kLeft, y}, {kWidth - kRight, y},
           {.fill = "",
            .stroke = kBaselineColor,
            .stroke_width = 1.5,
            .dash = "6 4",
            .group = "baseline"});
  svg.text({kWidth - kRight - 4, y - 6},
           concat(baseline.name, " (", short_number(baseline.value), ")"),
           {.fill = kBaselineColor, .anchor = "end"});
}

void draw_legend(SvgWriter& svg, std::size_t window) {
  double x = kWidth - kRight - 300;
  svg.line({x, 40}, {x + 24, 40}, {.fill = "", .stroke = kEveryStep, .stroke_width = 1.5});
  svg.text({x + 30, 44}, "each step");
  x += 110;
  svg.line({x, 40}, {x + 24, 40}, {.fill = "", .stroke = kMean, .stroke_width = 2.5});
  svg.text({x + 30, 44}, concat("mean of ", window, " steps"));
}

// One for each pixel: a run that diverged early has no other points after that.
void mark_not_finite(SvgWriter& svg, const LossChart& chart, const Frame& frame) {
  double marked = -1;
  for (const Point& point : chart.points) {
    if (has_place(point) || std::abs(frame.x(point.x) - marked) < 1) continue;
    marked = frame.x(point.x);
    svg.text(
        {frame.x(point.x), kTop + 12}, "×",
        {.size = 16, .fill = kNotFinite, .anchor = "middle", .bold = true, .group = "not-finite"});
  }
}

/// Returns a chart of all curves' points, in order of steps, for its frame.
LossChart common_chart(const std::vector<LossCurve>& curves) {
  LossChart chart;
  for (const auto& curve : curves) {
    chart.points.insert(chart.points.end(), curve.points.begin(), curve.points.end());
  }
  std::stable_sort(chart.points.begin(), chart.points.end(),
                   [](const Point& a, const Point& b) { return a.x < b.x; });
  return chart;
}

void draw_names(SvgWriter& svg, const std::vector<LossCurve>& curves) {
  constexpr double kLength = 24, kGap = 6;
  double x = kWidth - kRight;
  for (std::size_t i = curves.size(); i-- > 0;) {
    const auto name =
        fitted(curves[i].name, 12, (kWidth - 240) / static_cast<double>(curves.size()));
    x -= text_length(name, 12);
    svg.text({x, 44}, name, {.group = "name"});
    x -= kLength + kGap;
    svg.line({x, 40}, {x + kLength, 40},
             {.fill = "", .stroke = kCurves[i % std::size(kCurves)], .stroke_width = 2.5});
    x -= 3 * kGap;
  }
}

}  // namespace

std::string draw_losses(const std::vector<LossCurve>& curves, const std::string& title,
                        const std::string& unit) {
  SvgWriter svg(kWidth, kHeight);
  auto chart = common_chart(curves);
  chart.unit = unit;
  const Frame frame = frame_of(chart, finite(chart.points));
  svg.headline(title);
  draw_axes(svg, chart, frame);
  for (const bool behind : {true, false}) {
    for (std::size_t i = 0; i < curves.size(); ++i) {
      const auto points = finite(curves[i].points);
      const bool smooth = points.size() >= kFewSteps;
      if (points.empty() || (behind && !smooth)) continue;
      const auto color = i % std::size(kCurves);
      draw_line(svg, frame, behind || !smooth ? points : running_mean(points, reach_of(points)),
                {.stroke = behind ? kCurvesBehind[color] : kCurves[color],
                 .stroke_width = behind ? 1.2 : 2.5,
                 .group = behind ? "every-step" : "curve"});
    }
  }
  mark_not_finite(svg, chart, frame);
  draw_names(svg, curves);
  return std::move(svg).finish();
}

std::string draw_loss(const LossChart& chart) {
  SvgWriter svg(kWidth, kHeight);
  const std::vector<Point> points = finite(chart.points);
  const Frame frame = frame_of(chart, points);
  svg.headline(chart.title);
  draw_axes(svg, chart, frame);
  if (chart.baseline) draw_baseline(svg, *chart.baseline, frame);
  const std::size_t reach = reach_of(points);
  const bool smooth = points.size() >= kFewSteps;
  if (points.empty()) {
    svg.text({kWidth / 2, kHeight / 2}, "no steps yet", {.size = 14, .anchor = "middle"});
  } else {
    draw_line(svg, frame, points,
              {.stroke = smooth ? kEveryStep : kMean,
               .stroke_width = smooth ? 1.2 : 2.5,
               .group = "loss"});
  }
  if (smooth) {
    draw_line(svg, frame, running_mean(points, reach),
              {.stroke = kMean, .stroke_width = 2.5, .group = "mean"});
    draw_legend(svg, 2 * reach + 1);
  }
  mark_not_finite(svg, chart, frame);
  return std::move(svg).finish();
}

}  // namespace smp::report
