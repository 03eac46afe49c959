// report/pictures/plan_layout.cpp: columns first, then heights from the top.
#include "report/pictures/plan_layout.h"

#include <algorithm>
#include <utility>

namespace smp::report {
namespace {

constexpr double kLine = 17;    // height of a line of text
constexpr double kUsual = 620;  // height of all boxes together
constexpr double kGap = 3;
constexpr double kColumnGap = 22;
constexpr double kWholeWidth = 430;
constexpr double kWholeWidthOfDeep = 340;  // where the columns before need the room
constexpr int kDeep = 3;                   // columns

class Layout {
 public:
  Layout(const PlanBoxes& folded, const Area& area)
      : boxes_(folded.boxes), area_(area), depth_(boxes_.size(), 0) {
    result_.places.resize(boxes_.size());
    int wholes = 0;
    for (std::size_t i = 0; i < boxes_.size(); ++i) {
      if (boxes_[i].parent >= 0) depth_[i] = depth_[boxes_[i].parent] + 1;
      if (boxes_[i].children.empty()) {
        ++wholes;
      } else {
        columns_ = std::max(columns_, depth_[i] + 1);
      }
    }
    scale_ = std::max(kUsual, kLine * wholes);
  }

  PlanLayout lay_out() {
    place_columns();
    result_.bottom = area_.top;
    if (!boxes_.empty()) stack(0);
    return std::move(result_);
  }

 private:
  double whole_width() const {
    if (columns_ == 0) return area_.right - area_.left;
    return columns_ > kDeep ? kWholeWidthOfDeep : kWholeWidth;
  }

  void place_columns() {
    const double whole = whole_width();
    const double column =
        columns_ == 0 ? 0 : (area_.right - whole - area_.left) / static_cast<double>(columns_);
    result_.column_gap = std::min(kColumnGap, 0.15 * column);
    for (std::size_t i = 0; i < boxes_.size(); ++i) {
      Place& place = result_.places[i];
      const bool opened = !boxes_[i].children.empty();
      place.left = opened ? area_.left + column * depth_[i] : area_.right - whole;
      place.width = opened ? column - result_.column_gap : whole;
    }
  }

  void stack(int index) {
    const PlanBox& box = boxes_[index];
    Place& place = result_.places[index];
    place.top = result_.bottom;
    for (const int child : box.children) stack(child);
    if (box.children.empty()) result_.bottom += std::max(kLine, box.cost * scale_) + kGap;
    place.height = result_.bottom - kGap - place.top;
  }

  const std::vector<PlanBox>& boxes_;
  const Area area_;
  std::vector<int> depth_;
  int columns_ = 0;  // of opened boxes
  double scale_ = kUsual;
  PlanLayout result_;
};

}  // namespace

PlanLayout lay_out(const PlanBoxes& folded, const Area& area) {
  return Layout(folded, area).lay_out();
}

}  // namespace smp::report
