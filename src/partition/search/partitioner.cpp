// partition/search/partitioner.cpp: pins, then the cost tree, then what the strategies find, then
// the best of it.
#include "partition/search/partitioner.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "partition/model/count_trace.h"
#include "partition/model/hand_placement.h"
#include "partition/model/stage_use.h"
#include "partition/plan/explain.h"
#include "partition/search/memory_diagnosis.h"
#include "partition/search/search_budget.h"
#include "partition/search/step_bound.h"
#include "partition/search/step_judge.h"
#include "partition/search/strategies.h"

namespace smp::partitioning {
namespace {

using base::concat;

/// The shares by which a bottleneck may grow if that cuts fewer modules.
constexpr std::array kSlacks{0.01, 0.03, 0.1};
/// The numbers of runs per stage to try in looped_partition().
constexpr std::array kLoops{2, 3, 4, 6, 8};

/// The weights of memory (alpha) to try beside the one that is asked for.
constexpr std::array kOtherAlphas{0.0, 0.2, 0.5, 0.8, 1.0};
constexpr int kBudgetForOtherCosts = 200;  // judgements
/// The weight of memory in the costs that a second search evens out.
constexpr double kEvenMemory = 0.8;

constexpr const char* kByHand = "by hand";
constexpr const char* kInterleaved = "interleaved";

struct Candidate {
  std::string strategy;
  std::vector<int> stages;  // of nodes
  Judgement judgement;
};

class Planner {
 public:
  Planner(const ModuleTree& tree, const PartitionOptions& options)
      : tree_(tree),
        options_(options),
        hand_(follow_pins(tree, options.pins, options.pp_size)),
        trace_(trace_to_plan(tree, options.trace)),
        machine_(machine_of(options)),
        costs_(make_cost_tree(tree, trace_, hand_.stages, {.memory_weight = balance_weight()})),
        schedule_(schedule::make_schedule(options.pipeline, shape_of(options))),
        judge_(tree_, trace_, costs_, machine_, settings()),
        budget_(options.microbatches, judge_.calls_of_microbatch()) {}

  /// Tells that memory decides, and the placement that was best with more in flight.
  void begin_with(std::vector<int> stages) { earlier_ = std::move(stages); }

  const std::vector<int>& placement() const { return best().stages; }

  /// Finds placements. @return the judgement of the best
  const Judgement& place() {
    if (options_.auto_partition) {
      split();
    } else {
      fill_default();
    }
    return best().judgement;
  }

  /// Makes the plan of the best placement. @throws ResourceError  it does not fit
  PartitionPlan conclude() const {
    const Candidate& chosen = best();
    if (!chosen.judgement.fits() && options_.refuse_unfit) diagnose(chosen);
    return explain(chosen);
  }

 private:
  const Candidate& best() const {
    return *std::min_element(found_.begin(), found_.end(),
                             [&](auto& a, auto& b) { return value(a) < value(b); });
  }

  [[noreturn]] void diagnose(const Candidate& chosen) const {
    auto trace = trace_;
    trace.recomputed = chosen.judgement.recomputed;
    auto costs = costs_;
    for (auto& node : costs.nodes) {
      if (may_keep_nothing(node)) node.activation_bytes = 0;  // for what no placement can go below
    }
    throw_memory_diagnosis({tree_, trace, costs, machine_, judge_.settings(), chosen.stages,
                            chosen.judgement, chosen.strategy == kByHand,
                            options_.active_microbatches});
  }

  /// True if all of a node's modules, or modules around them, may be computed again.
  bool may_keep_nothing(const CostNode& node) const {
    return std::all_of(node.modules.begin(), node.modules.end(), [&](int module) {
      for (; module >= 0; module = tree_.nodes[module].parent) {
        if (std::binary_search(options_.recomputable.begin(), options_.recomputable.end(), module))
          return true;
      }
      return false;
    });
  }

  static simulate::Machine machine_of(const PartitionOptions& options) {
    simulate::Machine machine = options.machine;
    machine.stages = options.pp_size;
    return machine;
  }

  StepSettings settings() const {
    return {options_.microbatches,
            schedule_.get(),
            options_.optimizer_ratio,
            balance_weight(),
            options_.gradient_copies,
            options_.memory_weight,
            options_.recomputable.empty() ? nullptr : &options_.recomputable};
  }

  /// The weight of memory in the cost that stages should have alike. Where the step can be
  /// simulated and the strategy is free to choose, memory has no part in it: even memory is of no
  /// use to stages with room, and costs time. What is nearly full counts in the judgement.
  double balance_weight() const {
    const bool judges = options_.strategy == "best" || options_.strategy == "search";
    return judges && knows_times() ? 0 : options_.memory_weight;
  }
  bool knows_times() const { return trace_.source != simulate::CostSource::kCounts; }

