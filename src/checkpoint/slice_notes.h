// checkpoint/slice_notes.h: files of torch's distributed checkpoint that hold parts of tensors
// under the names of the whole, and say so in their metadata alone.
#pragma once

#include <set>
#include <string>

#include "checkpoint/safetensors_file.h"

namespace smp::checkpoints {

/// Returns the names of the tensors of `file` that are parts of others: their metadata says that
/// they do not begin at 0, or that of a file beside it says so of the same name.
std::set<std::string> slices_in(const SafetensorsReader& file);

/// Returns what such a tensor is and what to do, for a message. @param path  the file that holds it
std::string slice_text(const std::string& path);

}  // namespace smp::checkpoints
