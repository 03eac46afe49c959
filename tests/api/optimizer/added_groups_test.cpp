// Groups that join an optimizer after the first step (add_param_group()), and optimizers that are
// made after placement: against plain LibTorch, with every optimizer that works element by element.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/chain_model.h"
#include "smp/checkpoint.h"

namespace smp {
namespace added_groups_test {

using at::Tensor;
using testing::HasSubstr;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;
using Values = std::map<std::string, Tensor>;

/// Makes an optimizer, and options for a group that joins it.
struct Make {
  std::function<std::unique_ptr<Optimizer>(std::vector<Tensor>)> optimizer;
  std::function<std::unique_ptr<OptimizerOptions>()> options;
};

template <class Made, class Options>
Make of(const Options& first, const Options& later) {
  return {
      [first](std::vector<Tensor> own) { return std::make_unique<Made>(std::move(own), first); },
      [later] { return std::make_unique<Options>(later); }};
}

/// All but Adagrad, which keeps state from its construction and refuses groups without.
std::map<std::string, Make> all_makes() {
  using namespace torch::optim;
  return {{"SGD", of<SGD>(SGDOptions(0.1).momentum(0.9), SGDOptions(0.02).momentum(0.5))},
          {"Adam", of<Adam>(AdamOptions(0.1), AdamOptions(0.02).amsgrad(true))},
          {"AdamW", of<AdamW>(AdamWOptions(0.1), AdamWOptions(0.02).weight_decay(0.3))},
          {"RMSprop",
           of<RMSprop>(RMSpropOptions(0.1), RMSpropOptions(0.02).momentum(0.5).centered(true))}};
}

Values values_of(const std::vector<std::pair<std::string, Tensor>>& parameters) {
  Values values;
  for (const auto& [name, parameter] : parameters) values.emplace(name, parameter.detach().clone());
  return values;
}

constexpr int kBefore = 2, kAfter = 3;

Values train_plain(const Make& make) {
  auto net = make_chain();
  const auto optimizer = make.optimizer(net->a->parameters());
  for (int i = 0; i < kBefore + kAfter; ++i) {
    if (i == kBefore) optimizer->add_param_group({net->b->parameters(), make.options()});
    if (i == kBefore + 1) optimizer->add_param_group({net->c->parameters(), make.options()});
    optimizer->zero_grad();
    for (const auto& x : rows(4).chunk(2)) (net(x).square().sum() / 2).backward();
    optimizer->step();
  }
  std::vector<std::pair<std::string, Tensor>> parameters;
  for (const auto& item : net->named_parameters())
    parameters.emplace_back(item.key(), item.value());
  return values_of(parameters);
}

Config config_of(int stages, bool shard) {
  Config config;
  config.pipeline_parallel_degree = stages;
  config.microbatches = 2;
  config.plan_cache = "off";
  config.auto_partition = false;
  config.default_partition = 0;
  config.shard_optimizer_state = shard;
  return config;
}

Chain build(bool delayed) {
  torch::manual_seed(7);
  if (!delayed) return {};
  delay_param_initialization delay;
  return {};
}

/// State is saved and loaded at each step, into the optimizer as it is then.
void train_ours(const Make& make, bool delayed, bool of_libtorch, const Values& expected) {
  auto net = build(delayed);
  DistributedModel<Chain> model(net);
  model.set_partition("b", 1 % pp_size());
  model.set_partition("c", 2 % pp_size());
  DistributedOptimizer optimizer(model, make.optimizer(net->a->parameters()));
  auto run = smp::step([&](Tensor x) { model.backward(model(x).square().sum()); });
  for (int i = 0; i < kBefore + kAfter; ++i) {
    if (i == kBefore) optimizer->add_param_group({net->b->parameters(), make.options()});
    if (i == kBefore + 1) optimizer->add_param_group({net->c->parameters(), make.options()});
    if (i == kBefore + 2) {
      load_optimizer_state_dict(model, optimizer, optimizer_state_dict(model, optimizer));
    }
    model.zero_grad();
    run(rows(4));
    of_libtorch ? static_cast<void>(optimizer->step()) : optimizer.step();
    load_optimizer_state_dict(model, optimizer, optimizer_state_dict(model, optimizer));
  }
  for (const auto& [name, parameter] : model.local_named_parameters()) {
    expect_close(parameter.detach(), expected.at(name), name);
  }
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) EXPECT_TRUE(model.owns(parameter));
  }
}

TEST(AddedGroups, EqualOneProcess) {
  for (const auto& [name, make] : all_makes()) {
    const auto expected = train_plain(make);
    for (const int stages : {1, 2, 3}) {
      for (const bool delayed : {false, true}) {
        for (const bool of_libtorch : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << name << ' ' << stages << " stages" << (delayed ? ", delayed" : "")
                       << (of_libtorch ? ", LibTorch's step()" : ""));
          run_local(
              stages, [&, &make = make] { train_ours(make, delayed, of_libtorch, expected); },
              config_of(stages, false));
        }
      }
    }
  }
}

TEST(AddedGroups, AreSharded) {
  for (const auto& [name, make] : all_makes()) {
    const auto expected = train_plain(make);
    for (const int stages : {1, 2}) {
      for (const bool delayed : {false, true}) {
        SCOPED_TRACE(testing::Message() << name << ' ' << stages << " stages");
        run_local(
            2 * stages, [&, &make = make] { train_ours(make, delayed, false, expected); },
            config_of(stages, true));
      }
    }
  }
}

