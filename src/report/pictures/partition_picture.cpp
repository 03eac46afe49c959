// report/pictures/partition_picture.cpp: columns from the model to whole boxes; the legend above.
#include "report/pictures/partition_picture.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.h"
#include "partition/text/short_text.h"
#include "report/page/svg_writer.h"
#include "report/pictures/plan_boxes.h"
#include "report/pictures/plan_layout.h"

namespace smp::report {
namespace {

using base::concat;

constexpr double kWidth = 1000;
constexpr double kMargin = 20;
constexpr double kHead = 66;
constexpr double kTieGap = 14;
constexpr double kTieLane = 9;
constexpr double kTieRow = 13;
constexpr int kTieLanes = 8;
constexpr double kTieName = 140;
constexpr double kText = 12;
constexpr double kBoldText = 13;  // as wide as bold text of that size
constexpr double kSmallText = 11;
constexpr int kLegendColumns = 8;
constexpr int kLegendStages = 128;
constexpr double kLegendRow = 18;
constexpr const char* kInk = "#1a1a1a";
constexpr const char* kSoftInk = "#555555";
constexpr const char* kLine = "#9a9a9a";
constexpr const char* kTieInk = "#b5541c";

// Light enough for dark text; neighbours differ in hue and in lightness.
std::string stage_color(int stage) {
  static const char* const kColors[] = {"#9ecae9", "#ffbf79", "#8fd18a", "#ffa8a3", "#c9b3e6",
                                        "#f2d45f", "#84c7c0", "#e6b8d8", "#cdb69b", "#c3d66b"};
  return kColors[stage % static_cast<int>(std::size(kColors))];
}

std::string share(double cost, int stages) {
  char text[16];
  std::snprintf(text, sizeof text, stages > 32 ? "%.4f" : "%.3f", cost);
  return text;
}

class PartitionPicture {
 public:
  PartitionPicture(const PartitionPlan& plan, PlanBoxes folded)
      : plan_(plan),
        folded_(std::move(folded)),
        costs_(plan.pp_size(), 0.0),
        layout_(lay_out(folded_, {kMargin, tie_left() - kTieGap, legend_bottom()})),
        svg_(kWidth, layout_.bottom + 34) {
    for (const PlanBox& box : folded_.boxes) {
      if (box.children.empty()) costs_[box.stage] += box.cost;
    }
  }

  std::string draw() {
    draw_head();
    draw_legend();
    for (std::size_t i = 0; i < folded_.boxes.size(); ++i) draw_links(static_cast<int>(i));
    for (std::size_t i = 0; i < folded_.boxes.size(); ++i) draw_box(static_cast<int>(i));
    draw_ties();
    return std::move(svg_).finish();
  }

 private:
  bool opened(int box) const { return !folded_.boxes[box].children.empty(); }
  int legend_rows() const {
    if (plan_.pp_size() > kLegendStages) return 0;
    return (plan_.pp_size() + kLegendColumns - 1) / kLegendColumns;
  }

  double legend_bottom() const { return kHead + legend_rows() * kLegendRow + 14; }
  int tie_lanes() const { return std::min(kTieLanes, static_cast<int>(folded_.ties.size())); }
  double tie_left() const {
    if (folded_.ties.empty()) return kWidth - kMargin + kTieGap;
    return kWidth - kMargin - kTieLane * tie_lanes() - kTieName;
  }

  void draw_head() {
    const auto [least, most] = std::minmax_element(costs_.begin(), costs_.end());
    const int stages = plan_.pp_size();
    const std::string shares =
        concat(", each with ", share(*least, stages), " to ", share(*most, stages), " of the ",
               folded_.measure, " (even: ", share(1.0 / stages, stages), ")");
    const std::string how = plan_.summary() ? concat(" by ", plan_.summary()->chosen.strategy) : "";
    svg_.headline(fitted(concat("Plan", how, ": ", plan_.rows().size(), " modules on ", stages,
                                stages == 1 ? " stage" : " stages", stages == 1 ? "" : shares),
                         kHeadlineSize, kWidth - 2 * kMargin));
    svg_.text({kMargin, 46},
              concat("Coloured: all of it runs on that stage; height is its share of the ",
                     folded_.measure, ", at least a line. White: its parts are on several stages.",
                     folded_.ties.empty() ? "" : " Bracket: one weight."),
              {.fill = kSoftInk});
  }

  void draw_legend() {
    const double column = (kWidth - 2 * kMargin) / kLegendColumns;
    for (int stage = 0; legend_rows() > 0 && stage < plan_.pp_size(); ++stage) {
      const double left = kMargin + column * (stage % kLegendColumns);
      const double y = kHead + kLegendRow * (stage / kLegendColumns);
      svg_.rectangle({left, y - 2}, 14, 13,
                     {.fill = stage_color(stage), .stroke = kLine, .group = "legend"});
      svg_.text({left + 20, y + 9},
                concat("stage ", stage, ": ", share(costs_[stage], plan_.pp_size())),
                {.size = kSmallText, .fill = kInk, .group = "stage_cost"});
    }
  }

  void draw_links(int index) {
    const Place& from = layout_.places[index];
    const double bend = from.right() + layout_.column_gap / 2;
    for (const int child : folded_.boxes[index].children) {
      const Place& to = layout_.places[child];
      const double start = std::clamp(to.middle(), from.top + 2, from.top + from.height - 2);
      svg_.path({{from.right(), start}, {bend, start}, {bend, to.middle()}, {to.left, to.middle()}},
                {.stroke = kLine, .group = "link"});
    }
  }

