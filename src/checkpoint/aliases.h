// checkpoint/aliases.h: several names of one tensor in a file that holds it once.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/safetensors_header.h"
#include "smp/state_dict.h"

namespace smp::checkpoints {

/// The key of the __metadata__ entry that lists further names of a tensor, as in {"lm_head.weight":
/// "shared.weight"}.
inline constexpr const char* kAliasKey = "smp.aliases";

/// Pairs of a further name and of the name under which the same tensor is written.
using Aliases = std::vector<std::pair<std::string, std::string>>;

/// Returns the positions of the items of `dict` that are written, and the names of the others,
/// which are aliases of a written tensor (same elements of the same storage).
std::pair<std::vector<std::size_t>, Aliases> find_aliases(const StateDict& dict);

/// Adds the alias entry to `metadata` unless `aliases` is empty.
void put_aliases(const Aliases& aliases, Metadata& metadata);
/// Removes the alias entry from `metadata` and returns it; empty if there is none.
/// @param name  the file, for the message
/// @throws UsageError  the entry is no JSON object of texts.
Aliases take_aliases(Metadata& metadata, const std::string& name);

}  // namespace smp::checkpoints
