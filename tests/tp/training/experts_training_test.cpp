// A model with experts trains as it does in one process: experts on several stages, where each step
// sends them other numbers of tokens, over the ranks of a group, and both with replicas.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <ostream>

#include "smp/nn/mixture_of_experts.h"
#include "smp/smp.h"
#include "smp/tp.h"
#include "tp/layer_comparison.h"

namespace smp::tp {
namespace experts_training_test {

constexpr int kSteps = 3, kMicrobatches = 2;
constexpr std::int64_t kRows = 4, kTokens = 3, kWidth = 6, kExperts = 4;

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", nn::Linear(kWidth, kWidth))),
        mixture(register_module(
            "mixture", nn::MixtureOfExperts(
                           nn::MixtureOfExpertsOptions(nn::GatedMlpOptions(kWidth, 4), kExperts, 2)
                               .shared_inner_width(4)))) {
    to(torch::kDouble);
  }
  /// The loss with that of the balance.
  at::Tensor forward(const at::Tensor& x) {
    const auto [hidden, balance] = mixture(torch::tanh(first(x)));
    return (hidden * hidden.sin()).mean() + 0.1 * balance;
  }
  nn::Linear first;
  nn::MixtureOfExperts mixture;
};
SMP_MODULE(Net);

at::Tensor rows_of(int step, int batch) {
  const auto n = at::arange(kRows * kTokens * kWidth, at::kDouble);
  return at::sin(n * 0.61 + 5 * step + 3 * batch).view({kRows, kTokens, kWidth}) * 2;
}

torch::optim::SGD sgd(const std::vector<at::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.3).momentum(0.9));
}

std::map<std::string, at::Tensor> train_in_one_process(int batches) {
  torch::manual_seed(3);
  NetImpl net;
  auto optimizer = sgd(net.parameters());
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int batch = 0; batch < batches; ++batch) {
      for (const auto& part : rows_of(step, batch).chunk(kMicrobatches)) {
        (net.forward(part) / (batches * kMicrobatches)).backward();
      }
    }
    optimizer.step();
  }
  std::map<std::string, at::Tensor> values;
  for (const auto& item : net.named_parameters()) values[item.key()] = item.value().detach();
  return values;
}

/// The value in the model of one process: experts over ranks are stacked.
at::Tensor expected_of(const std::map<std::string, at::Tensor>& reference,
                       const std::string& name) {
  const auto found = reference.find(name);
  if (found != reference.end()) return found->second;
  std::vector<at::Tensor> all;
  const auto last = name.rfind('.');
  for (std::int64_t i = 0; i < kExperts; ++i) {
    all.push_back(reference.at(name.substr(0, last) + '.' + std::to_string(i) + name.substr(last) +
                               ".weight"));
  }
  return at::stack(all);
}

struct Mix {
  int ranks, pp, tp;
  const char* optimize = "speed";
  bool shard = false;
  bool prescaled = false;
  bool static_mode = false;
};

void PrintTo(const Mix& mix, std::ostream* out) {
  *out << mix.ranks << " ranks, pp " << mix.pp << ", tp " << mix.tp << ", " << mix.optimize
       << (mix.shard ? ", sharded" : "") << (mix.prescaled ? ", prescaled" : "");
}

void expect_as_one_process(const Mix& mix) {
  SCOPED_TRACE(testing::PrintToString(mix));
  Config config;
  config.pipeline_parallel_degree = mix.pp;
  config.tensor_parallel_degree = mix.tp;
  config.optimize = mix.optimize;
  config.microbatches = kMicrobatches;
  config.shard_optimizer_state = mix.shard;
  config.prescaled_batch = mix.prescaled;
  config.static_mode = mix.static_mode;
  config.plan_cache = "off";
  const auto reference = train_in_one_process(mix.ranks / mix.pp / (mix.prescaled ? mix.tp : 1));
  run_local(mix.ranks,
            [&] {
              torch::manual_seed(3);
              Net net;
              set_tensor_parallelism(net->mixture);
              DistributedModel model(net);
              model.set_partition("", 0);
              if (tp_size() == 1) {
                model.set_partition("mixture.experts.1", pp_size() - 1);
                model.set_partition("mixture.experts.3", pp_size() - 1);
              } else {
                model.set_partition("mixture", pp_size() - 1);
              }
              DistributedOptimizer optimizer(model, sgd(model.parameters()));
              auto train = step([&](const at::Tensor& x) { model.backward(model(x)); });
              for (int s = 0; s < kSteps; ++s) {
                optimizer.zero_grad();
                train(rows_of(s, data_shard().index));
                optimizer.step();
              }
              for (const auto& [name, value] : model.state_dict(kAllPpRanks)) {
                expect_near(value, expected_of(reference, name), 1e-12, name);
              }
            },
            config, {1});
}

TEST(ExpertsTraining, IsThatOfOneProcessOnStages) {
  expect_as_one_process({1, 1, 1});
  expect_as_one_process({2, 2, 1});
  expect_as_one_process({4, 2, 1, "speed", true});
  expect_as_one_process({2, 2, 1, "speed", false, false, true});
}

TEST(ExpertsTraining, IsThatOfOneProcessOverRanks) {
  for (const auto* layout : {"speed", "memory"}) {
    expect_as_one_process({2, 1, 2, layout});
    expect_as_one_process({4, 2, 2, layout});
    expect_as_one_process({8, 2, 2, layout, true});
    expect_as_one_process({4, 1, 2, layout, false, true});
  }
}

}  // namespace experts_training_test
}  // namespace smp::tp
