// api/planning/planning.cpp: the ranks agree on what is to be planned, then on the plans.
#include "api/planning/planning.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "api/model/rank_agreement.h"
#include "api/planning/job_machine.h"
#include "api/planning/memory_guard.h"
#include "api/planning/plan_decision.h"
#include "api/planning/rank_planner.h"
#include "api/planning/trial_warnings.h"
#include "api/rank/agreement.h"
#include "api/rank/rank.h"
#include "api/rank/shared_warnings.h"
#include "base/check.h"
#include "base/random.h"
#include "partition/plan/plan_check.h"

namespace smp {
namespace {

/// The modules of all models.
struct Modules {
  Facts facts;              ///< what each holds
  std::uint64_t order = 0;  ///< a hash of their order
};

Modules modules_of(const std::vector<ModelToPlan>& models) {
  Facts facts = {{"the number of models", std::to_string(models.size())}};
  std::uint64_t order = 0;
  for (const auto& model : models) {
    const auto& tree = model.description->tree;
    const std::vector<int> all_on_first(tree.nodes.size(), 0);
    const auto plan = partitioning::plan_of(tree, all_on_first, 1);
    for (const auto& row : plan.rows()) {
      facts.push_back({partitioning::quoted_path(row.path),
                       row.parameters.empty() ? "without parameters" : row.parameters});
      order = base::mix_key(order, row.path);
    }
  }
  return {std::move(facts), order};
}

void require_equal_models(const Rank& rank, const std::vector<ModelToPlan>& models) {
  std::uint64_t all_pins = 0;
  for (const auto& model : models) {
    for (const auto& pin : model.pins) {
      all_pins =
          base::mix_key(base::mix_key(all_pins, pin.path), static_cast<std::uint64_t>(pin.pp_rank));
    }
  }
  const auto ranks = rank.groups().training_ranks();
  const auto modules = modules_of(models);
  require_same(ranks, modules.facts, "the models of the ranks",
               "build the same model on every rank, before the first step");
  require_equal_hashes(ranks, modules.order, "the order of their modules",
                       "build the same model on every rank, before the first step");
  std::vector<const ModelDescription*> descriptions;
  descriptions.reserve(models.size());
  for (const auto& model : models) descriptions.push_back(model.description);
  require_same_models(rank, descriptions);
  require_equal_hashes(ranks, all_pins, "the plan", "place modules by hand alike on every rank");
}

constexpr const char* kStateKnown = "state known";

/// Returns two texts for each model: its plan, empty if it has none, then whether what it keeps is
/// known.
std::vector<std::string> texts_of(const std::vector<PlannedModel>& models) {
  std::vector<std::string> texts;
  for (const auto& model : models) {
    texts.push_back(model.used ? model.plan.to_json() : std::string());
    texts.emplace_back(model.state_known ? kStateKnown : "");
  }
  return texts;
}

}  // namespace

std::vector<PlannedModel> make_plans(Rank& rank, SharedWarnings& warnings,
                                     const std::vector<ModelToPlan>& models,
                                     const StepPreview* preview, bool may_wait) {
  require_equal_models(rank, models);
  warnings.meet(rank.groups().training_ranks());
  const auto machine = job_machine(rank);
  std::vector<PlannedModel> made(models.size());  // keeps the simulation
  const auto texts = decided_by_first_rank(rank, [&] {
    made = RankPlanner(rank, models, preview, machine, may_wait).plans();
    return texts_of(made);
  });
  SMP_ASSERT(texts.size() == 2 * models.size());
  for (std::size_t i = 0; i < models.size(); ++i) {
    made[i].used = !texts[2 * i].empty();
    if (!made[i].used) continue;
    made[i].plan = PartitionPlan::from_json(texts[2 * i], "the plan of rank 0");
    if (rank.topology().rank() == 0 && made[i].plan.summary()) {
      warn_of_unrouted_cost(*models[i].description, made[i].plan);
    }
    made[i].state_known = rank.is_first_stage() && texts[2 * i + 1] == kStateKnown;
    partitioning::check_plan(made[i].plan, models[i].description->tree, machine.stages,
                             "the plan of rank 0");
  }
  std::vector<PlannedModel> used;
  std::copy_if(made.begin(), made.end(), std::back_inserter(used),
               [](const auto& model) { return model.used; });
  warn_of_too_little_memory(rank, used);
  return made;
}

}  // namespace smp
