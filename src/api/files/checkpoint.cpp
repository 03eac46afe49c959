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

#include "api/files/model_exchange.h"
#include "api/optimizer/whole_tensors.h"
#include "api/rank/public_call.h"
#include "api/rank/rank.h"
#include "api/state/session_state.h"
#include "base/check.h"
#include "base/log.h"
#include "base/text/excerpt.h"
#include "checkpoint/aliases.h"
#include "checkpoint/exchange.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/safetensors_file.h"
#include "checkpoint/safetensors_set.h"
#include "smp/error.h"

namespace smp {
namespace {

using checkpoint::Aliases;
using checkpoint::attempt;
using checkpoint::Metadata;
using checkpoint::SafetensorsSet;
using checkpoint::SafetensorsWriter;
using checkpoint::TensorInfo;

/// Adds the format that Python's tools ask for: "pt" means tensors of PyTorch.
Metadata with_format(Metadata metadata) {
  for (const char* own : {checkpoint::kAliasKey, checkpoint::kChecksumKey}) {
    SMP_REQUIRE(metadata.count(own) == 0, "save_safetensors: the metadata \"", own,
                "\" is written by this library, and means something when the file is loaded; give "
                "yours another name");
  }
  metadata.emplace("format", "pt");
  return metadata;
}

/// What the replicas learn of a file that the first one writes. That may save alone; another one
/// that saves waits for it.
class WordOfTheFile {
 public:
  /// @param sliced  the model has slices, of which the first replica has all
  WordOfTheFile(Rank& rank, const DistributedModelBase& model, bool sliced)
      : ranks_(rank.groups().training_ranks().lane(kFirstLane + number_of(model))),
        writer_(ranks_.members()[0]),
        number_(static_cast<std::uint64_t>(rank.server().steps()) << kBitsOfSaves) {
    if (rank.groups().num_replicas() == 1) return;
    for (const GlobalRank member : ranks_.members()) {
      const auto place = rank.topology().coordinates(member.value());
      const bool first = place.rdp == 0 && (sliced || place.tp == 0);
      if (first) continue;
      others_.push_back(member);
      is_other_ = is_other_ || member == GlobalRank(rank.topology().rank());
    }
    is_writer_ = writer_ == GlobalRank(rank.topology().rank());
  }

  bool is_of_first_replica() const { return !is_other_; }
  /// The writer tells how it ended.
  void tell(const std::exception_ptr& problem) const {
    if (is_writer_) ranks_.tell(number_, {checkpoint::described(problem), {}}, others_, kWhat);
  }
  /// Waits for that. @throws what went wrong there
  void hear() const {
    checkpoint::throw_described(ranks_.hear(number_, writer_, kWhat).bytes,
                                base::concat("rank ", writer_));
  }

 private:
  static constexpr std::uint64_t kFirstLane = 0x73617665;  // one for each model
  static constexpr int kBitsOfSaves = 20;                  // files between two steps
  static constexpr const char* kWhat = "the file of the first replica";

  static std::uint64_t number_of(const DistributedModelBase& model) {
    const auto& models = SessionState::current().models();
    const auto place = std::find(models.begin(), models.end(), &model);
    return static_cast<std::uint64_t>(place - models.begin());
  }

