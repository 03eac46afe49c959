// report/pictures/plan_layout.h: where the boxes of a plan lie in its picture.
#pragma once

#include <vector>

#include "report/pictures/plan_boxes.h"

namespace smp::report {

/// The place of a box in the picture, in pixels.
struct Place {
  double left = 0;
  double width = 0;
  double top = 0;
  double height = 0;
  double middle() const { return top + height / 2; }
  double right() const { return left + width; }
};

/// The area in which boxes may lie, in pixels; it has no lower end.
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

/// Places the boxes. Boxes without children stand below each other at the right, all of one width,
/// as high as their share of the cost but at least a line of text; the others stand in columns at
/// the left, as high as the boxes in them.
PlanLayout lay_out(const PlanBoxes& folded, const Area& area);

}  // namespace smp::report
