// report/pictures/plan_layout.h: where the boxes of a plan lie in its picture.
#pragma once

#include <vector>

#include "report/pictures/plan_boxes.h"

namespace smp::report {

/// A box in pixels.
struct Place {
  double left = 0;
  double width = 0;
  double top = 0;
  double height = 0;
  double middle() const { return top + height / 2; }
  double right() const { return left + width; }
};

/// Where boxes may lie.
struct Area {
  double left = 0;
  double right = 0;
  double top = 0;
};

struct PlanLayout {
  std::vector<Place> places;  ///< by box
  double column_gap = 0;
  double bottom = 0;
};

/// Boxes that are not opened stand below each other at the right, all of one width, as high as
/// their share of the cost but at least a line of text; the others in columns at the left, as high
/// as what they hold.
PlanLayout lay_out(const PlanBoxes& folded, const Area& area);

}  // namespace smp::report
