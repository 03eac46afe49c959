// api/files/checkpoint.cpp: safetensors files of dicts and of placed models.
#include "smp/checkpoint.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "api/files/file_share.h"
#include "api/files/model_exchange.h"
#include "api/files/model_save.h"
#include "api/rank/public_call.h"
#include "api/rank/rank.h"
#include "base/check.h"
#include "base/log.h"
#include "base/text/excerpt.h"
#include "checkpoint/aliases.h"
#include "checkpoint/exchange.h"
#include "checkpoint/file_metadata.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/safetensors_file.h"
#include "checkpoint/safetensors_set.h"
#include "smp/error.h"

namespace smp {
namespace {

using checkpoints::Aliases;
using checkpoints::Metadata;
using checkpoints::SafetensorsSet;
using checkpoints::SafetensorsWriter;
using checkpoints::TensorInfo;

}  // namespace

void save_safetensors(const StateDict& dict, const std::string& path) {
  const auto* const rank = Rank::find_current();
  if (dict.empty() && rank != nullptr && rank->topology().pp_size() > 1) return;
  const auto [written, aliases] = checkpoints::find_aliases(dict);
  std::vector<TensorInfo> infos;
  for (const std::size_t i : written) {
    const auto& [name, tensor] = *(dict.begin() + static_cast<std::ptrdiff_t>(i));
    const auto problem = problem_with_values(name, tensor);
    SMP_REQUIRE_AS(UnsupportedError, problem.empty(), "save_safetensors: ", problem);
    infos.push_back(TensorInfo::of(name, tensor));
  }
  auto metadata = checkpoints::with_format(dict.metadata, "save_safetensors");
  checkpoints::put_aliases(aliases, metadata);
  SafetensorsWriter writer(path, std::move(infos), std::move(metadata));
  for (std::size_t k = 0; k < written.size(); ++k) {
    writer.write(k, (dict.begin() + static_cast<std::ptrdiff_t>(written[k]))->second);
  }
  writer.commit();
}

namespace {

/// A file of the format, with all names of shared tensors.
class FileSink : public ModelSink {
 public:
  FileSink(const SavedTensors& saved, const std::string& path, const Metadata& metadata) {
    Aliases aliases;
    for (const auto& [tensor, names] : saved.tensors) {
      for (std::size_t k = 1; k < names.size(); ++k) aliases.emplace_back(names[k], names[0]);
    }
    auto all_metadata = checkpoints::with_format(metadata, "save_safetensors");
    checkpoints::put_aliases(aliases, all_metadata);
    writer_.emplace(path, saved.infos, std::move(all_metadata));
  }
  void write(std::size_t index, const at::Tensor& values) override {
    writer_->write(index, values);
  }
  void commit() override { writer_->commit(); }

