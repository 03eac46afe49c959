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

/// Choices that are kept of a part; beyond that, evenly spread ones.
constexpr std::size_t kMostPoints = 24;
/// Corrections of a choice that the memory model refutes.
constexpr int kCorrections = 8;
/// Modules up to which taking back tries each by itself.
constexpr std::size_t kMostTakenBack = 64;

/// Leaves what no other choice is as good as in all of time, bytes kept and bytes at once.
template <class Points>
void thin_out(Points& points) {
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
  if (left.size() > kMostPoints) {
    Points some;
    for (std::size_t i = 0; i < kMostPoints; ++i) {
      some.push_back(std::move(left[i * (left.size() - 1) / (kMostPoints - 1)]));
    }
    left = std::move(some);
  }
  points = std::move(left);
}

template <class Points>
Points joined(const Points& a, const Points& b) {
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
  thin_out(all);
  return all;
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
      own_(tree.nodes.size()) {
  const auto add = [&](int module, const simulate::ComputeInterval& interval) {
    own_[module].seconds += interval.seconds;
    own_[module].kept += interval.activation_bytes;
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
         !std::binary_search(trace_.recomputed.begin(), trace_.recomputed.end(), module);
}

/// Returns the bytes of every stage at its worst moment.
std::vector<std::int64_t> RecomputeChoice::most(const std::vector<int>& stages,
                                                const std::vector<int>& recomputed) const {
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

bool RecomputeChoice::fits(const std::vector<int>& stages,
                           const std::vector<int>& recomputed) const {
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
    all.input += below.input - own_[child].input;
  }
  return all;
}

RecomputeChoice::Points RecomputeChoice::points_of(int module,
                                                   const std::vector<int>& stages) const {
  Points points{{0, own_[module].kept, 0, {}}};
  for (const int child : tree_.nodes[module].children) {
    if (stages[child] == stages[module]) points = joined(points, points_of(child, stages));
  }
  const int calls = own_[module].calls;
  if (!is_allowed(module) || calls == 0) return points;
  const auto all = whole(module, stages);
  const double seconds = all.seconds / machine_.speed(stages[module]);
  points.push_back({seconds, all.input, all.kept / calls, {module}});
  thin_out(points);
  return points;
}

RecomputeChoice::Points RecomputeChoice::points_of_stage(int stage,
                                                         const std::vector<int>& stages) const {
  Points points{{}};
  for (std::size_t m = 0; m < tree_.nodes.size(); ++m) {
    const int parent = tree_.nodes[m].parent;
    const bool outermost = parent < 0 || stages[parent] != stage;
    if (stages[m] == stage && outermost) {
      points = joined(points, points_of(static_cast<int>(m), stages));
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

std::vector<int> RecomputeChoice::with_chosen(const std::vector<std::vector<int>>& by_stage) const {
  auto all = trace_.recomputed;
  for (const auto& chosen : by_stage) all.insert(all.end(), chosen.begin(), chosen.end());
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<int> RecomputeChoice::least(const std::vector<int>& stages, bool polish) const {
  auto bytes = most(stages, trace_.recomputed);
  const auto untouched = bytes;
  std::vector<Points> points(bytes.size());
  std::vector<std::vector<int>> chosen(bytes.size());
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

std::vector<std::vector<int>> RecomputeChoice::others(const std::vector<int>& stages, int stage,
                                                      const std::vector<int>& recomputed,
                                                      std::int64_t bytes) const {
  std::vector<std::vector<int>> others;
  const auto add = [&](std::vector<int> all) {
    std::sort(all.begin(), all.end());
    if (most(stages, all)[static_cast<std::size_t>(stage)] < bytes) others.push_back(all);
  };
  const auto may_change = [&](int module) { return stages[module] == stage && is_allowed(module); };
  auto elsewhere = recomputed;
  std::erase_if(elsewhere, may_change);
  for (const auto& point : points_of_stage(stage, stages)) {
    auto all = elsewhere;
    all.insert(all.end(), point.chosen.begin(), point.chosen.end());
    add(std::move(all));
  }
  for (const int module : allowed_) {
    if (!may_change(module)) continue;
    auto all = recomputed;
    if (std::erase(all, module) == 0) all.push_back(module);
    add(std::move(all));
  }
  return others;
}

/// Of the points of each stage the cheapest that fits by the memory model; where none does, the one
/// that needs least. A stage's need does not depend on what others choose, so that all are asked
/// about at once.
void RecomputeChoice::take_cheapest(std::vector<std::vector<int>>& chosen,
                                    const std::vector<Points>& points,
                                    const std::vector<int>& stages) const {
  constexpr auto kNothing = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> least(chosen.size(), kNothing);
  const auto open = [&](std::size_t s, std::size_t number) {
    return number < points[s].size() && least[s] > machine_.memory[s];
  };
  for (std::size_t number = 0; number < kMostPoints; ++number) {
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

/// The dearest first.
void RecomputeChoice::take_back(std::vector<int>& chosen, const std::vector<int>& stages) const {
  if (chosen.size() > kMostTakenBack || !fits(stages, chosen)) return;
  auto order = chosen;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return whole(a, stages).seconds > whole(b, stages).seconds;
  });
  for (const int module : order) {
    if (!is_allowed(module)) continue;
    auto fewer = chosen;
    std::erase(fewer, module);
    if (fits(stages, fewer)) chosen = std::move(fewer);
  }
}

}  // namespace smp::partitioning
