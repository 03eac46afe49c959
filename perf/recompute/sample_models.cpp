// perf/recompute/sample_models.cpp: see the header.
#include "recompute/sample_models.h"

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "api/model/module_types.h"
#include "base/check.h"
#include "sample_cases.h"
#include "smp/recompute/activation_checkpointing.h"
#include "support/tensor_bytes.h"

namespace smp::perf::recompute {
namespace {

using at::Tensor;

constexpr std::int64_t kRows = 16;

void mark(torch::nn::Module& net, const std::string& names) {
  const ModuleTypes types("names", names);
  for (const auto& module : net.modules()) {
    if (types.contain(*module)) set_activation_checkpointing(*module);
  }
}

/// One way, with a net of its own; all have the same weights and masks.
template <class Case>
class Way {
 public:
  Way(std::string name, const std::string& types) : name_(std::move(name)) {
    at::manual_seed(1);
    net_ = std::make_unique<decltype(Case::make())>(Case::make());
    mark(**net_, types);
  }
  double microseconds_of(const std::vector<Tensor>& batch) {
    for (auto& parameter : (*net_)->parameters()) {
      if (parameter.grad().defined()) parameter.mutable_grad().zero_();
    }
    at::manual_seed(3);
    return microseconds([&] {
      auto loss = Case::loss(*net_, batch);
      loss.backward();
      loss_ = loss.template item<double>();
    });
  }
  double peak_bytes(const std::vector<Tensor>& batch) {
    microseconds_of(batch);  // gradients are there
    const auto before = support::live_tensor_bytes();
    support::take_peak_tensor_bytes();
    microseconds_of(batch);
    return static_cast<double>(support::take_peak_tensor_bytes() - before);
  }
  const std::string& name() const { return name_; }
  double loss() const { return loss_; }

 private:
  std::string name_;
  std::unique_ptr<decltype(Case::make())> net_;
  double loss_ = 0;
};

/// What is computed again.
struct Again {
  std::string way, types;
};

template <class Case>
void measure(Report& report, const std::string& model, const std::vector<Again>& others,
             int times_each) {
  at::manual_seed(2);
  auto batch = Case::draw();
  for (auto& tensor : batch) tensor = tensor.narrow(0, 0, std::min(kRows, tensor.size(0)));
  std::vector<Way<Case>> ways;
  ways.emplace_back("kept", "");
  for (const auto& [way, types] : others) ways.emplace_back(way, types);
  for (auto& way : ways) {
    report.add(model + ".peak." + way.name() + ".mb", way.peak_bytes(batch) / 1e6, "MB",
               "tensors beyond the net and its gradients, at the worst moment of a step");
    SMP_REQUIRE(way.loss() == ways[0].loss(), model, ": the loss differs: ", way.name());
  }
  std::vector<std::vector<double>> ratios(ways.size());
  for (int round = 0; round < rounds(times_each); ++round) {
    const double kept = ways[0].microseconds_of(batch);
    for (std::size_t i = 1; i < ways.size(); ++i) {
      ratios[i].push_back(ways[i].microseconds_of(batch) / kept);
    }
  }
  for (std::size_t i = 1; i < ways.size(); ++i) {
    report.add(model + ".step_over_kept." + ways[i].name(), median(ratios[i]), "1");
  }
}

}  // namespace

void measure_sample_models(Report& report, int times_each) {
  measure<T5Case>(report, "t5", {{"attention", "T5Attention"}, {"blocks", T5Case::kBlocks}},
                  times_each);
  measure<GptCase>(report, "gpt", {{"attention", "Attention"}, {"blocks", GptCase::kBlocks}},
                   times_each);
  measure<UNetCase>(report, "unet", {{"blocks", UNetCase::kBlocks}}, times_each);
}

}  // namespace smp::perf::recompute
