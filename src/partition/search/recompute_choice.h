// partition/search/recompute_choice.h: the least that must be computed again so that a placement
// fits its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "partition/model/memory_model.h"
#include "partition/model/module_tree.h"
#include "schedule/schedule.h"
#include "simulate/machine.h"
#include "simulate/trace.h"

namespace smp::partitioning {

/// Chooses, stage by stage, modules whose calls keep their inputs only, or the results of products
/// as well. Of all choices that fit it
/// looks for the one that adds least time to the stage: exactly, for what a module's calls keep and
/// take on their own; then the memory model tells whether that was right, and the choice is
/// corrected, or made anew by the memory model. Refers to its arguments, which must outlive it.
/// Pure and deterministic.
class RecomputeChoice {
 public:
  struct Step {
    int microbatches = 1;
    const schedule::Schedule* schedule = nullptr;
    double optimizer_ratio = 2;
    int gradient_copies = 1;
  };
  /// @param allowed  modules that may be chosen, ascending
  RecomputeChoice(const ModuleTree& tree, const simulate::Trace& trace,
                  const simulate::Machine& machine, const std::vector<int>& allowed,
                  const Step& step);

  /// Returns the modules to choose, with those that are computed again anyway; where nothing fits,
  /// those with which a stage takes least.
  /// @param stages  of every module
  /// @param polish  asks the memory model about one choice after the other, the cheapest first, and
  ///                takes back, one by one, what turns out not to be needed, unless it is very much
  [[nodiscard]] simulate::RecomputedModules least(const std::vector<int>& stages,
                                                  bool polish) const;

  /// Returns choices for one stage with which it needs less than `bytes` by the memory model: those
  /// that least() considers, the cheapest first, then what differs from `recomputed` by one module.
  /// Each with what `recomputed` has on the other stages.
  [[nodiscard]] std::vector<simulate::RecomputedModules> others(
      const std::vector<int>& stages, int stage, const simulate::RecomputedModules& recomputed,
      std::int64_t bytes) const;

 private:
  using Modules = simulate::RecomputedModules;
  /// What all calls of a module come to in a microbatch, without those that they make.
  struct Own {
    double seconds = 0;                    ///< of the forward
    std::int64_t kept = 0;                 ///< by its operators
    double product_seconds = 0;            ///< as in simulate::ComputeInterval
    std::int64_t product_bytes = 0;        ///< likewise
    std::int64_t saved_product_bytes = 0;  ///< likewise
    std::int64_t input = 0;  ///< of its calls; with answers of other stages, if it is whole()
    int calls = 0;
    /// What it calls: the module, and the bytes that it returns.
    std::vector<std::pair<int, std::int64_t>> answers = {};
  };
  /// One way to treat some modules of a stage.
  struct Point {
    double seconds = 0;         ///< that it adds
    std::int64_t kept = 0;      ///< until the backward
    std::int64_t together = 0;  ///< while the largest part is computed again
    Modules chosen;
  };
  using Points = std::vector<Point>;

  Points points_of(int module, const std::vector<int>& stages) const;
  Own whole(int module, const std::vector<int>& stages) const;
  std::vector<std::int64_t> most(const std::vector<int>& stages, const Modules& recomputed) const;
  Modules with_chosen(const std::vector<Modules>& by_stage) const;
  Points points_of_stage(int stage, const std::vector<int>& stages) const;
  std::int64_t kept_on(int stage, const std::vector<int>& stages) const;
  void take_cheapest(std::vector<Modules>& chosen, const std::vector<Points>& points,
                     const std::vector<int>& stages) const;
  void take_back(Modules& chosen, const std::vector<int>& stages) const;
  bool fits(const std::vector<int>& stages, const Modules& recomputed) const;
  bool is_allowed(int module) const;

  const ModuleTree& tree_;
  const simulate::Trace& trace_;
  const simulate::Machine& machine_;
  const std::vector<int>& allowed_;
  const Step step_;
  const std::size_t most_points_;  // of a part
  std::vector<Own> own_;
};

}  // namespace smp::partitioning
