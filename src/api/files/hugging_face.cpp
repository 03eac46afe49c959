// api/files/hugging_face.cpp: published models into modules and placed models, and back.
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "api/files/model_exchange.h"
#include "api/files/model_save.h"
#include "api/rank/public_call.h"
#include "api/rank/rank.h"
#include "base/check.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/module_tensors.h"
#include "hf/incoming.h"
#include "hf/publisher.h"
#include "smp/distributed_model.h"
#include "smp/hf.h"

namespace smp::hf {
namespace {

using checkpoints::NamedTensor;

/// What one rank gives of a published model's files.
struct Given {
  checkpoints::Offer offer;
  LoadReport report;
};

/// Tells which of a model's tensors this rank reads, and whether it speaks for the whole model: of
/// what the files have more, and of what is tied.
struct Share {
  std::function<bool(const at::Tensor&)> reads;
  bool speaks;
};

/// The model's tensors by each of their names.
std::map<std::string, at::Tensor> by_name(const std::vector<NamedTensor>& tensors) {
  std::map<std::string, at::Tensor> all;
  for (const auto& [tensor, names] : tensors) {
    for (const auto& name : names) all.emplace(name, tensor);
  }
  return all;
}

std::vector<std::string> names_of(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> all;
  for (const auto& named : tensors) all.insert(all.end(), named.names.begin(), named.names.end());
  return all;
}

Given given(const std::string& path, const NameMap& names, const std::vector<NamedTensor>& tensors,
            const Share& share) {
  const auto files = std::make_shared<const PublishedFiles>(path, names.family());
  const auto incoming = std::make_shared<const Incoming>(files, names, names_of(tensors));
  const auto own = by_name(tensors);
  Given given;
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < incoming->tensors().size(); ++i) {
    const auto& info = incoming->tensors()[i];
    const auto& tensor = own.at(info.name);
    if (checkpoints::holds_less(tensor.scalar_type(), info.dtype)) {
      given.report.narrowed.push_back(info.name);
    }
    if (!share.reads(tensor)) continue;
    given.offer.tensors.push_back(info);
    numbers.push_back(i);
  }
  given.report.ignored = incoming->ignored();
  if (share.speaks) {
    incoming->require_ties();
    const auto& more = incoming->unexpected();
    given.offer.tensors.insert(given.offer.tensors.end(), more.begin(), more.end());
  }
  const auto number = [numbers = std::move(numbers)](std::size_t i) {
    SMP_ASSERT(i < numbers.size(), "a tensor that the model does not have");
    return numbers[i];
  };
  given.offer.read = [incoming, number](std::size_t i) { return incoming->read(number(i)); };
  given.offer.check = [incoming, number](std::size_t i) { incoming->check(number(i)); };
  given.offer.read_into = [incoming, number](std::size_t i, const at::Tensor& target) {
    incoming->read_into(number(i), target);
  };
  given.offer.read_first = true;
  return given;
}

/// Of a placed model each stage reads what it owns, else the first one reads all; of ranks that
/// hold slices the first.
std::optional<Share> share_of(const DistributedModelBase& model, const Rank& rank) {
  if (rank.topology().tp_rank() != 0) return std::nullopt;
  if (model.partitioned()) {
    return Share{[&model](const at::Tensor& tensor) { return model.owns(tensor); },
                 rank.is_first_stage()};
  }
  if (!rank.is_first_stage()) return std::nullopt;
  return Share{[](const at::Tensor&) { return true; }, true};
}

LoadReport reported(LoadReport report, LoadResult result) {
  static_cast<LoadResult&>(report) = std::move(result);
  return report;
}

/// A folder of published form.
class FolderSink : public ModelSink {
 public:
  FolderSink(const SavedTensors& saved, const std::string& folder, const NameMap& names,
             const SaveOptions& options, SaveReport& report)
      : publisher_(own_tensors(saved), folder, names, options), report_(report) {}
  void write(std::size_t index, const at::Tensor& values) override {
    publisher_.write(index, values);
  }
  void commit() override { report_ = publisher_.commit(); }

 private:
  static std::vector<OwnTensor> own_tensors(const SavedTensors& saved) {
    std::vector<OwnTensor> own;
    for (std::size_t i = 0; i < saved.tensors.size(); ++i) {
      own.push_back({saved.tensors[i].names, saved.infos[i].dtype, saved.infos[i].sizes});
    }
    return own;
  }

  Publisher publisher_;
  SaveReport& report_;
};

}  // namespace

LoadReport load(torch::nn::Module& module, const std::string& path, const NameMap& names,
                bool strict) {
  auto [offer, report] = given(path, names, checkpoints::tensors_of(module),
                               {[](const at::Tensor&) { return true; }, true});
  offer.source = "the files of " + path;
  return reported(std::move(report), load_module(module, offer, strict, "hf::load"));
}

LoadReport load(DistributedModelBase& model, const std::string& path, const NameMap& names,
                bool strict) {
  const PublicCall call("smp::hf::load");
  Given own;
  if (const auto share = share_of(model, between_steps("hf::load"))) {
    try {
      const auto tensors = checkpoints::tensors_of(model.base_module());
      own = given(path, names, tensors, *share);
      own.offer.problem = checkpoints::problem_with_repeats(tensors, own.offer);
    } catch (const std::exception& error) {
      own.offer.problem = error.what();
    }
  }
  own.offer.source = "the files of " + path;
  auto result = load_model(model, std::move(own.offer), strict, "hf::load");
  return reported(std::move(own.report), std::move(result));
}

SaveReport save(const torch::nn::Module& module, const std::string& folder, const NameMap& names,
                const SaveOptions& options) {
  return save(state_dict(module), folder, names, options);
}

SaveReport save(const DistributedModelBase& model, const std::string& folder, const NameMap& names,
                const SaveOptions& options) {
  const PublicCall call("smp::hf::save");
  SaveReport report;
  save_model(model, "hf::save", [&](const SavedTensors& saved) {
    return std::make_unique<FolderSink>(saved, folder, names, options, report);
  });
  return report;
}

}  // namespace smp::hf
