// report/pictures/memory_use.h: what the ranks of a run took, as a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smp::report {

/// Most bytes of each stage while it trained, without what its process had before there was a
/// model; 0: not known.
using MemoryUse = std::vector<std::int64_t>;

/// Whether something is known of some stage.
[[nodiscard]] bool any_measured(const MemoryUse& stages);

std::string memory_use_to_json(const MemoryUse& stages);
/// @throws UsageError  `text`, of the file `name`, is something else.
MemoryUse memory_use_from_json(const std::string& text, const std::string& name);

}  // namespace smp::report