  // ---- what has no pin ------------------------------------------------------------------------

  void fill_default() {
    const int stage = options_.default_partition;
    SMP_REQUIRE(stage >= 0 && stage < machine_.stages, "default_partition is ", stage,
                "; there are ", machine_.stages, " stages, numbered from 0");
    for (std::size_t m = 1; m < tree_.nodes.size(); ++m) {
      const bool follows_another = costs_.nodes[costs_.node_of_module[m]].fixed >= 0;
      if (hand_.reasons[m].empty() && !follows_another) {
        hand_.reasons[m] = "placed by default_partition";
      }
    }
    add(kByHand, fixed_stages(stage));
  }

  /// Returns the stage of every node, if those without a fixed one go to `stage`. The model itself
  /// is on stage 0.
  std::vector<int> fixed_stages(int stage) const {
    std::vector<int> stages;
    for (const CostNode& node : costs_.nodes) {
      const bool model = stages.empty();
      stages.push_back(node.fixed >= 0 ? node.fixed : (model ? 0 : stage));
    }
    return stages;
  }

  bool wanted(const std::string& strategy) const {
    return options_.strategy == strategy || options_.strategy == "best";
  }

  void split() {
    SMP_REQUIRE(wanted("tree") || wanted("contiguous") || wanted("search"),
                "there is no partition_strategy \"", options_.strategy,
                "\"; use \"best\", \"tree\", \"contiguous\" or \"search\"");
    const StageUse use = stage_use(costs_, machine_);
    // Who places everything by hand may leave stages idle.
    if (use.free == 0 && !options_.pins.empty()) return add(kByHand, fixed_stages(0));
    // State that keeps everything on stage 0 is no fault of the model.
    const bool shared =
        std::any_of(trace_.state.begin(), trace_.state.end(),
                    [](const auto& change) { return change.kind == simulate::StateKind::kShared; });
    if ((shared || options_.may_leave_idle) && use.free + use.served < machine_.stages) {
      return add("tree", fixed_stages(0));
    }
    require_enough_nodes(use);
    // The paper's, whose costs always weigh memory.
    const auto tree = used(tree_partition(costs_for(trace_, options_.memory_weight), machine_));
    if (machine_.stages == 1) return add("tree", tree);
    if (wanted("tree")) add("tree", tree);
    if (options_.strategy == "tree") return;
    const auto contiguous = used(contiguous_partition(costs_, machine_));
    if (wanted("contiguous")) add("contiguous", contiguous);
    // Where nothing was run, a simulation has nothing to say that would justify a scattered plan,
    // but memory has.
    const bool fits = std::any_of(found_.begin(), found_.end(),
                                  [](const Candidate& found) { return found.judgement.fits(); });
    if (options_.strategy == "search" ||
        (options_.strategy == "best" && (knows_times() || !fits))) {
      add("search", search(costs_, {tree, contiguous, used(tree_partition(costs_, machine_))}));
      search_by_memory(tree);
      try_other_costs();
      if (memory_decides(found_.back().judgement)) search_thoroughly(tree);
    }
  }

  /// If no placement found so far fits the memory, also judges those of add_by_other_costs(), which
  /// the search may have been too small to begin with.
  void try_other_costs() {
    const auto fits = [](const Candidate& found) { return found.judgement.fits(); };
    if (std::any_of(found_.begin(), found_.end(), fits)) return;
    std::vector<std::vector<int>> others;
    add_by_other_costs(others);
    for (auto& stages : others) add_if_better(std::move(stages));
  }

  /// True if less in flight or something computed again made room, or there is too little of it.
  bool memory_decides(const Judgement& judgement) const {
    return !earlier_.empty() || judgement.crowding > 0 ||
           judgement.recomputed.size() > trace_.recomputed.size();
  }

  /// Searches from the best placement on with all judgements that a small model allows: a few large
  /// modules fit only in few ways, between which no moves of one or two of them lead.
  void search_thoroughly(const std::vector<int>& tree) {
    const int budget = budget_.judgements_for_memory(costs_, machine_.stages);
    if (budget == 0) return;
    add_if_better(search(costs_, {tree, found_.back().stages}, budget));
  }

