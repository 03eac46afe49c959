// checkpoint/safetensors_set.cpp: which files, and whether they agree with what lists them.
#include "checkpoint/safetensors_set.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/input_file.h"
#include "base/text/excerpt.h"
#include "checkpoint/first_difference.h"
#include "checkpoint/slice_notes.h"
#include "config/json.h"

namespace smp::checkpoints {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// True if the file begins as JSON does, and not with the length of a header.
bool is_index(const std::string& path) {
  const base::InputFile file(path);  // which refuses what is no file
  if (path.ends_with(".json")) return true;
  if (file.size() == 0) return false;
  std::uint64_t begin = 0;
  file.read_at(0, &begin, std::min<std::uint64_t>(file.size(), kLengthBytes));
  return (begin & 0xff) == '{' && (file.size() < kLengthBytes || begin > kLongestHeader);
}

/// The file of each tensor, as an index has it.
std::map<std::string, std::string> files_by_name(const std::string& path) {
  const auto json = base::read_json(path);
  SMP_REQUIRE(json.is_object() && json.contains("weight_map") && json["weight_map"].is_object(),
              path, ": no index of safetensors files: it has no \"weight_map\"");
  std::map<std::string, std::string> files;
  for (const auto& [name, value] : json["weight_map"].items()) {
    const auto file = value.is_string() ? value.get<std::string>() : std::string();
    const fs::path place(file);
    const bool beside = !file.empty() && !place.is_absolute() &&
                        std::find(place.begin(), place.end(), "..") == place.end();
    SMP_REQUIRE(beside, path, ": \"weight_map\" has no file of this folder for \"",
                base::excerpt(name), "\"");
    files.emplace(name, file);
  }
  return files;
}

/// Returns the names of the safetensors files of a folder, for a message.
std::string listed(const std::vector<fs::path>& files) {
  std::string text;
  for (std::size_t i = 0; i < files.size() && i < 4; ++i) {
    text += (i > 0 ? ", " : "") + files[i].filename().string();
  }
  return files.size() > 4 ? base::concat(text, " and ", files.size() - 4, " more") : text;
}

std::vector<fs::path> safetensors_files(const std::string& folder) {
  std::vector<fs::path> files;
  std::error_code error;  // a folder that cannot be read has none
  for (const auto& item : fs::directory_iterator(folder, error)) {
    if (item.path().extension() == ".safetensors") files.push_back(item.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Returns what a tensor is in one of two sets of files and not in the other, or an empty text.
std::string difference_between(const SafetensorsSet& first, const SafetensorsSet& second) {
  std::map<std::string, std::size_t> others;
  for (std::size_t i = 0; i < second.tensors().size(); ++i) {
    others.emplace(second.tensors()[i].info.name, i);
  }
  for (std::size_t i = 0; i < first.tensors().size(); ++i) {
    const auto& entry = first.tensors()[i];
    const auto& name = entry.info.name;
    const auto found = others.find(name);
    if (found == others.end())
      return base::concat("\"", base::excerpt(name), "\" is in the first only");
    const auto& other = second.tensors()[found->second];
    if (entry.info != other.info) {
      return base::concat("\"", base::excerpt(name), "\" is ", entry.info.dtype, ' ',
                          c10::IntArrayRef(entry.info.sizes), " in the first and ",
                          other.info.dtype, ' ', c10::IntArrayRef(other.info.sizes),
                          " in the second");
    }
    if (entry.unreadable.empty() && other.unreadable.empty()) {
      const auto differs =
          first_difference(first.read(i), second.read(found->second), entry.info.dtype);
      if (differs) {
        return base::concat("element ", c10::IntArrayRef(differs->place), " of \"",
                            base::excerpt(name), "\" is ", differs->first, " in the first and ",
                            differs->second, " in the second");
      }
    }
    others.erase(found);
  }
  if (others.empty()) return {};
  return base::concat("\"", base::excerpt(others.begin()->first), "\" is in the second only");
}

}  // namespace

SafetensorsSet::SafetensorsSet(const std::string& path) {
  std::error_code error;  // which opening the file tells
  if (fs::is_directory(path, error)) {
    open_folder(path);
  } else if (is_index(path)) {
    open_index(path);
  } else {
    add_tensors_of(open(path));
  }
}

void SafetensorsSet::open_folder(const std::string& folder) {
  const auto single = (fs::path(folder) / kSingle).string();
  const auto index = (fs::path(folder) / kIndex).string();
  const bool has_single = base::file_exists(single);
  const bool has_index = base::file_exists(index);
  if (has_single && has_index) {
    const auto difference = difference_between(SafetensorsSet(single), SafetensorsSet(index));
    SMP_REQUIRE(difference.empty(), folder, " holds two models, ", kSingle,
                " and, in several files, ", kIndex, ", and they disagree: ", difference,
                ". One of them is what an earlier save left: name the other one");
  }
  if (has_single || has_index) {
    *this = SafetensorsSet(has_single ? single : index);
    return;
  }
  const auto files = safetensors_files(folder);
  SMP_REQUIRE(!files.empty(), folder, ": a folder with neither ", kSingle, " nor ", kIndex);
  const SafetensorsReader first(files[0].string());
  const auto slices = slices_in(first);
  SMP_REQUIRE_AS(UnsupportedError, slices.empty(), first.path(), ": \"",
                 base::excerpt(*slices.begin()), "\": ", slice_text(first.path()));
  throw UsageError(base::concat(folder, ": a folder with neither ", kSingle, " nor ", kIndex,
                                "; it has ", listed(files), ": name one of them"));
}

void SafetensorsSet::open_index(const std::string& path) {
  const auto files = files_by_name(path);
  std::map<std::string, std::set<std::string>> names;  // by file
  for (const auto& [name, file] : files) names[file].insert(name);
  for (auto& [name, expected] : names) {
    const auto place = (fs::absolute(path).parent_path() / name).string();
    SMP_REQUIRE(base::file_exists(place), path, ": lists ", names.size(), " files, and ", place,
                " is not there");
    const auto& file = open(place);
    for (const auto& placed : file.tensors()) {
      const auto& tensor = placed.info.name;
      SMP_REQUIRE(
          expected.erase(tensor) == 1, place, " has \"", base::excerpt(tensor), "\", but ", path,
          files.count(tensor) != 0 ? base::concat(" says that ", files.at(tensor), " has it")
                                   : std::string(" does not list it"),
          ": one of the two is what an earlier save left");
    }
    SMP_REQUIRE(expected.empty(), path, " says that ", place, " has \"",
                base::excerpt(*expected.begin()), "\", but it does not");
    add_tensors_of(file);
  }
}

const SafetensorsReader& SafetensorsSet::open(const std::string& path) {
  const auto& file = *files_.emplace_back(std::make_unique<SafetensorsReader>(path));
  auto metadata = file.metadata();
  const auto aliases = take_aliases(metadata, path);
  aliases_.insert(aliases_.end(), aliases.begin(), aliases.end());
  metadata_.merge(metadata);
  return file;
}

void SafetensorsSet::add_tensors_of(const SafetensorsReader& file) {
  const auto slices = slices_in(file);
  for (std::size_t i = 0; i < file.tensors().size(); ++i) {
    const auto& tensor = file.tensors()[i];
    const bool slice = slices.count(tensor.info.name) != 0;
    tensors_.push_back(
        {tensor.info, slice ? slice_text(file.path()) : tensor.unreadable, &file, i});
  }
}

const SafetensorsSet::Entry& SafetensorsSet::readable(std::size_t number) const {
  const auto& entry = tensors_.at(number);
  SMP_REQUIRE_AS(UnsupportedError, entry.unreadable.empty(), entry.file->path(), ": \"",
                 base::excerpt(entry.info.name), "\": ", entry.unreadable);
  return entry;
}

at::Tensor SafetensorsSet::read(std::size_t number) const {
  const auto& entry = readable(number);
  return entry.file->read(entry.index);
}

void SafetensorsSet::read_into(std::size_t number, const at::Tensor& target) const {
  const auto& entry = readable(number);
  entry.file->read_into(entry.index, target);
}

void SafetensorsSet::check(std::size_t number) const {
  const auto& entry = readable(number);
  entry.file->check(entry.index);
}

std::vector<base::InputFile::Identity> SafetensorsSet::identities() const {
  std::vector<base::InputFile::Identity> all;
  for (const auto& file : files_) all.push_back(file->identity());
  return all;
}

}  // namespace smp::checkpoints