  const d2d::Communicator ranks_;
  const GlobalRank writer_;
  const std::uint64_t number_;
  std::vector<GlobalRank> others_;
  bool is_other_ = false, is_writer_ = false;
};

}  // namespace

void save_safetensors(const StateDict& dict, const std::string& path) {
  const auto* const rank = Rank::find_current();
  if (dict.empty() && rank != nullptr && rank->topology().pp_size() > 1) return;
  const auto [written, aliases] = checkpoint::find_aliases(dict);
  std::vector<TensorInfo> infos;
  for (const std::size_t i : written) {
    const auto& [name, tensor] = *(dict.begin() + static_cast<std::ptrdiff_t>(i));
    const auto problem = problem_with_values(name, tensor);
    SMP_REQUIRE_AS(UnsupportedError, problem.empty(), "save_safetensors: ", problem);
    infos.push_back(TensorInfo::of(name, tensor));
  }
  auto metadata = with_format(dict.metadata);
  checkpoint::put_aliases(aliases, metadata);
  SafetensorsWriter writer(path, std::move(infos), std::move(metadata));
  for (std::size_t k = 0; k < written.size(); ++k) {
    writer.write(k, (dict.begin() + static_cast<std::ptrdiff_t>(written[k]))->second);
  }
  writer.commit();
}

void save_safetensors(const DistributedModelBase& model, const std::string& path,
                      const std::map<std::string, std::string>& metadata) {
  constexpr const char* kWhat = "save_safetensors";
  const PublicCall call("smp::save_safetensors");
  auto& rank = between_steps(kWhat);
  const WholeTensors whole(rank, model);
  const auto& place = rank.topology();
  const WordOfTheFile word(rank, model, whole.any());
  if (!word.is_of_first_replica()) return word.hear();
  const auto tensors = checkpoint::tensors_of(model.base_module());
  std::vector<TensorInfo> infos;
  Aliases aliases;
  for (const auto& [tensor, names] : tensors) {
    infos.push_back({names[0], tensor.scalar_type(), whole.sizes(tensor)});
    for (std::size_t k = 1; k < names.size(); ++k) aliases.emplace_back(names[k], names[0]);
  }
  std::optional<SafetensorsWriter> writer;
  auto problem = attempt([&] {
    auto all_metadata = with_format(metadata);
    checkpoint::put_aliases(aliases, all_metadata);
    const bool writes = rank.is_first_stage() && (!whole.any() || place.tp_rank() == 0);
    if (writes) writer.emplace(path, infos, std::move(all_metadata));
  });
  // A write that fails ends the gathering of this pipeline only: those that hold the other slices
  // hear of it at last.
  problem = attempt([&] {
    gather_model(model, tensors, 0, problem, kWhat, [&](std::size_t i, const at::Tensor& values) {
      if (writer) writer->write(i, values);
    });
    if (writer) writer->commit();
  });
  const auto writers = whole.any() ? model_holders(rank) : rank.groups().of(Group::kPp);
  const auto common = attempt([&] { checkpoint::agree(writers, problem, kWhat); });
  word.tell(common);
  if (common) std::rethrow_exception(common);
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

/// Returns an offer of the tensors of files, under those of their names that `model` knows.
checkpoint::Offer offer_of_files(const std::string& path, const torch::nn::Module& model) {
  const auto files = std::make_shared<const SafetensorsSet>(path);
  const auto tensors = checkpoint::tensors_of(model);
  std::set<std::string> known, stored;
  for (const auto& [tensor, names] : tensors) known.insert(names.begin(), names.end());
  for (const auto& entry : files->tensors()) stored.insert(entry.info.name);
  std::map<std::string, std::vector<std::string>> aliases;
  for (const auto& [alias, name] : files->aliases()) {
    if (known.count(alias) > 0 && stored.count(alias) == 0) aliases[name].push_back(alias);
  }
  checkpoint::Offer offer;
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < files->tensors().size(); ++i) {
    const auto& entry = files->tensors()[i];
    auto names = aliases[entry.info.name];
    if (names.empty() || known.count(entry.info.name) > 0) names.push_back(entry.info.name);
    for (const auto& name : names) {
      SMP_REQUIRE_AS(UnsupportedError, entry.unreadable.empty() || known.count(name) == 0,
                     entry.file->path(), ": \"", name, "\": ", entry.unreadable);
      // What cannot be read is offered as bytes, which no tensor of the model takes.
      offer.tensors.push_back(
          {name, entry.unreadable.empty() ? entry.info.dtype : at::kByte, entry.info.sizes});
      numbers.push_back(i);
    }
  }
  offer.read_first = true;
  offer.read = [files, numbers = std::move(numbers)](std::size_t i) {
    return files->read(numbers[i]);
  };
  offer.problem = checkpoint::problem_with_repeats(tensors, offer);
  return offer;
}

}  // namespace

LoadResult load_safetensors(DistributedModelBase& model, const std::string& path, bool strict) {
  const PublicCall call("smp::load_safetensors");
  checkpoint::Offer offer;
  if (between_steps("load_safetensors").is_first_stage()) {
    try {
      offer = offer_of_files(path, model.base_module());
    } catch (const std::exception& error) {
      offer.problem = error.what();
    }
  }
  offer.source = "the file " + path;
  return load_model(model, std::move(offer), strict, "load_safetensors");
}

}  // namespace smp