  /// Says of how many modules the model itself or the step's body reads weights, which keeps them
  /// on stage 0; empty: of none.
  std::string words_of_read_weights() const {
    int read = 0;
    for (std::size_t m = 1; m < tree_.nodes.size(); ++m) {
      const auto& node = tree_.nodes[m];
      const bool has_weights = node.movable() && !node.parameters.empty();
      if (has_weights && costs_.node_of_module[m] == 0) ++read;
    }
    if (read == 0) return {};
    return concat(
        "; of ", read,
        " the step's body or the model itself reads weights, so they stay on stage 0: let a "
        "method of the module compute that, named in SMP_MODULE");
  }

  void require_enough_nodes(const StageUse& use) const {
    if (machine_.stages == 1 || use.free + use.served >= machine_.stages) return;
    const auto movable = std::count_if(tree_.nodes.begin() + 1, tree_.nodes.end(),
                                       [](const ModuleNode& node) { return node.movable(); });
    throw ResourceError(concat(
        "there are ", machine_.stages, " stages but only ", use.free,
        use.free == 1 ? " piece" : " pieces", " of the model to place",
        use.served == 0   ? ""
        : use.served == 1 ? ", beside what is fixed to one of them"
                          : concat(", beside what is fixed to ", use.served, " of them"),
        " (", tree_.nodes.size(), " modules, ", movable,
        " of them can run on a rank of their own, tied weights count as one piece",
        words_of_read_weights(), "); use at most ", std::max(use.free + use.served, 1),
        " stages (ranks / tensor_parallel_degree / replicas), or declare more of its modules with "
        "SMP_MODULE"));
  }

  std::vector<int> used(std::vector<int> stages) const {
    return use_every_stage(costs_, machine_, std::move(stages));
  }

  /// Searches once more, half as long, and evens out memory as well on its way, if it has not done
  /// so: that leads elsewhere, where a stage is nearly full and where it is not.
  void search_by_memory(const std::vector<int>& tree) {
    if (balance_weight() > 0) return;
    const auto costs = costs_for(trace_, kEvenMemory);
    const auto& best = found_.back().stages;
    add_if_better(search(costs, {tree, best, used(contiguous_partition(costs, machine_))},
                         budget_.judgements() / 2));
  }

  /// Takes `stages` in the place of the last one found if they are better.
  void add_if_better(std::vector<int> stages) {
    auto judgement = judge_.judge_within(stages, kMostCallsOfOutcome);
    auto& best = found_.back();
    if (judgement.value() >= best.judgement.value()) return;
    best.stages = std::move(stages);
    best.judgement = std::move(judgement);
  }

  std::vector<int> search(const CostTree& costs, std::vector<std::vector<int>> starts) const {
    return search(costs, std::move(starts), budget_.judgements());
  }

  /// @param costs  by which loads are evened out; what comes of that is judged by the step
  std::vector<int> search(const CostTree& costs, std::vector<std::vector<int>> starts,
                          int budget) const {
    if (!earlier_.empty()) starts.insert(starts.begin() + 1, earlier_);
    for (const double slack : kSlacks) {
      starts.push_back(used(contiguous_partition(costs, machine_, slack)));
    }
    for (const int loops : kLoops) {
      const bool enough = static_cast<std::size_t>(loops) * machine_.stages <= costs_.nodes.size();
      if (enough) starts.push_back(used(looped_partition(costs, machine_, loops)));
    }
    if (budget >= kBudgetForOtherCosts) add_by_other_costs(starts);
    const Judgement tree = judged(starts.front(), budget_.sample());
    const double tree_seconds =
        tree.fits() ? tree.seconds() : std::numeric_limits<double>::infinity();
    const Judge judge = [&](const std::vector<int>& stages) {
      if (!every_stage_used(costs_, machine_, stages)) return kIdle;
      const Judgement judgement = judged(stages, budget_.sample());
      return value(judgement, tree_seconds);
    };
    return search_partition(costs, machine_, starts, judge, budget);
  }

  /// Appends the placements that the paper's algorithm and contiguous runs give for other weights
  /// of memory, or if modules are priced by their number: with a memory limit, one of these may be
  /// the only one that fits.
  void add_by_other_costs(std::vector<std::vector<int>>& starts) const {
    simulate::Trace counted = trace_;
    counted.source = simulate::CostSource::kCounts;
    for (const simulate::Trace* trace : {&trace_, &std::as_const(counted)}) {
      for (const double alpha : kOtherAlphas) {
        const auto costs = costs_for(*trace, alpha);
        for (const SeatTies ties : {SeatTies::kFewestSeats, SeatTies::kFirst}) {
          starts.push_back(used(tree_partition(costs, machine_, ties)));
        }
        starts.push_back(used(contiguous_partition(costs, machine_)));
      }
    }
  }

