// data/datasets/saved_dataset.h: what is in a folder of Hugging Face's `datasets`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace smp::data {

/// A folder that save_to_disk() wrote.
struct SavedDataset {
  std::vector<std::string> files;  ///< paths of those that are data, in their order
  std::string split;               ///< empty: of no split
  /// Rows of that split as it was published, by dataset_info.json. What was selected or filtered
  /// from it has others.
  std::optional<std::int64_t> rows_of_split;
};

/// True if `folder` holds what save_to_disk() of a data set or of several splits leaves.
bool is_saved_dataset(const std::string& folder);

/// Reads state.json and dataset_info.json of `folder`.
/// @throws UsageError  it is no such folder, is one of several splits, or lacks a file of its own:
///                     names folder or file
SavedDataset read_saved_dataset(const std::string& folder);

}  // namespace smp::data
