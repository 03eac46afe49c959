// report/pictures/plan_boxes.h: a plan folded to what a picture has room for (paper Figures 9 and
// 10).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "smp/plan.h"

namespace smp::report {

/// A box for one module, or for a run of siblings on one stage: "encoder.block[0:4]".
struct PlanBox {
  std::string name;
  int stage = 0;              ///< stage of its own code; that of its children may differ
  double cost = 0;            ///< the cost of the box and all below it
  int modules = 0;            ///< modules that the box stands for, without those of its children
  std::int64_t elements = 0;  ///< parameters of these modules
  int parent = -1;
  std::vector<int> children;  ///< empty: all of the box is on `stage`
};

/// Two or more boxes on one stage that hold the same weight.
struct PlanTie {
  std::string weight;
  std::vector<int> boxes;  ///< at least two
};

/// A plan as a tree of boxes. Box 0 is the model; a parent comes before its children.
struct PlanBoxes {
  std::vector<PlanBox> boxes;
  std::vector<PlanTie> ties;
  std::string measure;  ///< what costs are shares of: "cost", "bytes of weights", "modules"
};

/// Folds a plan to boxes; every module is in exactly one. A module that lies on one stage as a
/// whole is one box. Neighbours "a.0", "a.1" on one stage are joined to one box, and if there would
/// be more than `most` boxes, any neighbours on one stage are.
PlanBoxes fold_plan(const PartitionPlan& plan, int most = 48);

}  // namespace smp::report
