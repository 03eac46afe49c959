// partition/search/memory_diagnosis.cpp: every remedy it names was tried out, on the same
// placement.
#include "partition/search/memory_diagnosis.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/check.h"
#include "partition/search/memory_bound.h"
#include "partition/text/short_text.h"

namespace smp::partitioning {
namespace {

using base::concat;

class MemoryDiagnosis {
 public:
  explicit MemoryDiagnosis(const UnfitPlacement& unfit) : unfit_(unfit) {}

  std::string text() const {
    std::string text = verdict() + recomputed();
    for (int s = 0; s < unfit_.machine.stages; ++s) text += shortage(s);
    text += largest_node();
    const auto found = remedies();
    text +=
        found.empty() ? "\nnothing that was tried on this placement helps" : "\nwhat would help:";
    for (const std::string& remedy : found) text += concat("\n  - ", remedy);
    return text;
  }

 private:
  std::string verdict() const {
    if (unfit_.all_by_hand) return "the model does not fit as it is placed by hand:";
    const double bound = bound_of(unfit_.costs);
    if (bound > 1) {
      const bool pinned = bound_of(without_pins()) <= 1;
      char times[32];
      std::snprintf(times, sizeof times, "%.2f", bound);
      return concat(
          "the model does not fit",
          pinned ? " with modules where they are pinned: however the rest" : ": however it",
          " is cut, some stage needs ", times, " times its memory or more");
    }
    return "no placement was found that fits, which is no proof that there is none; the best one "
           "found:";
  }

  /// Says what came closest, if modules could be computed again.
  std::string recomputed() const {
    if (unfit_.settings.recomputable == nullptr) return {};
    std::string names;
    int count = 0;
    for (const auto& [module, keeps_products] : unfit_.judgement.recomputed) {
      if (++count > kNamed) continue;
      names += concat(count > 1 ? ", " : "", quoted_path(unfit_.tree.nodes[module].path),
                      keeps_products ? " but for products" : "");
    }
    if (count > kNamed) names += concat(" and ", count - kNamed, " more");
    const int alive = unfit_.settings.schedule->most_alive(0, unfit_.settings.microbatches);
    return concat("\n  closest came: ", count == 0 ? "nothing" : names, " computed again, and ",
                  alive, alive == 1 ? " microbatch in flight" : " microbatches in flight");
  }

  double bound_of(const CostTree& costs) const {
    return memory_lower_bound(unfit_.tree, costs, unfit_.machine, unfit_.settings);
  }

  /// Returns the cost tree without fixed stages, but for that of the model itself, which is no pin.
  CostTree without_pins() const {
    CostTree costs = unfit_.costs;
    for (std::size_t n = 1; n < costs.nodes.size(); ++n) costs.nodes[n].fixed = -1;
    return costs;
  }

  std::int64_t limit(int stage) const { return unfit_.machine.memory[stage]; }

  std::string shortage(int stage) const {
    const StageMemory& memory = unfit_.judgement.memory[stage];
    if (memory.most() <= limit(stage)) return {};
    return concat("\n  stage ", stage, " needs ", short_bytes(memory.most()), " and may use ",
                  short_bytes(limit(stage)), ", ", short_bytes(memory.most() - limit(stage)),
                  " too little (weights ", short_bytes(memory.weights), ", gradients ",
                  short_bytes(memory.gradients), ", optimizer ", short_bytes(memory.optimizer),
                  ", buffers ", short_bytes(memory.buffers), ", activations ",
                  short_bytes(memory.most_activations), ")");
  }

  double bytes_of_state(const CostNode& node) const {
    return state_bytes(node, unfit_.settings.optimizer_ratio, unfit_.settings.gradient_copies);
  }

  const CostNode& largest() const {
    const auto& nodes = unfit_.costs.nodes;
    return *std::max_element(nodes.begin(), nodes.end(), [this](const auto& a, const auto& b) {
      return bytes_of_state(a) < bytes_of_state(b);
    });
  }

  std::int64_t largest_memory() const {
    return *std::max_element(unfit_.machine.memory.begin(), unfit_.machine.memory.end());
  }

  bool one_is_too_large() const {
    return bytes_of_state(largest()) > static_cast<double>(largest_memory());
  }

  // A module that no stage can hold, however many there are.
  std::string largest_node() const {
    if (!one_is_too_large()) return {};
    const CostNode& node = largest();
    return concat("\n  ", quoted_path(unfit_.tree.nodes[node.modules.front()].path),
                  node.modules.size() > 1 ? " and what shares its weights" : " alone", " needs ",
                  short_bytes(static_cast<std::int64_t>(bytes_of_state(node))),
                  ", more than any stage may use; cut it into smaller modules");
  }

