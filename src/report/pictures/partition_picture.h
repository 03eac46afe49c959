// report/pictures/partition_picture.h: a plan as a tree of boxes (paper Figures 9 and 10).
#pragma once

#include <string>

#include "smp/plan.h"

namespace smp::report {

/// Returns an SVG file: the model at the left, modules that lie on one stage as a whole at the
/// right, as high as their share of the cost. Colour tells stages apart; brackets join modules that
/// share a weight.
std::string draw_partition(const PartitionPlan& plan);

}  // namespace smp::report
