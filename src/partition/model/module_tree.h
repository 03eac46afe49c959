// partition/model/module_tree.h: a model as plain data, all the partitioner needs to know of it
// (paper App. C.2).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "smp/state.h"

namespace smp::partitioning {

/// One weight. Tied modules refer to the same one.
struct TreeParameter {
  std::string name;   ///< dotted name where it was registered first: "shared.weight"
  std::string shape;  ///< "float32[256, 128]"
  // Of its own: nothing if it is memory of an earlier one.
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
  std::int64_t gradient_bytes = 0;  ///< none if it is frozen; the optimizer keeps as little of it
  /// The number of ranks among which the optimizer state is dealt; one of them keeps this
  /// parameter's (`shard_optimizer_state`).
  int state_shares = 1;

  /// The bytes that a rank keeps optimizer state for, on average over these ranks.
  double stepped_bytes() const { return static_cast<double>(gradient_bytes) / state_shares; }
};

/// Buffers up to so many bytes are held by all ranks, since any code may read them: position ids,
/// masks, tables of some thousand numbers. Larger ones live with those who read them.
inline constexpr std::int64_t kSmallBuffer = 64 << 10;

/// A parameter under the name one module gives it.
struct OwnParameter {
  std::string name;   ///< "weight"
  int parameter = 0;  ///< index in ModuleTree::parameters
};

struct ModuleNode {
  std::string path;
  int parent = -1;
  std::vector<int> children;
  std::vector<OwnParameter> parameters;  ///< held by the module itself, not by its children
  /// Parameters of other modules (indices in ModuleTree::parameters) whose memory a parameter or
  /// buffer of the module itself is a view of.
  std::vector<int> viewed;
  /// Bytes of the module's own buffers, without those that every rank holds (kSmallBuffer).
  std::int64_t buffer_bytes = 0;
  /// The reason why the module always runs on the rank of its parent (its calls cannot cross ranks,
  /// or are not routed); empty if it may be placed on its own.
  std::string stays_because;
  /// True if the children run one after another, so that neighbours on one rank cost one request.
  bool sequential = false;
  /// The program's declaration about the members that the module's forward writes (smp/state.h).
  StateUse state_use = StateUse::kWatched;
  /// Further paths of the same module object, if it was registered more than once.
  std::vector<std::string> aliases;

  bool movable() const { return stays_because.empty(); }
};

/// The modules of a model: node 0 is the model; a parent comes before its children, siblings in the
/// order they were registered.
struct ModuleTree {
  std::vector<ModuleNode> nodes;
  std::vector<TreeParameter> parameters;
  std::int64_t common_bytes = 0;  ///< of buffers that every rank holds (kSmallBuffer)

  /// Appends a node below `parent` (-1: the model itself) and returns its index.
  int add(std::string path, int parent);
  /// Returns the index of the module with that path or alias; -1 if there is none.
  int find(const std::string& path) const;
  std::vector<std::string> all_paths() const;
  std::int64_t total_bytes() const;
  /// True if some module below the model may be placed on its own.
  bool can_be_cut() const;
};

/// Returns "the model" for the empty path, else the path in quotes; for messages.
std::string quoted_path(const std::string& path);

}  // namespace smp::partitioning