  bool fits(const StepSettings& settings, const simulate::Trace& trace) const {
    const StepJudge judge(unfit_.tree, trace, unfit_.costs, unfit_.machine, settings);
    return judge.judge(unfit_.stages_of_nodes, kSimulated).fits();
  }

  std::vector<std::string> remedies() const {
    std::vector<std::string> found;
    if (!one_is_too_large()) found.push_back(more_stages());
    for (const std::string& remedy :
         {another_schedule(), fewer_in_flight(), smaller_microbatches(), smaller_optimizer()}) {
      if (!remedy.empty()) found.push_back(remedy);
    }
    return found;
  }

  std::string more_stages() const {
    std::int64_t need = 0, have = 0;
    for (const StageMemory& memory : unfit_.judgement.memory) need += memory.most();
    for (const std::int64_t bytes : unfit_.machine.memory) have += bytes;
    const std::int64_t each = have / unfit_.machine.stages;
    const std::int64_t stages = std::max<std::int64_t>(
        (need + each - 1) / std::max<std::int64_t>(each, 1), unfit_.machine.stages + 1);
    return concat("more stages: the model needs ", short_bytes(need), " in all, which is at least ",
                  stages, " stages of this size");
  }

  bool is_interleaved() const {
    return std::string("interleaved") == unfit_.settings.schedule->name();
  }

  // With at most `cap` microbatches in flight.
  bool fits_interleaved(int cap) const {
    const auto schedule = schedule::make_schedule(
        "interleaved", {unfit_.machine.stages, unfit_.settings.microbatches, cap});
    StepSettings settings = unfit_.settings;
    settings.schedule = schedule.get();
    return fits(settings, unfit_.trace);
  }

  std::string another_schedule() const {
    const bool helps = !is_interleaved() && fits_interleaved(unfit_.active_microbatches);
    return helps ? "pipeline = interleaved, which holds fewer microbatches at once" : "";
  }

  std::string fewer_in_flight() const {
    const int now = unfit_.settings.schedule->most_alive(0, unfit_.settings.microbatches);
    for (int cap = now / 2; cap >= 1 && is_interleaved(); cap /= 2) {
      if (fits_interleaved(cap)) return concat("active_microbatches = ", cap, " instead of ", now);
    }
    return {};
  }

  std::string smaller_microbatches() const {
    // Lists are made for a number of microbatches.
    if (unfit_.settings.schedule->list(0) != nullptr) return {};
    for (int split = 2; split <= 16; split *= 2) {
      StepSettings settings = unfit_.settings;
      settings.microbatches *= split;
      simulate::Trace trace = unfit_.trace;
      shrink(trace, split);
      for (simulate::Trace& other : trace.others) shrink(other, split);
      if (fits(settings, trace)) {
        return concat("microbatches = ", settings.microbatches, ", so that each is smaller");
      }
    }
    return {};
  }

  static void shrink(simulate::Trace& trace, int split) {
    const auto shrink_interval = [split](simulate::ComputeInterval& interval) {
      interval.activation_bytes /= split;
      interval.gradient_bytes /= split;
    };
    shrink_interval(trace.body_after);
    for (simulate::TracedCall& call : trace.calls) {
      shrink_interval(call.before);
      shrink_interval(call.after);
      call.caller_live_bytes /= split;
      call.caller_gradient_bytes /= split;
      call.input_bytes /= split;
      call.output_bytes /= split;
    }
    for (simulate::SharedTensor& tensor : trace.shared) tensor.bytes /= split;
    for (simulate::TensorUse& use : trace.uses) use.bytes /= split;
  }

  std::string smaller_optimizer() const {
    StepSettings settings = unfit_.settings;
    settings.optimizer_ratio = 0;
    const bool helps = unfit_.settings.optimizer_ratio > 0 && fits(settings, unfit_.trace);
    return helps ? "an optimizer without state, such as SGD without momentum" : "";
  }

  // Enough to see the peak of activations.
  static constexpr int kSimulated = 256;
  static constexpr int kNamed = 8;

  const UnfitPlacement& unfit_;
};

}  // namespace

void throw_memory_diagnosis(const UnfitPlacement& unfit) {
  throw ResourceError(MemoryDiagnosis(unfit).text());
}

}  // namespace smp::partitioning
