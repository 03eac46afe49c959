// smp/plan.h: which stage runs which module (paper §4.5, App. C). Written to plan.json of a run,
// read back through the key plan_file, and compared with diff.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "smp/export.h"

namespace smp {

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
  };

  PartitionPlan() = default;
  PartitionPlan(int pp_size, std::vector<Row> rows);

  int pp_size() const { return pp_size_; }
  /// All modules, each after its parent, in the order they were registered.
  const std::vector<Row>& rows() const { return rows_; }
  /// Identifies the model: module paths and the names, types and shapes of their parameters.
  std::uint64_t model_hash() const;

  /// The stage of `path`. @throws UsageError  there is no such module; names the nearest.
  int stage_of(std::string_view path) const;

  /// One line per module, so that diff shows what moved.
  std::string to_json() const;
  /// @param name  leads the messages: the path of the file.
  /// @throws UsageError  broken JSON, another format or version, a missing or wrong member.
  static PartitionPlan from_json(const std::string& text, const std::string& name);

  /// @throws UsageError  as from_json(), or the file cannot be read.
  static PartitionPlan read(const std::string& path);
  /// @throws ResourceError  the file cannot be written.
  void write(const std::string& path) const;

  /// One line per stage: parameters, memory, a bar, and its modules as ranges.
  std::string table() const;

 private:
  int pp_size_ = 1;
  std::vector<Row> rows_;
};

}  // namespace smp
