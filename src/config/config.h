// config/config.h: settings from all sources, merged and checked before anything is allocated
// (docs/configuration.md).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "smp/config.h"
#include "smp/topology.h"

namespace smp::base {

/// Everything that may set a key. A value: tests build it without a process around it.
struct ConfigInput {
  Config code;
  /// Keys and values of `--smp.KEY VALUE`, in order, as take_flags() returns them.
  std::vector<std::pair<std::string, std::string>> flags;
  /// The variables that matter: SMP_* and SM_HP_MP_PARAMETERS.
  std::map<std::string, std::string> environment;
  /// Ranks of the job; 0 if unknown: then degrees are not checked against it.
  int world_size = 0;
};

/// Takes `--smp.KEY VALUE` and `--smp.KEY=VALUE` out of `argv`, so that the program's own parser
/// never sees them; "--" ends the search. A flag without a value gets an empty one.
std::vector<std::pair<std::string, std::string>> take_flags(int& argc, char** argv);

/// The variables of this process that resolve_config() reads.
std::map<std::string, std::string> environment_settings();

/// One row of the resolved configuration.
struct ResolvedValue {
  std::string key;
  std::string value;   ///< as JSON; "null" if unset
  std::string origin;  ///< "flag --smp.microbatches", "smp.json:4:3", "Config in code", "default"
};

/// The settings in force, and where each comes from. Constant.
class ResolvedConfig {
 public:
  /// With a known world size, `pipeline_parallel_degree` and `active_microbatches` are set.
  const Config& values() const { return values_; }
  /// Ranks of the job; 0 if unknown.
  int world_size() const { return world_size_; }
  const std::vector<ResolvedValue>& rows() const { return rows_; }
  /// Those of settings that must be equal on all ranks.
  std::vector<ResolvedValue> shared_rows() const;
  /// Where the value of `key` comes from.
  const std::string& origin(const std::string& key) const;
  /// The text of the file that `plan_file` names, read once for all who need it and known to be
  /// JSON; empty without one.
  const std::string& plan_text() const { return plan_text_; }
  /// Settings that are allowed but cannot have been meant; one line each.
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// One JSON object: {"microbatches": {"value": 8, "origin": "default"}, ...}.
  std::string to_json() const;
  /// Rows under each other: key, value, origin.
  std::string table() const;
  /// The same, and below each row what the setting means and which values it takes.
  /// @param width  of the explanations
  std::string explained(int width) const;
  /// The axes, for Topology.
  Arrangement arrangement() const;

 private:
  friend class ConfigResolver;
  Config values_;
  int world_size_ = 0;
  std::vector<ResolvedValue> rows_;
  std::vector<std::string> warnings_;
  std::string plan_text_;
};

/// Merges by precedence flag > environment > SM_HP_MP_PARAMETERS > file > code > default.
/// @throws UsageError        listing every problem at once: unknown keys, wrong types and ranges,
///                           contradictions, impossible degrees, an unreadable file
///                           of settings or plan_file.
/// @throws UnsupportedError  the only problems are features that do not exist yet.
ResolvedConfig resolve_config(const ConfigInput& input);

}  // namespace smp::base
