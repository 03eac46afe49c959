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

/// What one stage will hold and do, as predicted when the plan was made.
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
  /// What it was taken to compute on, as the key `devices` names it; empty: a core.
  std::string device = {};
  int node = 0;  ///< machine that it was taken to be on

  std::int64_t memory() const { return weights + gradients + optimizer + buffers + activations; }
  std::int64_t most_memory() const { return memory() - activations + most_activations; }
};

/// What a plan promises, and what others would have: all of it predicted, none of it measured.
struct SMP_API PlanSummary {
  /// A way to split the model, and what comes of it.
  struct Outcome {
    std::string strategy;            ///< "tree", "contiguous", "search"
    double step_seconds = 0;         ///< of one training step, simulated
    double bubble = 0;               ///< share of the stages' time in which no module runs
    double bottleneck_to_bound = 0;  ///< largest cost of a stage over what none can go below
    bool fits = true;                ///< within the stages' memory, if there is a limit
  };
  /// What messages were taken to cost.
  struct Link {
    double seconds = 0;           ///< of a small one: on its way, and on the threads at its ends
    double bytes_per_second = 0;  ///< beyond that; 0: not told
  };
  Outcome chosen;
  std::vector<Outcome> others;
  /// Seconds that no placement and no schedule can go below where calls follow each other as they
  /// were traced (docs/partitioning.md); 0: not told.
  double step_bound = 0;
  Link within_node;
  Link across_nodes;     ///< where stages are on several nodes
  std::string costs;     ///< where costs and times come from: "operators", "clock", "counts"
  std::string pipeline;  ///< as the key `pipeline` names it
  int microbatches = 1;
  double cores = 0;  ///< that the stages share; 0: each has one of its own
  std::vector<StageSummary> stages;
};

/// The stage of every module of one model. A value.
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
    /// "shared" or "ordered" if its forward writes members or buffers, which others, or only its
    /// own calls, read (smp/state.h); empty: it does not, as far as a trial run showed.
    /// "cache": only its first call, and only its own calls read it. "values": it asked for some.
    std::string state;
    std::string state_what;  ///< "writes its members, from byte 24 of 40"
  };

  PartitionPlan() = default;
  PartitionPlan(int pp_size, std::vector<Row> rows,
                std::optional<PlanSummary> summary = std::nullopt);

  int pp_size() const { return pp_size_; }
  /// All modules, each after its parent, in the order they were registered.
  const std::vector<Row>& rows() const { return rows_; }
  /// What was predicted of this plan; nothing if it was written, or edited, by hand.
  const std::optional<PlanSummary>& summary() const { return summary_; }
  /// Identifies the model: module paths and the names, types and shapes of their parameters.
  std::uint64_t model_hash() const;

  /// The stage of `path`. @throws UsageError  there is no such module; names the nearest.
  int stage_of(std::string_view path) const;

  /// The summary, then one line per module, so that diff shows what moved.
  std::string to_json() const;
  /// @param name  leads the messages: the path of the file.
  /// @throws UsageError  broken JSON, another format or version, a missing or wrong member.
  static PartitionPlan from_json(const std::string& text, const std::string& name);

  /// @throws UsageError  as from_json(), or the file cannot be read.
  static PartitionPlan read(const std::string& path);
  /// @throws ResourceError  the file cannot be written.
  void write(const std::string& path) const;

  /// For people: what the plan promises, and for every stage its modules as ranges, parameters,
  /// memory, cost, what crosses its borders and why it begins there.
  /// @param width  of the terminal; below 80 columns its lines are longer
  std::string table(int width = 100) const;

 private:
  int pp_size_ = 1;
  std::vector<Row> rows_;
  std::optional<PlanSummary> summary_;
};

}  // namespace smp
