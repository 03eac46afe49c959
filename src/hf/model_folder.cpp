// hf/model_folder.cpp: see the header.
#include "hf/model_folder.h"

#include <exception>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/names.h"
#include "config/json.h"
#include "hf/name_pattern.h"

namespace smp::hf {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kShard = "model-{}-of-{}.safetensors";

std::string five_digits(std::size_t number) {
  const auto digits = std::to_string(number);
  return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
}

/// A new config.json, in whose place the old one comes again unless keep() is called: tensors that
/// could not be published must not stand beside it.
class NewConfig {
 public:
  /// @param text  of the new one; empty: nothing is written
  NewConfig(std::string path, const std::string& text) : path_(std::move(path)) {
    if (text.empty()) return;
    if (base::file_exists(path_)) old_ = base::read_file(path_, base::kMostJsonBytes);
    base::write_file(path_, text, base::Durability::kSynced);
    kept_ = false;
  }
  ~NewConfig() {
    if (kept_) return;
    try {
      if (old_) base::write_file(path_, *old_, base::Durability::kSynced);
      if (!old_) base::remove_file(path_);
    } catch (const std::exception& error) {
      base::log(base::LogLevel::kWarning, path_,
                " is that of tensors that could not be written: ", error.what());
    }
  }
  NewConfig(const NewConfig&) = delete;
  NewConfig& operator=(const NewConfig&) = delete;

  void keep() { kept_ = true; }

 private:
  std::string path_;
  std::optional<std::string> old_;
  bool kept_ = true;
};

}  // namespace

ModelFolder::ModelFolder(std::string folder, const std::vector<checkpoints::TensorInfo>& tensors,
                         std::uint64_t shard_bytes, checkpoints::Metadata metadata)
    : folder_(std::move(folder)), metadata_(std::move(metadata)) {
  std::uint64_t in_shard = 0;
  for (const auto& info : tensors) {
    const auto bytes = info.bytes();
    if (shards_.empty() || (in_shard > 0 && in_shard + bytes > shard_bytes)) {
      shards_.emplace_back();
      in_shard = 0;
    }
    places_.push_back({shards_.size() - 1, shards_.back().tensors.size()});
    shards_.back().tensors.push_back(info);
    in_shard += bytes;
    bytes_ += bytes;
  }
  if (shards_.empty()) shards_.emplace_back();
  base::create_directories(folder_);
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    auto& shard = shards_[i];
    if (shards_.size() == 1) {
      shard.name = shard.written_as = kSingle;
      break;
    }
    shard.name = filled(kShard, {five_digits(i + 1), five_digits(shards_.size())});
    shard.written_as = shard.name;
    for (int k = 1; base::file_exists(path(shard.written_as)); ++k) {
      shard.written_as = base::concat("new-", k, "-", shard.name);
    }
  }
}

ModelFolder::~ModelFolder() {
  if (committed_ || shards_.size() == 1) return;  // a single one has its name at the end only
  for (const auto& shard : shards_) {
    const bool complete = shard.written == shard.tensors.size() && shard.writer == nullptr;
    if (complete) base::remove_file(path(shard.written_as));
  }
}

std::string ModelFolder::path(const std::string& name) const {
  return (fs::path(folder_) / name).string();
}

void ModelFolder::write(std::size_t index, const at::Tensor& values) {
  const auto [number, place] = places_.at(index);
  auto& shard = shards_[number];
  if (!shard.writer) {
    SMP_ASSERT(shard.written == 0, shard.name);
    shard.writer = std::make_unique<checkpoints::SafetensorsWriter>(path(shard.written_as),
                                                                    shard.tensors, metadata_);
  }
  shard.writer->write(place, values);
  if (++shard.written < shard.tensors.size() || shards_.size() == 1) return;
  shard.writer->commit();
  shard.writer.reset();
}

