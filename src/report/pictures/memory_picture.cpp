// report/pictures/memory_picture.cpp: lying bars, so that 64 stages need no turned text.
#include "report/pictures/memory_picture.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "partition/text/short_text.h"
#include "report/page/svg_writer.h"

namespace smp::report {
namespace {

using base::concat;
using partitioning::short_bytes;

constexpr double kWidth = 1000;
constexpr double kLeft = 84;
constexpr double kRight = 190;    // for the sums
constexpr double kMeasured = 80;  // right of them, for what was measured
constexpr double kTop = 96;
constexpr double kAxis = 40;
constexpr double kMinWidthOfNumber = 62;
constexpr const char* kOver = "#c22f2f";
constexpr const char* kAtMost = "#fff1e8";
constexpr const char* kMark = "#1f2a6b";
constexpr double kMarkWidth = 4;

constexpr const char* kMeaningOfMark = "measured";
constexpr const char* kMeaningOfRest = "if all microbatches in flight are there";

struct Kind {
  const char* name;
  const char* color;
  std::int64_t StageSummary::*bytes;
};
constexpr std::array<Kind, 5> kKinds = {{{"weights", "#9ecae9", &StageSummary::weights},
                                         {"gradients", "#8fd18a", &StageSummary::gradients},
                                         {"optimizer", "#f2d45f", &StageSummary::optimizer},
                                         {"activations", "#ffb08a", &StageSummary::activations},
                                         {"buffers", "#c9b3e6", &StageSummary::buffers}}};

// The largest unit that leaves something before the decimal point.
struct Unit {
  const char* name;
  double bytes;
};
Unit unit_for(double bytes) {
  if (bytes >= (1 << 30)) return {"GiB", 1 << 30};
  if (bytes >= (1 << 20)) return {"MiB", 1 << 20};
  return {"KiB", 1 << 10};
}

// Of each of `stages`, or empty if nothing is known of them.
MemoryUse of_stages(MemoryUse measured, std::size_t stages) {
  measured.resize(stages);
  return any_measured(measured) ? measured : MemoryUse();
}

class MemoryPicture {
 public:
  MemoryPicture(const PartitionPlan& plan, const MemoryUse& measured)
      : summary_(*plan.summary()),
        measured_(of_stages(measured, summary_.stages.size())),
        right_(measured_.empty() ? kRight : kRight + kMeasured),
        bar_(summary_.stages.size() > 24 ? 15 : 28),
        gap_(summary_.stages.size() > 24 ? 4 : 9),
        svg_(kWidth, kTop + rows_height() + kAxis + 8) {
    for (const StageSummary& stage : summary_.stages) {
      most_ = std::max(most_, stage.most_memory());
      limit_ = std::max(limit_, stage.memory_limit);
    }
    const auto took = measured_.empty() ? 0 : *most_measured();
    const auto needed = static_cast<double>(std::max({std::int64_t{1}, most_, took}));
    const auto limit = static_cast<double>(limit_);
    full_ = 1.04 * (limit < 3 * needed ? std::max(needed, limit) : needed);
  }

  std::string draw() {
    draw_head();
    draw_axis();
    for (std::size_t stage = 0; stage < summary_.stages.size(); ++stage) draw_stage(stage);
    return std::move(svg_).finish();
  }

 private:
  double rows_height() const { return static_cast<double>(summary_.stages.size()) * (bar_ + gap_); }
  double sums_left() const { return kWidth - right_ + 10; }
  double length(std::int64_t bytes) const {
    return static_cast<double>(bytes) / full_ * (kWidth - kLeft - right_);
  }
  MemoryUse::const_iterator most_measured() const {
    return std::max_element(measured_.begin(), measured_.end());
  }

  void draw_head() {
    const auto largest = std::max_element(
        summary_.stages.begin(), summary_.stages.end(),
        [](const auto& a, const auto& b) { return a.most_memory() < b.most_memory(); });
    svg_.headline(concat("Predicted memory of each stage: at most ", short_bytes(most_), " (stage ",
                         largest - summary_.stages.begin(), ")", limit_text()));
    svg_.text({20, 46},
              concat("at the worst moment of a training step of ", summary_.microbatches,
                     summary_.microbatches == 1 ? " microbatch" : " microbatches", ", schedule ",
                     summary_.pipeline, measured_text()),
              {.fill = "#555555"});
    const double apart = measured_.empty() ? 18 : 8;  // so that one entry more fits
    double left = 20;
    for (const Kind& kind : kKinds) {
      svg_.rectangle({left, 59}, 16, 13,
                     {.fill = kind.color, .stroke = "#9a9a9a", .group = "legend"});
      svg_.text({left + 22, 70}, kind.name);
      left += 22 + text_length(kind.name, 12) + apart;
    }
    svg_.rectangle({left, 59}, 16, 13,
                   {.fill = kAtMost, .stroke = "#e0b59a", .dash = "3 3", .group = "legend"});
    svg_.text({left + 22, 70}, kMeaningOfRest);
    left += 22 + text_length(kMeaningOfRest, 12) + apart;
    if (!measured_.empty()) {
      svg_.rectangle({left + 6, 57}, kMarkWidth, 17, {.fill = kMark, .group = "legend"});
      svg_.text({left + 16, 70}, kMeaningOfMark);
      left += 16 + text_length(kMeaningOfMark, 12) + apart;
    }
    if (limit_ == 0) return;
    svg_.line({left + 8, 58}, {left + 8, 73},
              {.fill = "", .stroke = kOver, .stroke_width = 2, .dash = "4 3"});
    svg_.text({left + 16, 70}, "limit");
  }

