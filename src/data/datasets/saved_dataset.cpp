// data/datasets/saved_dataset.cpp: see the header.
#include "data/datasets/saved_dataset.h"

#include <filesystem>

#include "base/check.h"
#include "base/files.h"
#include "config/json.h"

namespace smp::data {
namespace {

constexpr const char* kState = "state.json";
constexpr const char* kInfo = "dataset_info.json";
constexpr const char* kSplits = "dataset_dict.json";

std::string inside(const std::string& folder, const std::string& name) {
  return (std::filesystem::path(folder) / name).string();
}

void refuse_splits(const std::string& folder) {
  const auto path = inside(folder, kSplits);
  if (!base::file_exists(path)) return;
  std::string names;
  for (const auto& split :
       base::json_member<std::vector<std::string>>(base::read_json(path), "splits", path)) {
    names += (names.empty() ? "" : ", ") + inside(folder, split);
  }
  throw UsageError(base::concat(folder, ": holds several splits; name one of ", names));
}

std::vector<std::string> data_files(const base::Json& state, const std::string& folder) {
  const auto path = inside(folder, kState);
  std::vector<std::string> files;
  for (const auto& entry : base::json_member<std::vector<base::Json>>(state, "_data_files", path)) {
    files.push_back(inside(folder, base::json_member<std::string>(entry, "filename", path)));
  }
  for (const auto& file : files) {
    SMP_REQUIRE(base::file_exists(file), file, ": is missing; ", path, " names ", files.size(),
                " files of data, and this is one of them: copy the folder again");
  }
  return files;
}

std::optional<std::int64_t> rows_of_split(const std::string& folder, const std::string& split) {
  const auto path = inside(folder, kInfo);
  if (split.empty() || !base::file_exists(path)) return std::nullopt;
  const auto info = base::read_json(path);
  const auto splits = info.find("splits");
  if (splits == info.end() || !splits->is_object() || !splits->contains(split)) return std::nullopt;
  return base::json_member<std::int64_t>(splits->at(split), "num_examples", path);
}

}  // namespace

bool is_saved_dataset(const std::string& folder) {
  return base::file_exists(inside(folder, kState)) || base::file_exists(inside(folder, kSplits));
}

SavedDataset read_saved_dataset(const std::string& folder) {
  refuse_splits(folder);
  const auto path = inside(folder, kState);
  SMP_REQUIRE(base::file_exists(path), folder, ": has no ", kState,
              ", so it is nothing that save_to_disk() of `datasets` wrote: name the folder, not a "
              "file in it, as only that one says which files are data");
  const auto state = base::read_json(path);
  SavedDataset dataset;
  dataset.files = data_files(state, folder);
  const auto split = state.find("_split");
  if (split != state.end() && split->is_string()) dataset.split = split->get<std::string>();
  dataset.rows_of_split = rows_of_split(folder, dataset.split);
  return dataset;
}

}  // namespace smp::data
