// api/step/wrapped_module.cpp: replaced first, then checked.
#include "api/step/wrapped_module.h"

#include <algorithm>
#include <iterator>

#include "api/rank/rank.h"
#include "base/check.h"
#include "base/log.h"
#include "server/values/guarded_tensor.h"
#include "smp/detail/call.h"
#include "tp/replacement/dropped_parameters.h"
#include "tp/slices/slice_sharing.h"

namespace smp {

static bool is_marked(const torch::nn::Module& module) {
  const auto* const routed = dynamic_cast<const RoutedBase*>(&module);
  return routed != nullptr && routed->smp_tensor_parallel.value_or(false);
}

/// Where they are the whole, with one tensor-parallel rank, modules may share slices.
static void refuse_shared_slices(const Rank& rank, const torch::nn::Module& model) {
  const auto& topology = rank.topology();
  if (topology.tp_size() == 1) return;
  const auto shared = tp::find_shared_slice(model);
  SMP_REQUIRE(!shared, "rank ", topology.rank(), ": parameter '", shared->elsewhere,
              "' is the same tensor as '", shared->slice, "', of which each of ",
              topology.tp_size(),
              " tensor-parallel ranks holds a slice; a module that is not distributed would take "
              "the slice for the whole. Call the distributed module in both places "
              "(smp::nn::DistributedVocabulary reads and scores by one table), or give the other "
              "one a parameter of its own");
}

/// That another model had, in which a module with others came in their place.
static void refuse_dropped_parameters(const Rank& rank, const torch::nn::Module& model) {
  for (const auto& item : model.named_parameters()) {
    const auto dropped = tp::name_of_dropped(item.value());
    SMP_REQUIRE(dropped.empty(), "rank ", rank.topology().rank(), ": parameter '", item.key(),
                "' has lost its values: as '", dropped,
                "' of another model it was replaced by those of a distributed module; wrap both in "
                "one model, or do not mark what they share");
  }
}

namespace {

/// Refuses every operator, which would find no elements: a penalty on them would be zero.
class DroppedGuard final : public server::TensorGuard {
 public:
  DroppedGuard(const Rank& rank, const std::string& name)
      : what_(base::concat("rank ", rank.topology().rank(), ": parameter '", name,
                           "' is no longer part of the model, and has no values (")) {}
  void before_use(const at::Tensor&, const std::string& op, bool) override {
    throw UsageError(text(op));
  }
  std::string text(const std::string& who) const {
    return what_ + who +
           "): its module was replaced by a distributed one with parameters of its own. Use those "
           "of model.named_parameters(), or do not mark the module";
  }

 private:
  const std::string what_;
};

}  // namespace

static void guard_dropped_parameters(const Rank& rank) {
  for (const auto& [parameter, name] : tp::held_dropped()) {
    if (server::guard_of(parameter) != nullptr || !server::can_be_guarded(parameter)) continue;
    auto guard = c10::make_intrusive<DroppedGuard>(rank, name);
    const auto data_text = guard->text("its memory was asked for");
    server::guard_without_memory(parameter, std::move(guard), data_text);
  }
}

std::vector<ReplacementCandidate> spread_marked_modules(const Rank& rank,
                                                        torch::nn::Module& model) {
  auto candidates = replace_marked_modules(model);
  guard_dropped_parameters(rank);
  for (const auto& [path, type, marked, obstacle, built] : candidates) {
    if (rank.topology().rank() != 0 || !marked || built) continue;
    const auto who = base::concat("tensor parallelism: module '", path, "' (", type, ") ");
    if (obstacle.empty()) {
      base::log(base::LogLevel::kInfo, who, "is spread over ", rank.topology().tp_size(), " ranks");
    } else {
      base::log(base::LogLevel::kWarning, who, "stays whole: ", obstacle);
    }
  }
  refuse_shared_slices(rank, model);
  refuse_dropped_parameters(rank, model);
  return candidates;
}

ReadMarks::ReadMarks(torch::nn::Module& model) {
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    if (is_marked(*item.value())) marked_.insert(item.key());
  }
  if (is_marked(model)) marked_.insert("");
}

void ReadMarks::require_same(torch::nn::Module& model) const {
  const ReadMarks now(model);
  std::vector<std::string> changed;
  std::set_symmetric_difference(marked_.begin(), marked_.end(), now.marked_.begin(),
                                now.marked_.end(), std::back_inserter(changed));
  if (changed.empty()) return;
  const auto& path = changed.front();
  const bool added = now.marked_.count(path) != 0;
  throw UsageError(base::concat(
      "module '", path.empty() ? "<root>" : path, "' ",
      added ? "was marked for tensor parallelism" : "lost its mark for tensor parallelism",
      " after its model was wrapped in an smp::DistributedModel, which reads marks then: it would ",
      added ? "stay whole" : "stay spread", ". Call smp::set_tensor_parallelism() before",
      changed.size() > 1 ? base::concat(" (there are ", changed.size() - 1, " more like it)")
                         : ""));
}

}  // namespace smp