  std::string measured_text() const {
    if (measured_.empty()) return {};
    const auto most = most_measured();
    return concat("; measured: at most ", short_bytes(*most), " (stage ", most - measured_.begin(),
                  ")");
  }

  std::string limit_text() const {
    if (limit_ == 0) return {};
    const bool seen = static_cast<double>(limit_) <= full_;
    return concat(", limit ", short_bytes(limit_), seen ? "" : " (beyond the right edge)");
  }

  void draw_axis() {
    const Unit unit = unit_for(full_);
    const auto ticks = round_ticks(0, full_ / unit.bytes, 8);
    const double distance = ticks.size() > 1 ? ticks[1] - ticks[0] : 1;
    const double bottom = kTop + rows_height();
    for (const double tick : ticks) {
      const double x = kLeft + length(static_cast<std::int64_t>(tick * unit.bytes));
      svg_.line({x, kTop - 8}, {x, bottom}, {.fill = "", .stroke = "#dddddd"});
      svg_.text({x, bottom + 14}, tick_label(tick, distance),
                {.anchor = "middle", .group = "tick"});
    }
    svg_.text({(kLeft + kWidth - right_) / 2, bottom + 32}, unit.name, {.anchor = "middle"});
    if (measured_.empty()) return;
    svg_.text({sums_left(), kTop - 10}, "predicted", {.fill = "#666666"});
    svg_.text({kWidth - kMeasured, kTop - 10}, "measured", {.fill = kMark});
  }

  void draw_stage(std::size_t index) {
    const StageSummary& stage = summary_.stages[index];
    const double top = kTop + static_cast<double>(index) * (bar_ + gap_);
    const double y = top + bar_ / 2 + 4;
    svg_.text({kLeft - 10, y}, concat("stage ", index),
              {.anchor = "end", .bold = true, .group = "stage"});
    double left = kLeft;
    for (const Kind& kind : kKinds) {
      draw_part(kind, stage.*kind.bytes, left, top);
      left += length(stage.*kind.bytes);
    }
    draw_rest(stage, left, top);
    draw_limit(stage, top);
    draw_measured(index, top);
    svg_.text({sums_left(), y}, sum_text(stage),
              {.fill = is_over(stage) ? kOver : "#333333", .bold = true, .group = "sum"});
  }

  static bool is_over(const StageSummary& stage) {
    return stage.memory_limit > 0 && stage.most_memory() > stage.memory_limit;
  }

  static std::string sum_text(const StageSummary& stage) {
    const auto usual = short_bytes(stage.memory()), most = short_bytes(stage.most_memory());
    if (is_over(stage)) return concat(most, " of ", short_bytes(stage.memory_limit));
    return usual == most ? usual : concat(usual, " to ", most);
  }

  // What the microbatches in flight can take beyond that.
  void draw_rest(const StageSummary& stage, double left, double top) {
    const auto rest = stage.most_memory() - stage.memory();
    if (rest <= 0) return;
    svg_.rectangle({left, top}, length(rest), bar_,
                   {.fill = kAtMost, .stroke = "#e0b59a", .dash = "3 3", .group = "at most"},
                   concat("at most ", short_bytes(stage.most_memory()),
                          ", if all microbatches in flight are here at their worst"));
  }

  void draw_part(const Kind& kind, std::int64_t bytes, double left, double top) {
    if (bytes == 0) return;
    const double width = length(bytes);
    svg_.rectangle({left, top}, width, bar_, {.fill = kind.color, .group = kind.name},
                   concat(kind.name, ": ", short_bytes(bytes)));
    if (width < kMinWidthOfNumber) return;
    svg_.text({left + width / 2, top + bar_ / 2 + 4}, short_bytes(bytes),
              {.size = 11, .fill = "#1a1a1a", .anchor = "middle", .group = "part"});
  }

  void draw_limit(const StageSummary& stage, double top) {
    if (stage.memory_limit == 0 || static_cast<double>(stage.memory_limit) > full_) return;
    const double x = kLeft + length(stage.memory_limit);
    svg_.line({x, top - gap_ / 2}, {x, top + bar_ + gap_ / 2},
              {.fill = "", .stroke = kOver, .stroke_width = 2, .dash = "4 3", .group = "limit"});
  }

  // The mark reaches beyond its bar, so that it is seen on any part of it.
  void draw_measured(std::size_t stage, double top) {
    if (measured_.empty() || measured_[stage] == 0) return;
    const auto text = short_bytes(measured_[stage]);
    const double beyond = gap_ / 4;
    svg_.rectangle({kLeft + length(measured_[stage]) - kMarkWidth / 2, top - beyond}, kMarkWidth,
                   bar_ + 2 * beyond, {.fill = kMark, .group = "measured"},
                   concat("measured: ", text));
    svg_.text({kWidth - kMeasured, top + bar_ / 2 + 4}, text,
              {.fill = kMark, .bold = true, .group = "took"});
  }

  const PlanSummary& summary_;
  const MemoryUse measured_;  // of each stage; empty: of none
  double right_;
  double bar_;
  double gap_;
  SvgWriter svg_;
  std::int64_t most_ = 0;
  std::int64_t limit_ = 0;
  double full_ = 1;  // bytes at the right edge
};

}  // namespace

std::string draw_memory(const PartitionPlan& plan, const MemoryUse& measured) {
  SMP_ASSERT(plan.summary().has_value());
  return MemoryPicture(plan, measured).draw();
}

}  // namespace smp::report
