// partition/search/recompute_choice.cpp: per subtree the choices of which none is better in every
// way than another, joined from the leaves up; then the memory model has the last word.
#include "partition/search/recompute_choice.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "simulate/most_activations.h"

namespace smp::partitioning {
namespace {

/// Choices that are kept of a part, of a model of so many modules and of larger ones; beyond that,
/// evenly spread ones. With 24 one plan in twenty of up to 12 modules took 2 to 10 % longer
/// than the best.
constexpr std::size_t kMostPointsOfSmall = 128;
constexpr std::size_t kModulesOfSmall = 32;
constexpr std::size_t kMostPoints = 24;
/// Corrections of a choice that the memory model refutes.
constexpr int kCorrections = 8;
/// Modules up to which taking back tries each by itself.
constexpr std::size_t kMostTakenBack = 64;

/// Leaves what no other choice is as good as in all of time, bytes kept and bytes at once.
template <class Points>
void thin_out(Points& points, std::size_t most) {
  std::stable_sort(points.begin(), points.end(), [](const auto& a, const auto& b) {
    return std::tie(a.seconds, a.kept, a.together) < std::tie(b.seconds, b.kept, b.together);
  });
  Points left;
  for (auto& point : points) {
    const bool useless = std::any_of(left.begin(), left.end(), [&](const auto& other) {
      return other.kept <= point.kept && other.together <= point.together;
    });
    if (!useless) left.push_back(std::move(point));
  }
  if (left.size() > most) {
    Points some;
    for (std::size_t i = 0; i < most; ++i) {
      some.push_back(std::move(left[i * (left.size() - 1) / (most - 1)]));
    }
    left = std::move(some);
  }
  points = std::move(left);
}

template <class Points>
Points joined(const Points& a, const Points& b, std::size_t most) {
  Points all;
  for (const auto& one : a) {
    for (const auto& other : b) {
      auto point = one;
      point.seconds += other.seconds;
      point.kept += other.kept;
      point.together = std::max(point.together, other.together);
      point.chosen.insert(point.chosen.end(), other.chosen.begin(), other.chosen.end());
      all.push_back(std::move(point));
    }
  }
  thin_out(all, most);
  return all;
}

simulate::RecomputedModules without(int module, simulate::RecomputedModules modules) {
  std::erase_if(modules, [&](const auto& each) { return each.module == module; });
  return modules;
}

}  // namespace

RecomputeChoice::RecomputeChoice(const ModuleTree& tree, const simulate::Trace& trace,
                                 const simulate::Machine& machine, const std::vector<int>& allowed,
                                 const Step& step)
    : tree_(tree),
      trace_(trace),
      machine_(machine),
      allowed_(allowed),
      step_(step),
      most_points_(tree.nodes.size() <= kModulesOfSmall ? kMostPointsOfSmall : kMostPoints),
      own_(tree.nodes.size()) {
  const auto add = [&](int module, const simulate::ComputeInterval& interval) {
    own_[module].seconds += interval.seconds;
    own_[module].kept += interval.activation_bytes;
    own_[module].product_seconds += interval.product_seconds;
    own_[module].product_bytes += interval.product_bytes;
    own_[module].saved_product_bytes += interval.saved_product_bytes;
  };
  add(0, trace.body_after);
  for (const auto& call : trace.calls) {
    add(call.caller < 0 ? 0 : trace.calls[call.caller].module, call.before);
    add(call.module, call.after);
    own_[call.module].input += call.input_bytes;
    ++own_[call.module].calls;
    const int caller = call.caller < 0 ? 0 : trace.calls[call.caller].module;
    own_[caller].answers.emplace_back(call.module, call.output_bytes);
  }
}

bool RecomputeChoice::is_allowed(int module) const {
  return std::binary_search(allowed_.begin(), allowed_.end(), module) &&
         simulate::find_module(trace_.recomputed, module) == nullptr;
}

/// Returns the bytes of every stage at its worst moment.
std::vector<std::int64_t> RecomputeChoice::most(const std::vector<int>& stages,
                                                const Modules& recomputed) const {
  auto trace = trace_;
  trace.recomputed = recomputed;
  simulate::SimulationOptions options;
  options.microbatches = step_.microbatches;
  options.schedule = step_.schedule;
  const auto activations = simulate::most_activations(trace, stages, machine_, options);
  std::vector<std::int64_t> bytes;
  for (const auto& stage : predict_memory(tree_, stages, {activations, activations},
                                          step_.optimizer_ratio, step_.gradient_copies)) {
    bytes.push_back(stage.most());
  }
  return bytes;
}

bool RecomputeChoice::fits(const std::vector<int>& stages, const Modules& recomputed) const {
  const auto bytes = most(stages, recomputed);
  for (std::size_t s = 0; s < bytes.size(); ++s) {
    if (bytes[s] > machine_.memory[s]) return false;
  }
  return true;
}

/// Returns what a module and all below it on its stage come to, computed again as one: it keeps its
/// own inputs and what other stages answer.
RecomputeChoice::Own RecomputeChoice::whole(int module, const std::vector<int>& stages) const {
  Own all = own_[module];
  for (const auto& [callee, bytes] : own_[module].answers) {
    if (stages[callee] != stages[module]) all.input += bytes;
  }
  for (const int child : tree_.nodes[module].children) {
    if (stages[child] != stages[module]) continue;
    const auto below = whole(child, stages);
    all.seconds += below.seconds;
    all.kept += below.kept;
    all.product_seconds += below.product_seconds;
    all.product_bytes += below.product_bytes;
    all.saved_product_bytes += below.saved_product_bytes;
    all.input += below.input - own_[child].input;
  }
  return all;
}

RecomputeChoice::Points RecomputeChoice::points_of(int module,
                                                   const std::vector<int>& stages) const {
  Points points{{0, own_[module].kept, 0, {}}};
  for (const int child : tree_.nodes[module].children) {
    if (stages[child] == stages[module])
      points = joined(points, points_of(child, stages), most_points_);
  }
  const int calls = own_[module].calls;
  if (!is_allowed(module) || calls == 0) return points;
  const auto all = whole(module, stages);
  const double speed = machine_.speed(stages[module]);
  points.push_back({all.seconds / speed, all.input, all.kept / calls, {{module}}});
  if (all.product_bytes > 0) {
    points.push_back({std::max(0.0, all.seconds - all.product_seconds) / speed,
                      all.input + all.product_bytes,
                      (all.kept - all.saved_product_bytes) / calls,
                      {{module, /*keeps_products=*/true}}});
  }
  thin_out(points, most_points_);
  return points;
}

RecomputeChoice::Points RecomputeChoice::points_of_stage(int stage,
                                                         const std::vector<int>& stages) const {
  Points points{{}};
  for (std::size_t m = 0; m < tree_.nodes.size(); ++m) {
    const int parent = tree_.nodes[m].parent;
    const bool outermost = parent < 0 || stages[parent] != stage;
    if (stages[m] == stage && outermost) {
      points = joined(points, points_of(static_cast<int>(m), stages), most_points_);
    }
  }
  return points;
}

std::int64_t RecomputeChoice::kept_on(int stage, const std::vector<int>& stages) const {
  std::int64_t bytes = 0;
  for (std::size_t m = 0; m < stages.size(); ++m) {
    if (stages[m] == stage) bytes += own_[m].kept;
  }
  return bytes;
}

simulate::RecomputedModules RecomputeChoice::with_chosen(
    const std::vector<Modules>& by_stage) const {
  auto all = trace_.recomputed;
  for (const auto& chosen : by_stage) all.insert(all.end(), chosen.begin(), chosen.end());
  std::sort(all.begin(), all.end());
  return all;
}

simulate::RecomputedModules RecomputeChoice::least(const std::vector<int>& stages,
                                                   bool polish) const {
  auto bytes = most(stages, trace_.recomputed);
  const auto untouched = bytes;
  std::vector<Points> points(bytes.size());
  std::vector<Modules> chosen(bytes.size());
  // By how much more than by its points a stage must shrink.
  std::vector<std::int64_t> more(bytes.size(), 0);
  for (int round = 0; round < kCorrections; ++round) {
    bool changed = false;
    for (std::size_t s = 0; s < bytes.size(); ++s) {
      const auto missing = bytes[s] - machine_.memory[s];
      if (missing <= 0) continue;
      const int stage = static_cast<int>(s);
      if (points[s].empty()) {
        points[s] = points_of_stage(stage, stages);
      } else {
        more[s] += missing;
      }
      const int alive = step_.schedule->most_alive(stage, step_.microbatches);
      const auto rest = untouched[s] - alive * kept_on(stage, stages) + more[s];
      const Point* best = nullptr;
      const Point* smallest = nullptr;
      const auto need = [&](const Point& point) {
        return rest + alive * point.kept + point.together;
      };
      for (const auto& point : points[s]) {
        if (smallest == nullptr || need(point) < need(*smallest)) smallest = &point;
        if (best == nullptr && need(point) <= machine_.memory[s]) best = &point;
      }
      if (best == nullptr) best = smallest;
      changed |= chosen[s] != best->chosen;
      chosen[s] = best->chosen;
    }
    if (!changed) break;
    bytes = most(stages, with_chosen(chosen));
  }
  if (polish) take_cheapest(chosen, points, stages);
  auto all = with_chosen(chosen);
  if (polish && all.size() > trace_.recomputed.size()) take_back(all, stages);
  return all;
}

std::vector<simulate::RecomputedModules> RecomputeChoice::others(const std::vector<int>& stages,
                                                                 int stage,
                                                                 const Modules& recomputed,
                                                                 std::int64_t bytes) const {
  std::vector<Modules> others;
  const auto add = [&](Modules all) {
    std::sort(all.begin(), all.end());
    if (most(stages, all)[static_cast<std::size_t>(stage)] < bytes) others.push_back(all);
  };
  const auto may_change = [&](int module) { return stages[module] == stage && is_allowed(module); };
  auto elsewhere = recomputed;
  std::erase_if(elsewhere, [&](const auto& each) { return may_change(each.module); });
  for (const auto& point : points_of_stage(stage, stages)) {
    auto all = elsewhere;
    all.insert(all.end(), point.chosen.begin(), point.chosen.end());
    add(std::move(all));
  }
  for (const int module : allowed_) {
    if (!may_change(module)) continue;
    const auto rest = without(module, recomputed);
    add(rest);
    for (const bool keeps_products : {false, true}) {
      if (keeps_products && whole(module, stages).product_bytes == 0) continue;
      auto all = rest;
      all.push_back({module, keeps_products});
      add(std::move(all));
    }
  }
  return others;
}

/// Of the points of each stage the cheapest that fits by the memory model; where none does, the one
/// that needs least. A stage's need does not depend on what others choose, so that all are asked
/// about at once.
void RecomputeChoice::take_cheapest(std::vector<Modules>& chosen, const std::vector<Points>& points,
                                    const std::vector<int>& stages) const {
  constexpr auto kNothing = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> least(chosen.size(), kNothing);
  const auto open = [&](std::size_t s, std::size_t number) {
    return number < points[s].size() && least[s] > machine_.memory[s];
  };
  for (std::size_t number = 0; number < most_points_; ++number) {
    auto trial = chosen;
    bool any = false;
    for (std::size_t s = 0; s < chosen.size(); ++s) {
      if (!open(s, number)) continue;
      trial[s] = points[s][number].chosen;
      any = true;
    }
    if (!any) return;
    const auto bytes = most(stages, with_chosen(trial));
    for (std::size_t s = 0; s < chosen.size(); ++s) {
      if (!open(s, number) || bytes[s] >= least[s]) continue;
      least[s] = bytes[s];
      chosen[s] = trial[s];
    }
  }
}

/// The dearest first: all of it, or else its products.
void RecomputeChoice::take_back(Modules& chosen, const std::vector<int>& stages) const {
  if (chosen.size() > kMostTakenBack || !fits(stages, chosen)) return;
  auto order = chosen;
  std::stable_sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    return whole(a.module, stages).seconds > whole(b.module, stages).seconds;
  });
  for (const auto& [module, keeps_products] : order) {
    if (!is_allowed(module)) continue;
    auto fewer = without(module, chosen);
    if (!fits(stages, fewer)) {
      if (keeps_products || whole(module, stages).product_bytes == 0) continue;
      fewer.push_back({module, /*keeps_products=*/true});
      std::sort(fewer.begin(), fewer.end());
      if (!fits(stages, fewer)) continue;
    }
    chosen = std::move(fewer);
  }
}

}  // namespace smp::partitioning
