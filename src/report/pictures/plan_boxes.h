// report/pictures/plan_boxes.h: a plan folded to what a picture has room for (paper Figures 9 and
// 10).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "smp/plan.h"

namespace smp::report {

/// A module, or a run of siblings on one stage: "encoder.block[0:4]".
struct PlanBox {
  std::string name;
  int stage = 0;    ///< where it runs; of a box with children: where its own code does
  double cost = 0;  ///< with all below it
  int modules = 0;  ///< modules that only this box stands for, so those of its children are not in
  std::int64_t elements = 0;  ///< parameters of these modules
  int parent = -1;
  std::vector<int> children;  ///< none: all of it is on `stage`
};

/// Boxes on one stage that hold the same weight.
struct PlanTie {
  std::string weight;
  std::vector<int> boxes;  ///< at least two
};

/// Box 0 is the model; a parent comes before its children.
struct PlanBoxes {
  std::vector<PlanBox> boxes;
  std::vector<PlanTie> ties;
  std::string measure;  ///< of what costs are a share: "cost", "bytes of weights", "modules"
};

/// Every module is in exactly one box. What lies on one stage as a whole is not opened; neighbours
/// "a.0", "a.1" on one stage are one box, and beyond `most` boxes any neighbours on one stage are.
PlanBoxes fold_plan(const PartitionPlan& plan, int most = 48);

}  // namespace smp::report
