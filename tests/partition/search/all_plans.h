// Every plan of a small model: placement, microbatches in flight and what is computed again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "partition/model/stage_use.h"
#include "partition/search/random_tree.h"
#include "partition/search/step_judge.h"
#include "simulate/most_activations.h"
#include "trial/planning.h"

namespace smp::partitioning {

/// Tries every placement, number in flight and choice, but for those that cannot be the best. Up to
/// some 20,000 placements take seconds. Refers to its arguments, whose limits may change.
class AllPlans {
 public:
  using Modules = simulate::RecomputedModules;

  AllPlans(const RandomModel& model, const PartitionOptions& options)
      : model_(model),
        options_(options),
        costs_(make_cost_tree(model.tree, model.trace, model.fixed, {.memory_weight = 0})),
        own_seconds_(model.tree.nodes.size()),
        own_product_seconds_(model.tree.nodes.size()) {
    const auto add = [&](int module, const simulate::ComputeInterval& own) {
      own_seconds_[module] += own.seconds;
      own_product_seconds_[module] += own.product_seconds;
      has_products_ |= own.product_bytes > 0;
    };
    add(0, model.trace.body_after);
    for (const auto& call : model.trace.calls) {
      add(call.caller < 0 ? 0 : model.trace.calls[call.caller].module, call.before);
      add(call.module, call.after);
    }
    find_placements();
  }

  /// Returns the least value of a plan that fits, if it is below `best`, else `best`.
  double best(double best) {
    best_ = best;
    for (int in_flight = 1; in_flight <= options_.active_microbatches; ++in_flight) {
      schedule_ = schedule::make_interleaved(in_flight);
      for (const auto& placement : placements_) {
        if (placement.least_seconds >= best_) break;
        look_at(placement);
        try_choices();
      }
    }
    return best_;
  }

  /// Returns the bytes of the fullest stage where all of `recomputed` are computed again, in the
  /// placement that needs least.
  std::int64_t least_memory(const Modules& recomputed, int in_flight) {
    schedule_ = schedule::make_interleaved(in_flight);
    auto least = std::numeric_limits<std::int64_t>::max();
    for (const auto& placement : placements_) {
      if (placement.most_state >= least) continue;
      look_at(placement);
      const auto bytes = most(recomputed);
      least = std::min(least, *std::max_element(bytes.begin(), bytes.end()));
    }
    return least;
  }

  /// Returns the bytes of the fullest stage in the plan that needs least, as judged in the end:
  /// with gradients that wait beside their sums.
  std::int64_t least_memory() {
    schedule_ = schedule::make_interleaved(1);
    auto least = std::numeric_limits<std::int64_t>::max();
    for (const auto& placement : placements_) {
      if (placement.most_state >= least) continue;
      look_at(placement);
      least = std::min(least, least_of_placement(least));
    }
    return least;
  }

 private:
  struct Placement {
    unsigned number = 0;          ///< the stages of nodes are its digits
    double least_seconds = 0;     ///< of the stage with most work, for a step without messages
    std::int64_t most_state = 0;  ///< bytes of weights and what belongs to them, fullest stage
  };
  struct Choice {
    double seconds = 0;  ///< that it adds to a microbatch
    Modules modules;
  };

  int stages() const { return options_.machine.stages; }

  /// All of them, those first whose fullest stage is done first.
  void find_placements() {
    unsigned count = 1;
    for (std::size_t n = 1; n < costs_.nodes.size(); ++n) count *= stages();
    for (unsigned number = 0; number < count; ++number) {
      decode(number);
      if (!every_stage_used(costs_, options_.machine, nodes_)) continue;
      std::vector<double> seconds(stages(), 0);
      for (std::size_t n = 0; n < nodes_.size(); ++n) {
        seconds[nodes_[n]] += costs_.nodes[n].seconds;
      }
      const auto fullest = *std::max_element(seconds.begin(), seconds.end());
      placements_.push_back({number, options_.microbatches * fullest, most_state()});
    }
    std::stable_sort(placements_.begin(), placements_.end(), [](const auto& a, const auto& b) {
      return a.least_seconds < b.least_seconds;
    });
  }

  void decode(unsigned number) {
    nodes_.assign(costs_.nodes.size(), 0);
    for (std::size_t n = 1; n < nodes_.size(); ++n) {
      nodes_[n] = static_cast<int>(number % stages());
      number /= stages();
    }
    stages_ = stages_of_modules(costs_, nodes_);
  }

  std::int64_t most_state() const {
    const std::vector<std::int64_t> none(stages(), 0);
    std::int64_t fullest = 0;
    for (const auto& stage :
         predict_memory(model_.tree, stages_, {none, none}, options_.optimizer_ratio)) {
      fullest = std::max(fullest, stage.state());
    }
    return fullest;
  }

  void look_at(const Placement& placement) {
    decode(placement.number);
    busy_.clear();
  }

  /// Returns the seconds that a stage is at work, with one microbatch and nothing computed again.
  double busy(int stage) {
    if (busy_.empty()) {
      const auto one = schedule::make_interleaved(1);
      busy_ = simulate::simulate(model_.trace, stages_, options_.machine,
                                 {.microbatches = 1, .schedule = one.get()})
                  .busy;
    }
    return busy_[stage];
  }

  std::vector<std::int64_t> most(const Modules& recomputed) const {
    auto trace = model_.trace;
    trace.recomputed = recomputed;
    const simulate::SimulationOptions options{.microbatches = options_.microbatches,
                                              .schedule = schedule_.get()};
    const auto activations = most_activations(trace, stages_, options_.machine, options);
    std::vector<std::int64_t> bytes;
    for (const auto& stage : predict_memory(model_.tree, stages_, {activations, activations},
                                            options_.optimizer_ratio)) {
      bytes.push_back(stage.most());
    }
    return bytes;
  }

