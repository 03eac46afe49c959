// api/planning/plan_key.h: what a plan depends on, as one number: the key of the plan cache.
#pragma once

#include <cstdint>
#include <vector>

#include "api/planning/tracing.h"
#include "partition/model/module_tree.h"
#include "partition/model/pin.h"
#include "simulate/machine.h"
#include "smp/config.h"

namespace smp {

/// Refers to its arguments.
struct PlanKeyFacts {
  const ModelDescription& model;
  const std::vector<partitioning::Pin>& pins;  ///< all of them: of the program and of the plan file
  double optimizer_ratio;
  const StepPreview& preview;
  const Config& config;  ///< of which only what plans depend on counts
  const simulate::Machine& machine;
  int gradient_copies = 1;
};

/// Equal if the same program would make the same plan for the same model, arguments and machine:
/// the modes that it calls the step in (autocast), its memory, on what its stages compute and where
/// they are, what messages cost (where that was measured, to half an octave), the devices of the
/// weights, and the host if modules are timed there. What a body and a `forward` do decides which
/// weights and readers must be together, so the type of the body, the program's arguments, and size
/// and date of its files are part of it.
[[nodiscard]] std::uint64_t plan_key(const PlanKeyFacts& facts);

/// Of modules, paths and weights, not of a placement.
[[nodiscard]] std::uint64_t model_hash(const partitioning::ModuleTree& tree, int pp_size);

}  // namespace smp
