// api/files/checkpoint.cpp: safetensors files of dicts and of placed models.
#include "smp/checkpoint.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <functional>
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
#include "checkpoint/aliases.h"
#include "checkpoint/exchange.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/safetensors_file.h"
#include "smp/error.h"

namespace smp {
namespace {

using checkpoint::Aliases;
using checkpoint::Metadata;
using checkpoint::SafetensorsReader;
using checkpoint::SafetensorsWriter;
using checkpoint::TensorInfo;

/// Adds the format that Python's tools ask for: "pt" means tensors of PyTorch.
Metadata with_format(Metadata metadata) {
  metadata.emplace("format", "pt");
  return metadata;
}

/// Runs `action` and returns its exception, for other ranks to be told of it. A PeerLostError is
/// thrown at once, because then there is nobody to tell.
std::exception_ptr attempt(const std::function<void()>& action) {
  try {
    action();
    return nullptr;
  } catch (const PeerLostError&) {
    throw;
  } catch (const std::exception&) {
    return std::current_exception();
  }
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
    SMP_REQUIRE_AS(UnsupportedError, tensor.layout() == at::kStrided && !tensor.is_quantized(),
                   "save_safetensors: ", name, " is no dense tensor; convert it with to_dense()");
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
  auto all_metadata = with_format(metadata);
  checkpoint::put_aliases(aliases, all_metadata);
  std::optional<SafetensorsWriter> writer;
  auto problem = attempt([&] {
    const bool writes = rank.is_first_stage() && (!whole.any() || place.tp_rank() == 0);
    if (writes) writer.emplace(path, infos, all_metadata);
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

StateDict load_safetensors(const std::string& path) {
  const SafetensorsReader file(path);
  StateDict dict;
  dict.metadata = file.metadata();
  for (std::size_t i = 0; i < file.tensors().size(); ++i) {
    dict.insert(file.tensors()[i].info.name, file.read(i));
  }
  for (const auto& [alias, name] : checkpoint::take_aliases(dict.metadata, path)) {
    if (dict.contains(name) && !dict.contains(alias)) dict.insert(alias, dict.at(name));
  }
  return dict;
}

namespace {

/// Returns an offer of the tensors of a file, under those of their names that `model` knows.
checkpoint::Offer offer_of(const std::string& path, const torch::nn::Module& model) {
  const auto file = std::make_shared<SafetensorsReader>(path);
  std::set<std::string> known, stored;
  for (const auto& [tensor, names] : checkpoint::tensors_of(model)) {
    known.insert(names.begin(), names.end());
  }
  for (const auto& tensor : file->tensors()) stored.insert(tensor.info.name);
  auto metadata = file->metadata();
  std::map<std::string, std::vector<std::string>> aliases;
  for (auto& [alias, name] : checkpoint::take_aliases(metadata, path)) {
    if (known.count(alias) > 0 && stored.count(alias) == 0) aliases[name].push_back(alias);
  }
  checkpoint::Offer offer;
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < file->tensors().size(); ++i) {
    auto info = file->tensors()[i].info;
    auto names = aliases[info.name];
    if (names.empty() || known.count(info.name) > 0) names.push_back(info.name);
    for (auto& name : names) {
      info.name = std::move(name);
      offer.tensors.push_back(info);
      numbers.push_back(i);
    }
  }
  offer.read_first = true;
  offer.read = [file, numbers = std::move(numbers)](std::size_t i) {
    return file->read(numbers[i]);
  };
  return offer;
}

/// Returns what is wrong with tied tensors, which the model has once and the file under several
/// names, or an empty text. Some of these names may be aliases of tensors that the file has once.
std::string problem_with_ties(const checkpoint::Offer& offer, const torch::nn::Module& model) {
  std::unordered_map<std::string, std::size_t> place;
  for (std::size_t i = 0; i < offer.tensors.size(); ++i) place.emplace(offer.tensors[i].name, i);
  for (const auto& tied : checkpoint::tensors_of(model)) {
    StateDict offered;
    for (const auto& name : tied.names) {
      const auto found = place.find(name);
      if (tied.names.size() > 1 && found != place.end()) {
        offered.insert(name, offer.read(found->second));
      }
    }
    auto problem = checkpoint::problem_with({tied}, offered, /*strict=*/true);
    if (!problem.empty()) return problem;
  }
  return {};
}

}  // namespace

LoadResult load_safetensors(DistributedModelBase& model, const std::string& path, bool strict) {
  checkpoint::Offer offer;
  if (between_steps("load_safetensors").is_first_stage()) {
    try {
      offer = offer_of(path, model.base_module());
      if (strict) offer.problem = problem_with_ties(offer, model.base_module());
    } catch (const std::exception& error) {
      offer.problem = error.what();
    }
  }
  offer.source = "the file " + path;
  return load_model(model, std::move(offer), strict, "load_safetensors");
}

}  // namespace smp