/// Plain LibTorch says so, too.
TEST(AddedGroups, OfAdagradHaveNoState) {
  const auto make = of<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1),
                                              torch::optim::AdagradOptions(0.02));
  auto plain = make_chain();
  const auto reference = make.optimizer(plain->a->parameters());
  reference->add_param_group({plain->b->parameters(), make.options()});
  plain->b->linear->bias.mutable_grad() = torch::ones({4}, torch::kDouble);
  EXPECT_THAT(refusal<c10::Error>([&] { reference->step(); }), HasSubstr("state found NULL"));
}

/// Its gradient is on the first stage, and all others need its new values.
TEST(AddedGroups, OfATensorOfNoModelIsAlikeOnAllRanks) {
  const auto outside = [] { return torch::full({2}, 1.5, torch::kDouble).requires_grad_(); };
  const auto later = [](const Tensor& scale) {
    return OptimizerParamGroup({scale}, std::make_unique<torch::optim::SGDOptions>(0.25));
  };
  auto plain = make_chain();
  const auto plain_scale = outside();
  torch::optim::SGD reference(plain->parameters(), 0.1);
  for (int i = 0; i < 4; ++i) {
    if (i == 1) reference.add_param_group(later(plain_scale));
    reference.zero_grad();
    for (const auto& x : rows(4).chunk(2)) ((plain(x) * plain_scale).square().sum() / 2).backward();
    reference.step();
  }
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [&] {
      auto net = make_chain();
      DistributedModel model(net);
      model.set_partition("", 0);
      model.set_partition("b", size() - 1);
      const auto scale = outside();
      DistributedOptimizer optimizer(model, torch::optim::SGD(model.parameters(), 0.1));
      auto run = smp::step([&](Tensor x) { model.backward((model(x) * scale).square().sum()); });
      for (int i = 0; i < 4; ++i) {
        if (i == 1) optimizer->add_param_group(later(scale));
        optimizer.zero_grad();
        run(rows(4));
        optimizer.step();
      }
      expect_close(scale.detach(), plain_scale.detach(), "scale");
    });
  }
}

/// Adagrad makes its state of whatever it is given, at once.
TEST(OptimizersAfterPlacement, EqualOneProcess) {
  auto makes = all_makes();
  makes.emplace("Adagrad", of<torch::optim::Adagrad>(
                               torch::optim::AdagradOptions(0.1).initial_accumulator_value(0.25),
                               torch::optim::AdagradOptions()));
  for (const auto& [name, make] : makes) {
    auto plain = make_chain();
    const auto reference = make.optimizer(plain->parameters());
    for (int i = 0; i < 3; ++i) {
      reference->zero_grad();
      for (const auto& x : rows(4).chunk(2)) (plain(x).square().sum() / 2).backward();
      reference->step();
    }
    for (const int stages : {1, 2, 3}) {
      for (const int way : {0, 1, 2, 3}) {  // bit 0: delayed, bit 1: sharded
        SCOPED_TRACE(testing::Message() << name << ' ' << stages << " stages, way " << way);
        const bool delayed = way % 2 == 1, shard = way / 2 == 1;
        if (shard && stages == 3) continue;
        run_local(
            stages * (shard ? 2 : 1),
            [&, &make = make] {
              for (const bool before : {true, false}) {
                auto net = build(delayed);
                DistributedModel<Chain> model(net);
                model.set_partition("b", 1 % pp_size());
                model.set_partition("c", 2 % pp_size());
                if (!before) model.place();
                DistributedOptimizer optimizer(model, make.optimizer(model.parameters()));
                auto run = smp::step([&](Tensor x) { model.backward(model(x).square().sum()); });
                for (int i = 0; i < 3; ++i) {
                  optimizer.zero_grad();
                  run(rows(4));
                  optimizer.step();
                  load_optimizer_state_dict(model, optimizer,
                                            optimizer_state_dict(model, optimizer));
                }
                const auto expected = plain->named_parameters();
                for (const auto& [path, parameter] : model.local_named_parameters()) {
                  expect_close(parameter.detach(), expected[path].detach(), path);
                }
                EXPECT_LE(optimizer->state().size(), model.local_parameters().size());
              }
            },
            config_of(stages, shard));
      }
    }
  }
}

TEST(OptimizersAfterPlacement, OfAdagradWhoseStateIsNotInTheDictBeginAgain) {
  on_ranks(2, [] {
    FarModel own;
    DistributedOptimizer optimizer(
        own.model,
        torch::optim::Adagrad(own.model.parameters(),
                              torch::optim::AdagradOptions(0.1).initial_accumulator_value(0.5)));
    smp::step([&](Tensor x) { own.model.backward(own.model(x).sum()); })(rows(4));
    optimizer.step();
    auto dict = optimizer_state_dict(own.model, optimizer, kAllPpRanks);
    dict.erase("state.far.linear.bias.sum");
    dict.erase("state.far.linear.bias.step");
    load_optimizer_state_dict(own.model, optimizer, dict);
    const auto now = optimizer_state_dict(own.model, optimizer, kAllPpRanks);
    EXPECT_EQ(now.at("state.far.linear.bias.step").item<std::int64_t>(), 0);
    EXPECT_TRUE(
        torch::equal(now.at("state.far.linear.bias.sum"), torch::full({2}, 0.5, torch::kDouble)));
  });
}

}  // namespace added_groups_test
}  // namespace smp