  CostTree costs_for(const simulate::Trace& trace, double memory_weight) const {
    return make_cost_tree(tree_, trace, hand_.stages, {.memory_weight = memory_weight});
  }

  Judgement judged(const std::vector<int>& stages, std::int64_t microbatches) const {
    return judge_.judge(stages, static_cast<int>(microbatches));
  }

  // Worse than all others if slower than the paper's algorithm.
  static double value(const Judgement& judgement, double tree_seconds) {
    return judgement.value() * (judgement.seconds() > tree_seconds ? kSlower : 1);
  }

  double value(const Candidate& candidate) const {
    const Candidate& first = found_.front();
    const bool comparable = first.strategy == "tree" && first.judgement.fits();
    const double limit = (comparable ? first : candidate).judgement.seconds();
    return value(candidate.judgement, limit);
  }

  void add(std::string strategy, std::vector<int> stages) {
    Judgement judgement = judge_.judge_within(stages, kMostCallsOfOutcome);
    found_.push_back({std::move(strategy), std::move(stages), std::move(judgement)});
  }

  // ---- the plan -------------------------------------------------------------------------------

  static PlanSummary::Outcome outcome(const Candidate& candidate) {
    const Judgement& judgement = candidate.judgement;
    return {candidate.strategy, judgement.step.seconds, judgement.step.bubble, judgement.to_bound,
            judgement.fits()};
  }

  PartitionPlan explain(const Candidate& best) const {
    const std::vector<int> stages = stages_of_modules(costs_, best.stages);
    auto trace = trace_;
    trace.recomputed = best.judgement.recomputed;
    PlanFacts facts{.tree = tree_,
                    .trace = trace,
                    .costs = costs_,
                    .machine = machine_,
                    .stages = stages,
                    .by_hand = hand_.reasons,
                    .memory = best.judgement.memory,
                    .chosen = outcome(best),
                    .others = {},
                    .pipeline = options_.pipeline,
                    .microbatches = options_.microbatches,
                    .active_microbatches = options_.recomputable.empty() || !is_interleaved()
                                               ? 0
                                               : options_.active_microbatches,
                    .step_bound = step_lower_bound(trace_, costs_, machine_, judge_.settings())};
    for (const Candidate& other : found_) {
      if (&other != &best) facts.others.push_back(outcome(other));
    }
    return explained_plan(facts);
  }

  bool is_interleaved() const { return options_.pipeline == kInterleaved; }

  static constexpr double kSlower = 1e3;
  static constexpr double kIdle = std::numeric_limits<double>::infinity();

  const ModuleTree& tree_;
  const PartitionOptions& options_;
  HandPlacement hand_;
  const simulate::Trace trace_;
  const simulate::Machine machine_;
  const CostTree costs_;
  const std::unique_ptr<schedule::Schedule> schedule_;
  const StepJudge judge_;
  const SearchBudget budget_;
  std::vector<Candidate> found_;
  std::vector<int> earlier_;  // placement that was best with more in flight; empty: none was tried
};

std::vector<int> numbers_to_try(const PartitionOptions& options) {
  if (options.pipeline != kInterleaved) return {options.active_microbatches};
  return numbers_in_flight(options.active_microbatches, options.microbatches);
}

/// Fewer microbatches in flight and more that is computed again both spare memory: the best of all
/// numbers, each with what it takes. A smaller number is of no use where nothing is lacking.
PartitionPlan plan_with_recomputation(const ModuleTree& tree, const PartitionOptions& options) {
  std::vector<std::unique_ptr<PartitionOptions>> tried;
  std::unique_ptr<Planner> best;
  double least = std::numeric_limits<double>::infinity();
  for (const int number : numbers_to_try(options)) {
    tried.push_back(std::make_unique<PartitionOptions>(options));
    tried.back()->active_microbatches = number;
    auto planner = std::make_unique<Planner>(tree, *tried.back());
    if (best != nullptr) planner->begin_with(best->placement());
    const auto& judgement = planner->place();
    const bool enough =
        judgement.fits() && judgement.recomputed.size() == options.trace.recomputed.size();
    if (best == nullptr || judgement.value() < least) {
      least = judgement.value();
      best = std::move(planner);
    }
    if (enough) break;
  }
  return best->conclude();
}

}  // namespace

PartitionPlan make_plan(const ModuleTree& tree, const PartitionOptions& options) {
  SMP_ASSERT(!tree.nodes.empty());
  if (!options.recomputable.empty()) return plan_with_recomputation(tree, options);
  Planner planner(tree, options);
  planner.place();
  return planner.conclude();
}

}  // namespace smp::partitioning
