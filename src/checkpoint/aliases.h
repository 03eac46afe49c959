// checkpoint/aliases.h: several names of one tensor in a file that holds it once.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/safetensors_header.h"
#include "smp/state_dict.h"

namespace smp::checkpoint {

/// The entry of __metadata__ that tells further names: {"lm_head.weight": "shared.weight"}.
inline constexpr const char* kAliasKey = "smp.aliases";

/// Further names and the name that each stands for.
using Aliases = std::vector<std::pair<std::string, std::string>>;

/// Numbers of the items of `dict` that are written, and the others, which are the same tensors.
std::pair<std::vector<std::size_t>, Aliases> find_aliases(const StateDict& dict);

/// Adds an entry for `aliases`, if there are any.
void put_aliases(const Aliases& aliases, Metadata& metadata);
/// Takes the entry out. @throws UsageError  it is no such list; `name` of the file
Aliases take_aliases(Metadata& metadata, const std::string& name);

}  // namespace smp::checkpoint
