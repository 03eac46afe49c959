// checkpoint/slice_notes.cpp: see the header.
#include "checkpoint/slice_notes.h"

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "config/json.h"
#include "smp/error.h"

namespace smp::checkpoints {
namespace {

constexpr const char* kNotes = "DCP_SHARDING_INFO";

/// Returns, of the tensors that the metadata of `file` tells of, those that begin at 0, or those
/// that do not.
std::set<std::string> noted(const SafetensorsReader& file, bool at_zero) {
  std::set<std::string> names;
  const auto found = file.metadata().find(kNotes);
  if (found == file.metadata().end()) return names;
  const auto json = base::find_json(found->second);
  if (!json || !json->is_object()) return names;  // somebody else's
  for (const auto& [name, note] : json->items()) {
    if (!note.is_object() || !note.contains("saved_offsets")) continue;
    const auto offsets = base::json_as<std::vector<std::int64_t>>(note["saved_offsets"]);
    if (!offsets) continue;
    const bool zero = std::all_of(offsets->begin(), offsets->end(),
                                  [](const std::int64_t offset) { return offset == 0; });
    if (zero == at_zero) names.insert(name);
  }
  return names;
}

}  // namespace

std::set<std::string> slices_in(const SafetensorsReader& file) {
  auto slices = noted(file, /*at_zero=*/false);
  const auto first_parts = noted(file, /*at_zero=*/true);
  if (first_parts.empty()) return slices;
  const auto folder = std::filesystem::absolute(file.path()).parent_path();
  std::error_code error;
  for (const auto& item : std::filesystem::directory_iterator(folder, error)) {
    if (item.path().extension() != ".safetensors") continue;
    try {
      const SafetensorsReader other(item.path().string());
      for (const auto& name : noted(other, /*at_zero=*/false)) {
        if (first_parts.count(name) != 0) slices.insert(name);
      }
    } catch (const Error&) {  // nobody asked for that file
    }
  }
  return slices;
}

std::string slice_text(const std::string& path) {
  return base::concat(
      "it is a part of the tensor of that name: ", path,
      " was written by torch's distributed "
      "checkpoint, whose metadata \"",
      kNotes,
      "\" says so. Save with "
      "HuggingFaceStorageWriter(..., enable_consolidation=True), and load what lies in the folder "
      "above");
}

}  // namespace smp::checkpoints
