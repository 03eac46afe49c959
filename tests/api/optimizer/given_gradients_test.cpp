// Gradients that a program changes, replaces or adds between steps that accumulate, where each is
// added up for the one replica that keeps the optimizer's state: against plain LibTorch.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "api/chain_model.h"

namespace smp {
namespace given_gradients_test {

using at::Tensor;
using Change = std::function<void(Tensor& parameter)>;

constexpr int kMicrobatches = 2;
constexpr int kSteps = 3;
constexpr int kRows = 12;

Tensor batch_of(int step) { return rows(kRows) + 0.1 * step; }
Tensor loss_of(const Tensor& output) { return output.square().mean(); }

/// The pass over one global batch, in so many microbatches of one size.
template <class Net>
void run_plain(Net& net, const Tensor& batch, int microbatches) {
  for (const auto& x : batch.chunk(microbatches)) (loss_of(net(x)) / microbatches).backward();
}

/// Two steps for each of the optimizer's; between them `change` gets every parameter.
Chain train_plain(const Change& change, int replicas) {
  auto net = make_chain();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int s = 0; s < kSteps; ++s) {
    optimizer.zero_grad();
    run_plain(net, batch_of(s), replicas * kMicrobatches);
    for (auto& parameter : net->parameters()) change(parameter);
    run_plain(net, batch_of(s + kSteps), replicas * kMicrobatches);
    optimizer.step();
  }
  return net;
}

Config config_of(int stages, bool shard) {
  Config config;
  config.pipeline_parallel_degree = stages;
  config.microbatches = kMicrobatches;
  config.plan_cache = "off";
  config.auto_partition = false;
  config.default_partition = 0;
  config.shard_optimizer_state = shard;
  config.bucket_cap_mb = 1e-4;
  return config;
}

/// The same on the running rank.
void train_ours(const Change& change, const Chain& expected) {
  auto net = make_chain();
  DistributedModel<Chain> model(net);
  model.set_partition("b", pp_size() - 1);
  DistributedOptimizer optimizer(
      model, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
  auto run = smp::step([&](Tensor x) { model.backward(loss_of(model(x))); });
  const auto own = [](const Tensor& batch) { return batch.chunk(dp_size())[dp_rank()]; };
  for (int s = 0; s < kSteps; ++s) {
    optimizer.zero_grad();
    run(own(batch_of(s)));
    for (auto& parameter : model.local_parameters()) change(parameter);
    run(own(batch_of(s + kSteps)));
    optimizer.step();
  }
  const auto values = expected->named_parameters();
  for (const auto& [name, parameter] : model.local_named_parameters()) {
    expect_close(parameter.detach(), values[name].detach(), name);
  }
}

void expect_as_in_one_process(const Change& change) {
  for (const int replicas : {2, 3}) {
    const auto expected = train_plain(change, replicas);
    for (const int stages : {1, 2}) {
      for (const bool shard : {false, true}) {
        SCOPED_TRACE(testing::Message() << replicas << " replicas, " << stages << " stages"
                                        << (shard ? ", sharded" : ""));
        run_local(
            replicas * stages, [&] { train_ours(change, expected); }, config_of(stages, shard));
      }
    }
  }
}

TEST(GivenGradients, MayTakeThePlaceOfSums) {
  expect_as_in_one_process([](Tensor& parameter) {
    if (parameter.grad().defined()) parameter.mutable_grad() = parameter.grad() * 0.5;
  });
}

TEST(GivenGradients, MayBeAddedToSums) {
  expect_as_in_one_process([](Tensor& parameter) { parameter.square().sum().backward(); });
}

TEST(GivenGradients, MayTakeThePlaceOfSumsInAllReplicas) {
  expect_as_in_one_process(
      [](Tensor& parameter) { parameter.mutable_grad() = 0.25 * parameter.detach(); });
}

TEST(GivenGradients, MayFollowZeroesOfTheProgram) {
  expect_as_in_one_process([](Tensor& parameter) {
    parameter.mutable_grad() = Tensor();
    parameter.square().sum().backward();
  });
}

struct TableImpl : torch::nn::Module {
  TableImpl()
      : words(register_module("words",
                              nn::Embedding(torch::nn::EmbeddingOptions(5, 3).sparse(true)))) {
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& numbers, bool dense) {
    const auto rows = words(numbers);
    return dense ? rows.matmul(words->weight.t()) : rows;
  }
  nn::Embedding words;
};
SMP_MODULE(Table);

/// The sum is sparse; what is added to it makes another tensor of it.
TEST(GivenGradients, MayBecomeDenseInAStepWithoutASum) {
  const auto make_table = [] {
    torch::manual_seed(7);
    return Table();
  };
  const auto numbers = torch::tensor({0, 1, 1, 4, 2, 0, 3, 1}, torch::kLong);
  auto plain = make_table();
  for (const bool dense : {false, true, false}) {
    for (const auto& x : numbers.chunk(2 * kMicrobatches)) {
      (loss_of(plain(x, dense)) / (2 * kMicrobatches)).backward();
    }
  }
  const auto expected = plain->words->weight.grad().to_dense();
  run_local(
      2,
      [&] {
        auto net = make_table();
        DistributedModel<Table> model(net);
        DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 0.1));
        bool dense = false;
        auto run = smp::step([&](Tensor x) { model.backward(loss_of(model(x, dense))); });
        const auto own = numbers.chunk(2)[dp_rank()];
        run(own);
        {
          const auto apart = model.no_sync();
          dense = true;
          run(own);
        }
        dense = false;
        run(own);
        const auto& gradient = net->words->weight.grad();
        EXPECT_EQ(gradient.defined(), dp_rank() == 0);
        if (gradient.defined()) expect_close(gradient.to_dense(), expected, "words.weight");
      },
      config_of(1, true));
}

}  // namespace given_gradients_test
}  // namespace smp