  void draw_box(int index) {
    const PlanBox& box = folded_.boxes[index];
    const Place& place = layout_.places[index];
    const bool open = opened(index);
    svg_.rectangle({place.left, place.top}, place.width, place.height,
                   {.fill = open ? "#ffffff" : stage_color(box.stage),
                    .stroke = kLine,
                    .group = open ? "opened" : "whole"},
                   tip(index));
    if (open) {
      svg_.rectangle({place.left, place.top}, std::min(6.0, place.width), place.height,
                     {.fill = stage_color(box.stage), .stroke = kLine, .group = "code"});
      label_opened(box, place);
    } else {
      label_whole(box, place);
    }
  }

  std::string tip(int index) const {
    const PlanBox& box = folded_.boxes[index];
    return concat(box.name, ": ", share(box.cost, plan_.pp_size()), " of the ", folded_.measure,
                  opened(index) ? ", its own code on stage " : ", stage ", box.stage, ", ",
                  box.modules, box.modules == 1 ? " module" : " modules",
                  opened(index) ? " besides those at its right" : "", ", ",
                  partitioning::short_count(box.elements), " parameters");
  }

  void label_whole(const PlanBox& box, const Place& place) {
    const std::string facts = concat(share(box.cost, plan_.pp_size()), " · stage ", box.stage);
    const double room = place.width - text_length(facts, kText) - 28;
    const bool roomy = text_length(box.name, kBoldText) <= room;
    const double y = place.middle() + 4;
    svg_.text({place.left + 8, y}, fitted(roomy ? box.name : short_name(box), kBoldText, room),
              {.size = kText, .fill = kInk, .bold = true, .group = "name"});
    svg_.text({place.right() - 8, y}, facts,
              {.size = kText, .fill = kInk, .anchor = "end", .group = "facts"});
  }

  // Up to three lines, as many as there is room for.
  void label_opened(const PlanBox& box, const Place& place) {
    const double room = place.width - 17;
    const std::string stage = concat("stage ", box.stage);
    const bool roomy = text_length("code on " + stage, kSmallText) <= room;
    const std::vector<std::string> lines = {short_name(box), share(box.cost, plan_.pp_size()),
                                            roomy ? "code on " + stage : stage};
    const int count = std::clamp(static_cast<int>(place.height / 15), 1, 3);
    const double first = place.middle() + 4 - 7.5 * (count - 1);
    for (int line = 0; line < count; ++line) {
      const bool name = line == 0;
      svg_.text({place.left + 13, first + 15 * line},
                fitted(lines[line], name ? kBoldText : kSmallText, room),
                {.size = name ? kText : kSmallText,
                 .fill = name ? kInk : kSoftInk,
                 .bold = name,
                 .group = name ? "name" : "facts"});
    }
  }

  // Its parent is beside it, so its last part is enough.
  std::string short_name(const PlanBox& box) const {
    if (box.parent <= 0) return box.name;
    const std::string lead = folded_.boxes[box.parent].name + ".";
    return box.name.rfind(lead, 0) == 0 ? box.name.substr(lead.size()) : box.name;
  }

  // Names beside their bracket's upper end, or below the name before where they would meet.
  void draw_ties() {
    std::vector<double> tops;
    for (std::size_t i = 0; i < folded_.ties.size(); ++i) tops.push_back(draw_tie(i));
    std::vector<int> order(std::min<std::size_t>(tops.size(), kTieLanes));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int a, int b) { return tops[a] < tops[b]; });
    double last = 0;
    for (const int tie : order) {
      last = std::max(tops[tie] + 4, last + kTieRow);
      svg_.text({tie_left() + kTieLane * tie_lanes(), last},
                fitted(folded_.ties[tie].weight, kSmallText, kTieName - 4),
                {.size = kSmallText, .fill = kTieInk, .group = "tie_name"});
    }
  }

  // Returns the upper end of the bracket.
  double draw_tie(std::size_t index) {
    const PlanTie& tie = folded_.ties[index];
    const Style style = {.fill = "", .stroke = kTieInk, .stroke_width = 1.5, .group = "tie"};
    const double x = tie_left() + kTieLane * static_cast<double>(index % kTieLanes);
    double top = layout_.bottom;
    double bottom = 0;
    for (const int box : tie.boxes) {
      const Place& place = layout_.places[whole_box(box)];
      top = std::min(top, place.middle());
      bottom = std::max(bottom, place.middle());
      svg_.line({place.right(), place.middle()}, {x, place.middle()}, style);
    }
    svg_.line({x, top}, {x, bottom}, style);
    return top;
  }

  // Weights of an opened box are tied at the first box that it holds.
  int whole_box(int box) const {
    while (opened(box)) box = folded_.boxes[box].children.front();
    return box;
  }

  const PartitionPlan& plan_;
  PlanBoxes folded_;
  std::vector<double> costs_;  // by stage
  PlanLayout layout_;
  SvgWriter svg_;
};

}  // namespace

std::string draw_partition(const PartitionPlan& plan) {
  return PartitionPicture(plan, fold_plan(plan)).draw();
}

}  // namespace smp::report
