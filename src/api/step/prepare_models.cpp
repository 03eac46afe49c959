// api/step/prepare_models.cpp: which models a step uses, and what it finds in them.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <unordered_set>
#include <vector>

#include "api/model/model_state.h"
#include "api/model/shared_parts.h"
#include "api/planning/tracing.h"
#include "api/rank/exchange.h"
#include "api/replicas/replicas.h"
#include "api/step/distributed_model_state.h"
#include "api/step/untouched_settings.h"
#include "dp/replica_values.h"
#include "server/modules/foreign_parameters.h"
#include "smp/join.h"

namespace smp {

void refuse_written_weights(const SessionParts& session, int microbatch) {
  const GlobalRank rank(session.rank.topology().rank());
  for (const auto* model : session.state.models())
    model->state_->weights.refuse_written(rank, microbatch);
}

/// A character for each of `models`, '\1' if the body uses it.
static std::string looked_at(Rank& rank, const std::vector<DistributedModelBase*>& models,
                             const StepPreview& preview) {
  std::vector<ModelDescription> descriptions;
  std::vector<const ModelDescription*> all;
  descriptions.reserve(models.size());
  for (const auto* model : models) {
    all.push_back(&descriptions.emplace_back(describe_model(model->base_module())));
  }
  const UntouchedSettings untouched(models);
  return used_models(rank, all, preview);
}

/// Of models that wait for a step which uses them, those that the coming one does: a character for
/// each. Once enough steps have not shown it, all count as used. All ranks that begin the step call
/// it.
static std::string used_by(const SessionParts& session, const ComingStep& step,
                           const std::vector<DistributedModelBase*>& waiting) {
  const bool looks = session.state.step_looks().take(*step.body, step.grad);
  std::string used(waiting.size(), !looks && step.together ? '\1' : '\0');
  if (!looks) return used;
  if (step.preview != nullptr) used = looked_at(session.rank, waiting, *step.preview);
  const auto& groups = session.rank.groups();
  const auto ranks = step.together ? groups.training_ranks() : groups.of(Group::kPp);
  for (const auto& other : gather_values(ranks, used, "models that a step uses")) {
    for (std::size_t i = 0; i < used.size(); ++i) used[i] |= other.at(i);
  }
  return used;
}

void prepare_models(const SessionParts& session, const ComingStep& step) {
  const auto& models = session.state.models();
  std::vector<DistributedModelBase*> unplaced;
  std::copy_if(models.begin(), models.end(), std::back_inserter(unplaced),
               [](const auto* model) { return !model->partitioned(); });
  for (const auto* model : models) {
    if (model->partitioned()) model->require_placed();
  }
  auto& looks = session.state.step_looks();
  const bool may_wait = !session.rank.config().skip_tracing && !session.rank.parts().plan_request;
  const bool first = !looks.any() && unplaced.size() == models.size();
  if (may_wait && !unplaced.empty() && first) static_cast<void>(looks.take(*step.body, step.grad));
  if (may_wait && !unplaced.empty() && !first) {
    const auto used = used_by(session, step, unplaced);
    for (auto i = std::ssize(unplaced) - 1; i >= 0; --i) {
      if (used[i] != '\0' || !unplaced[i]->wait_for_place()) continue;
      unplaced.erase(unplaced.begin() + i);
    }
  }
  // What shares modules with another follows that one's placement.
  while (!unplaced.empty()) {
    DistributedModelBase::place(session, take_independent(unplaced), step.preview,
                                may_wait && first);
  }
  session.state.begin_step();
  for (const auto* model : models) model->state_->weights.begin_step();
}

/// Those of `buffers` that have values in all replicas. A copy of one that its owner changes has
/// none any more, once nobody has used it.
static std::vector<at::Tensor> held_by_all(Rank& rank, const std::vector<at::Tensor>& buffers) {
  if (rank.topology().pp_size() == 1) return buffers;
  std::string here;
  for (const auto& buffer : buffers) here.push_back(server::is_foreign(buffer) ? '\0' : '\1');
  std::vector<at::Tensor> held;
  const auto all = gather_values(rank.groups().replicas(), here, "the buffers of all replicas");
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const auto has = [i](const auto& replica) { return replica.at(i) != '\0'; };
    if (std::all_of(all.begin(), all.end(), has)) held.push_back(buffers[i]);
  }
  return held;
}

/// A slice is never a buffer.
void take_buffers_of_first(const SessionParts& session) {
  auto& rank = session.rank;
  const auto& replicas = session.replicas;
  const int first = replicas.join() == nullptr ? 0 : replicas.join()->first_active();
  for (const auto* model : session.state.models()) {
    const auto& state = *model->state_;
    if (!state.placement) continue;
    std::unordered_set<const void*> buffers;
    for (const auto& buffer : state.module->buffers()) buffers.insert(buffer.unsafeGetTensorImpl());
    auto held = state.placement->held_on(rank.pp_rank());
    std::erase_if(
        held, [&](const auto& tensor) { return buffers.count(tensor.unsafeGetTensorImpl()) == 0; });
    if (held.empty()) continue;
    held = held_by_all(rank, held);
    rank.server().copies().give(
        [&] { dp::take_values_of(first, rank.groups().replicas(), held, rank.bucket_bytes()); });
  }
}

}  // namespace smp