  /// Returns the seconds of the forward of a module with what is below it on its stage, perhaps
  /// without those of products.
  double seconds_of(int module, bool without_products) const {
    double seconds = own_seconds_[module] - (without_products ? own_product_seconds_[module] : 0);
    for (const int child : model_.tree.nodes[module].children) {
      if (stages_[child] == stages_[module]) seconds += seconds_of(child, without_products);
    }
    return seconds;
  }

  /// True if a module around it on its stage is chosen, and so it is a part of that.
  bool is_inside(int module, const Modules& chosen) const {
    const auto& nodes = model_.tree.nodes;
    for (int above = nodes[module].parent; above > 0; above = nodes[above].parent) {
      if (stages_[above] != stages_[module]) return false;
      if (simulate::find_module(chosen, above) != nullptr) return true;
    }
    return false;
  }

  /// All choices on a stage that differ, the cheapest first.
  std::vector<Choice> choices_on(int stage) const {
    std::vector<Choice> choices{{}};
    for (const int module : options_.recomputable) {
      if (stages_[module] != stage) continue;
      const auto without = choices.size();
      for (std::size_t i = 0; i < without; ++i) {
        if (is_inside(module, choices[i].modules)) continue;  // parents come first
        for (const bool keeps_products : {false, true}) {
          auto with = choices[i];
          with.seconds += seconds_of(module, keeps_products);
          with.modules.push_back({module, keeps_products});
          choices.push_back(std::move(with));
          if (!has_products_) break;
        }
      }
    }
    std::stable_sort(choices.begin(), choices.end(),
                     [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
    return choices;
  }

  struct Need {
    std::int64_t bytes = 0;
    Modules modules;
  };

  /// Returns what a stage needs with each choice, the least first, without gradients that wait.
  std::vector<Need> needs_of(int stage) const {
    std::vector<Need> needs;
    for (auto& choice : choices_on(stage)) {
      needs.push_back({most(choice.modules)[stage], std::move(choice.modules)});
    }
    std::stable_sort(needs.begin(), needs.end(),
                     [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    return needs;
  }

  /// Returns the bytes of the fullest stage with the best choice that was found, if that is below
  /// `least`. Stage by stage the choices that may be better are judged.
  std::int64_t least_of_placement(std::int64_t least) const {
    std::vector<std::vector<Need>> needs;
    std::vector<Modules> chosen;
    std::int64_t fullest = 0;
    for (int stage = 0; stage < stages(); ++stage) {
      needs.push_back(needs_of(stage));
      chosen.push_back(needs.back().front().modules);
      fullest = std::max(fullest, needs.back().front().bytes);
      if (fullest >= least) return least;
    }
    least = std::min(least, judged(chosen));
    for (int stage = 0; stage < stages(); ++stage) {
      for (const auto& need : needs[stage]) {
        if (std::max(need.bytes, fullest) >= least) break;
        auto other = chosen;
        other[stage] = need.modules;
        const auto bytes = judged(other);
        if (bytes >= least) continue;
        least = bytes;
        chosen = std::move(other);
      }
    }
    return least;
  }

  std::int64_t judged(const std::vector<Modules>& chosen) const {
    Modules all;
    for (const auto& modules : chosen) all.insert(all.end(), modules.begin(), modules.end());
    std::int64_t fullest = 0;
    for (const auto& stage : judge(std::move(all)).memory) {
      fullest = std::max(fullest, stage.most());
    }
    return fullest;
  }

  Judgement judge(Modules chosen) const {
    std::sort(chosen.begin(), chosen.end());
    auto trace = model_.trace;
    trace.recomputed = std::move(chosen);
    const StepJudge judge(
        model_.tree, trace, costs_, options_.machine,
        {options_.microbatches, schedule_.get(), options_.optimizer_ratio, /*balance_weight=*/0});
    return judge.judge_within(nodes_, kWholeStep);
  }

  /// Of the choices that fit a stage, takes the one that adds least time to it. @return false if
  /// none fits, or only such as take longer than the best step
  bool choose(int stage, Modules& chosen) {
    const auto limit = options_.machine.memory[stage];
    if (most({})[stage] <= limit) return true;
    for (const auto& choice : choices_on(stage)) {
      if (options_.microbatches * (busy(stage) + choice.seconds) >= best_) return false;
      if (most(choice.modules)[stage] > limit) continue;
      chosen.insert(chosen.end(), choice.modules.begin(), choice.modules.end());
      return true;
    }
    return false;
  }

  void try_choices() {
    Modules chosen;
    for (int stage = 0; stage < stages(); ++stage) {
      if (options_.microbatches * busy(stage) >= best_ || !choose(stage, chosen)) return;
    }
    const auto judgement = judge(std::move(chosen));
    if (judgement.fits()) best_ = std::min(best_, judgement.value());
  }

  static constexpr std::int64_t kWholeStep = 500'000;  // calls, as make_plan() judges in the end

  const RandomModel& model_;
  const PartitionOptions& options_;
  const CostTree costs_;
  std::vector<double> own_seconds_;          // of the forward, by module
  std::vector<double> own_product_seconds_;  // of these
  bool has_products_ = false;                // any module
  std::vector<Placement> placements_;
  std::unique_ptr<schedule::Schedule> schedule_;
  double best_ = std::numeric_limits<double>::infinity();
  // The placement that is looked at.
  std::vector<int> nodes_, stages_;
  std::vector<double> busy_;
};

}  // namespace smp::partitioning