 private:
  std::optional<SafetensorsWriter> writer_;
};

}  // namespace

void save_safetensors(const DistributedModelBase& model, const std::string& path,
                      const std::map<std::string, std::string>& metadata) {
  const PublicCall call("smp::save_safetensors");
  save_model(model, "save_safetensors", [&](const SavedTensors& saved) {
    return std::make_unique<FileSink>(saved, path, metadata);
  });
}

namespace {

/// Returns the tensors of `files` that cannot be read, for a message; empty if all can.
std::string unreadable_tensors(const SafetensorsSet& files) {
  std::string text;
  for (const auto& entry : files.tensors()) {
    if (entry.unreadable.empty()) continue;
    text += base::concat("\n  ", base::excerpt(entry.info.name), ": ", entry.unreadable);
  }
  return text;
}

}  // namespace

StateDict load_safetensors(const std::string& path, bool strict) {
  const SafetensorsSet files(path);
  const auto unreadable = unreadable_tensors(files);
  SMP_REQUIRE_AS(UnsupportedError, !strict || unreadable.empty(), path,
                 ": tensors that cannot be read:", unreadable,
                 "\nload_safetensors(path, /*strict=*/false) reads all others");
  if (!unreadable.empty()) {
    base::log(base::LogLevel::kWarning, path, ": left out:", unreadable);
  }
  StateDict dict;
  dict.metadata = files.metadata();
  for (std::size_t i = 0; i < files.tensors().size(); ++i) {
    const auto& entry = files.tensors()[i];
    if (entry.unreadable.empty()) dict.insert(entry.info.name, files.read(i));
  }
  for (const auto& [alias, name] : files.aliases()) {
    if (dict.contains(name) && !dict.contains(alias)) dict.insert(alias, dict.at(name));
  }
  return dict;
}

namespace {

/// Returns the numbers of a model's tensors by each of their names.
std::unordered_map<std::string, std::size_t> numbers_by_name(
    const std::vector<checkpoints::NamedTensor>& tensors) {
  std::unordered_map<std::string, std::size_t> numbers;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (const auto& name : tensors[i].names) numbers.emplace(name, i);
  }
  return numbers;
}

/// Returns an offer of the tensors of `files` that this rank reads, under those of their names that
/// the model knows.
checkpoints::Offer offer_of_files(const std::shared_ptr<const SafetensorsSet>& files,
                                  const std::vector<checkpoints::NamedTensor>& tensors,
                                  const FileShare& share) {
  const auto known = numbers_by_name(tensors);
  std::set<std::string> stored;
  for (const auto& entry : files->tensors()) stored.insert(entry.info.name);
  std::map<std::string, std::vector<std::string>> aliases;
  for (const auto& [alias, name] : files->aliases()) {
    if (known.contains(alias) && !stored.contains(alias)) aliases[name].push_back(alias);
  }
  checkpoints::Offer offer;
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < files->tensors().size(); ++i) {
    const auto& entry = files->tensors()[i];
    auto names = aliases[entry.info.name];
    if (names.empty() || known.contains(entry.info.name)) names.push_back(entry.info.name);
    for (const auto& name : names) {
      const auto number = known.find(name);
      const bool reads = number == known.end() ? share.speaks : share.reads[number->second];
      if (!reads) continue;
      SMP_REQUIRE_AS(UnsupportedError, entry.unreadable.empty() || number == known.end(),
                     entry.file->path(), ": \"", name, "\": ", entry.unreadable);
      // What cannot be read is offered as bytes, which no tensor of the model takes.
      offer.tensors.push_back(
          {name, entry.unreadable.empty() ? entry.info.dtype : at::kByte, entry.info.sizes});
      numbers.push_back(i);
    }
  }
  offer.read_first = true;
  offer.read = [files, numbers](std::size_t i) { return files->read(numbers[i]); };
  offer.check = [files, numbers](std::size_t i) { files->check(numbers[i]); };
  offer.read_into = [files, numbers](std::size_t i, const at::Tensor& target) {
    files->read_into(numbers[i], target);
  };
  offer.problem = checkpoints::problem_with_repeats(tensors, offer);
  return offer;
}

}  // namespace

LoadResult load_safetensors(DistributedModelBase& model, const std::string& path, bool strict) {
  const PublicCall call("smp::load_safetensors");
  const auto& rank = between_steps("load_safetensors");
  const auto tensors = checkpoints::tensors_of(model.base_module());
  std::shared_ptr<const SafetensorsSet> files;
  const auto problem = checkpoints::attempt([&] {
    if (rank.is_first_stage() || model.partitioned()) {
      files = std::make_shared<const SafetensorsSet>(path);
    }
  });
  const auto seen = files ? files->identities() : std::vector<base::InputFile::Identity>();
  const auto share = share_files(model, rank, tensors, seen, "load_safetensors");
  checkpoints::Offer offer;
  try {
    if (problem && share.speaks) std::rethrow_exception(problem);
    if (files) offer = offer_of_files(files, tensors, share);
  } catch (const std::exception& error) {
    offer.problem = error.what();
  }
  offer.source = "the file " + path;
  return load_model(model, std::move(offer), strict, "load_safetensors");
}

}  // namespace smp
