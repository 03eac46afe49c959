// smp/plan.h: which stage runs which module (paper §4.5, App. C). Written to plan.json of a run,
// read back through the key plan_file, and compared with diff.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "smp/detail/export.h"

namespace smp {

/// The predicted content and work of one stage, as of when the plan was made.
struct SMP_API StageSummary {
  double cost = 0;  ///< its share of the model's cost; all stages together 1
  // Bytes.
  std::int64_t weights = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t buffers = 0;
  std::int64_t activations = 0;       ///< at the worst moment of the simulated step
  std::int64_t most_activations = 0;  ///< if all microbatches in flight are at their worst here
  std::int64_t memory_limit = 0;      ///< bytes it may hold; 0: no limit
  // Bytes of tensors that cross ranks in the forward pass of one microbatch.
  std::int64_t bytes_in = 0;
  std::int64_t bytes_out = 0;
  std::string why;  ///< why it begins where it does: "balance: encoder.block.4 would raise ..."
  /// The device that the stage was taken to compute on, as the key `devices` names it; empty: a
  /// core.
  std::string device = {};
  int node = 0;  ///< number of the machine that it was taken to be on

  std::int64_t memory() const { return weights + gradients + optimizer + buffers + activations; }
  std::int64_t most_memory() const { return memory() - activations + most_activations; }
};

/// The predictions for a plan, and for the other plans that were tried. None of them is measured.
struct SMP_API PlanSummary {
  /// One way to split the model, and its predicted outcome.
  struct Outcome {
    std::string strategy;            ///< "tree", "contiguous", "search"
    double step_seconds = 0;         ///< duration of one training step, simulated
    double bubble = 0;               ///< share of the stages' time in which no module runs
    double bottleneck_to_bound = 0;  ///< largest cost of a stage over its lower bound
    bool fits = true;                ///< within the stages' memory, if there is a limit
  };
  /// The cost of messages that the prediction assumes.
  struct Link {
    double seconds = 0;           ///< duration of a small message, work at both ends included
    double bytes_per_second = 0;  ///< bandwidth of larger ones; 0: not recorded
  };
  Outcome chosen;
  std::vector<Outcome> others;
  /// Lower bound of a step in seconds, which no placement and no schedule can go below where calls
  /// follow each other as they were traced (docs/partitioning.md); 0: not recorded.
  double step_bound = 0;
  Link within_node;
  Link across_nodes;     ///< where stages are on several nodes
  std::string costs;     ///< where costs and times come from: "operators", "clock", "counts"
  std::string pipeline;  ///< as the key `pipeline` names it
  int microbatches = 1;
  /// Microbatches in flight that the plan was made for, if the planner chose them; 0: it did not.
  int active_microbatches = 0;
  double cores = 0;  ///< number of cores that the stages share; 0: each has one
  std::vector<StageSummary> stages;
};

/// The stage of every module of one model. It is a value: copies are independent.
class SMP_API PartitionPlan {
 public:
  /// One module and what identifies it.
  struct Row {
    std::string path;  ///< dotted module path; empty for the model itself
    int pp_rank = 0;
    /// Parameters the module holds itself: "weight float32[4, 8], bias float32[8]"; a weight that
    /// is tied to one of an earlier row reads "weight = shared.weight".
    std::string parameters;
    std::int64_t elements = 0;  ///< of these, without tied ones
    std::int64_t bytes = 0;     ///< of these, without tied ones
    double cost = 0;            ///< its own share of the model's cost, without its submodules
    std::string why;            ///< what put it here, if that is not plain: "tied with shared"
    /// "shared" or "ordered" if forward writes members or buffers: with "shared" other code may
    /// read them, with "ordered" only its own calls do (smp/state.h). "cache": only its first call
    /// writes them, and only its own calls read them. "values": it read values of tensors that the
    /// trial run had to assume. Empty: none of these, as far as a trial run showed.
    std::string state;
    std::string state_what;  ///< "writes its members, from byte 24 of 40"
    /// True if activations of its calls are computed again instead of held (docs/memory.md).
    bool recomputed = false;
    /// With `recomputed`: results of products are held all the same (smp::kProducts).
    bool keeps_products = false;
  };

  PartitionPlan() = default;
  PartitionPlan(int pp_size, std::vector<Row> rows,
                std::optional<PlanSummary> summary = std::nullopt);

  int pp_size() const { return pp_size_; }
  /// Returns all modules, each after its parent, in the order they were registered.
  const std::vector<Row>& rows() const { return rows_; }
  /// Returns the predictions for this plan; nothing if it was written, or edited, by hand.
  const std::optional<PlanSummary>& summary() const { return summary_; }
  /// Returns a hash that identifies the model: module paths and the names, types and shapes of
  /// their parameters.
  std::uint64_t model_hash() const;

  /// Returns the stage of `path`. @throws UsageError  there is no such module; names the nearest.
  int stage_of(std::string_view path) const;

  /// Returns the plan as JSON: the summary, then one line per module, so that diff shows what
  /// moved.
  std::string to_json() const;
  /// Reads the plan that to_json() wrote.
  /// @param text  the JSON
  /// @param name  leads the messages: the path of the file.
  /// @throws UsageError  broken JSON, another format or version, a missing or wrong member.
  static PartitionPlan from_json(const std::string& text, const std::string& name);

  /// Reads a plan file. @throws UsageError  as from_json(), or the file cannot be read.
  static PartitionPlan read(const std::string& path);
  /// Writes a plan file. @throws ResourceError  the file cannot be written.
  void write(const std::string& path) const;

  /// Returns a table for people: the predictions, and for every stage its modules as ranges,
  /// parameters, memory, cost, what crosses its borders and why it begins there.
  /// @param width  columns of the terminal; below 80 the lines are longer than that
  std::string table(int width = 100) const;

 private:
  int pp_size_ = 1;
  std::vector<Row> rows_;
  std::optional<PlanSummary> summary_;
};

}  // namespace smp