std::string ModelFolder::index_text(std::string Shard::*name) const {
  base::Json index;
  index["metadata"]["total_size"] = bytes_;
  auto& map = index["weight_map"];
  map = base::Json::object();
  for (const auto& shard : shards_) {
    for (const auto& info : shard.tensors) map[info.name] = shard.*name;
  }
  return index.dump(2) + "\n";
}

/// Names of the shards of the model that the folder holds.
std::set<std::string> ModelFolder::old_shards() const {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& item : fs::directory_iterator(folder_, error)) {
    const auto name = item.path().filename().string();
    const auto own = checkpoints::without_prefix(name, "link-");
    if (match(kShard, name) || match(base::concat("new-{}-", kShard), own)) names.insert(name);
  }
  if (!base::file_exists(path(kIndex))) return names;
  try {  // one of other names, too
    const auto index = base::read_json(path(kIndex));
    if (!index.contains("weight_map") || !index["weight_map"].is_object()) return names;
    for (const auto& [tensor, file] : index["weight_map"].items()) {
      const auto name = file.is_string() ? file.get<std::string>() : std::string();
      const bool here = !name.empty() && fs::path(name).filename() == name;
      if (here && name.ends_with(".safetensors") && name != kSingle) names.insert(name);
    }
  } catch (const Error&) {  // no index that anybody could read
  }
  return names;
}

/// The shards that were written take the names that shards have. The index names complete files
/// all the time.
void ModelFolder::take_final_names() {
  for (auto& shard : shards_) {
    if (shard.written_as == shard.name) continue;
    const auto link = path("link-" + shard.written_as);
    std::error_code error;
    fs::remove(link, error);
    fs::create_hard_link(path(shard.written_as), link, error);
    if (!error) fs::rename(link, path(shard.name), error);
    if (!error) continue;
    base::log(base::LogLevel::kWarning, folder_, ": this file system has no hard links (",
              error.message(), "): shards keep the names that the index has, ", shard.written_as);
    shard.name = shard.written_as;
  }
}

void ModelFolder::publish_shards(const std::set<std::string>& old, const std::string& text) {
  NewConfig config(path("config.json"), text);
  base::write_file(path(kIndex), index_text(&Shard::written_as), base::Durability::kSynced);
  config.keep();
  committed_ = true;
  base::remove_file(path(kSingle));
  take_final_names();
  base::write_file(path(kIndex), index_text(&Shard::name), base::Durability::kSynced);
  auto stale = old;
  for (const auto& shard : shards_) stale.insert(shard.written_as);
  for (const auto& shard : shards_) stale.erase(shard.name);
  for (const auto& name : stale) base::remove_file(path(name));
}

void ModelFolder::publish_single(const std::set<std::string>& old, const std::string& text) {
  NewConfig config(path("config.json"), text);
  shards_[0].writer->commit();
  config.keep();
  shards_[0].writer.reset();
  committed_ = true;
  base::remove_file(path(kIndex));
  for (const auto& name : old) base::remove_file(path(name));
}

void ModelFolder::commit(const std::string& config) {
  const auto old = old_shards();
  if (shards_.size() == 1 && shards_[0].tensors.empty()) {
    shards_[0].writer = std::make_unique<checkpoints::SafetensorsWriter>(
        path(kSingle), shards_[0].tensors, metadata_);
  }
  if (shards_.size() > 1) {
    auto others = old;
    for (const auto& shard : shards_) others.erase(shard.written_as);
    publish_shards(others, config);
  } else {
    publish_single(old, config);
  }
  warn_of_others();
}

/// Files that other programs would read instead.
void ModelFolder::warn_of_others() const {
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5",
                           "flax_model.msgpack", "adapter_config.json"}) {
    if (!base::file_exists(path(name))) continue;
    base::log(base::LogLevel::kWarning, folder_, ": ", name,
              " is of an earlier model, and some programs read it: remove it if it is stale");
  }
}

std::vector<std::string> ModelFolder::files() const {
  std::vector<std::string> names;
  for (const auto& shard : shards_) names.push_back(shard.name);
  if (shards_.size() > 1) names.emplace_back(kIndex);
  return names;
}

}  // namespace smp::hf
