// report/pictures/memory_use.h: what the ranks of a run took, as a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smp::report {

/// The most bytes of tensors that each stage held at once while it trained, beyond those that there
/// were before there was a model; 0: not known.
using MemoryUse = std::vector<std::int64_t>;

/// True if some stage was measured.
[[nodiscard]] bool any_measured(const MemoryUse& stages);

std::string memory_use_to_json(const MemoryUse& stages);
/// Reads what memory_use_to_json() wrote.
/// @throws UsageError  `text`, of the file `name`, is something else
MemoryUse memory_use_from_json(const std::string& text, const std::string& name);

}  // namespace smp::report
