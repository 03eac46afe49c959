// Options belong to the parameters of a group: wherever it is listed, whatever part of it a rank
// has, and in files that do not say which parameters those are.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/chain_model.h"
#include "checkpoint/model_state_testing.h"
#include "smp/checkpoint.h"

namespace smp {
namespace optimizer_groups_test {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using Parameters = std::map<std::string, Tensor>;

/// Parts of the chain, each with the number that its options are made of.
struct Part {
  std::vector<std::string> names;
  int number;
};
using Parts = std::vector<Part>;

const Part kFirst{{"a.linear.weight", "c.linear.weight"}, 1};
const Part kBiases{{"a.linear.bias", "b.linear.bias", "c.linear.bias"}, 2};
const Part kMiddle{{"b.linear.weight"}, 3};
const Part kNothing{{}, 4};

AdamWOptions options_of(int number) {
  return AdamWOptions(0.01 * number)
      .weight_decay(0.1 * number)
      .betas({1 - 0.1 * number, 1 - 0.01 * number})
      .amsgrad(number == 2);
}

AdamW make(const Parameters& parameters, const Parts& parts) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& part : parts) {
    std::vector<Tensor> own;
    for (const auto& name : part.names) own.push_back(parameters.at(name));
    groups.emplace_back(own, std::make_unique<AdamWOptions>(options_of(part.number)));
  }
  return AdamW(groups, AdamWOptions(0.5));
}

Parameters by_name(const torch::nn::Module& net) {
  Parameters parameters;
  for (const auto& item : net.named_parameters()) parameters.emplace(item.key(), item.value());
  return parameters;
}

struct Own {
  explicit Own(const Parts& parts, int shift = 0)
      : net(make_chain()), model(net), optimizer(model, make(by_name(*net), parts)) {
    model.set_partition("", 0);
    model.set_partition("b", (1 + shift) % stages());
    model.set_partition("c", (2 + shift) % stages());
  }
  static int stages() { return pp_size(); }
  void train(int steps) {
    auto run = smp::step([&](Tensor x) { model.backward(model(x).square().sum()); });
    for (int i = 0; i < steps; ++i) {
      optimizer.zero_grad();
      run(rows(4));
      optimizer.step();
    }
  }
  Chain net;
  DistributedModel<Chain> model;
  DistributedOptimizer<AdamW> optimizer;
};

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

/// The parameters after some steps of plain LibTorch.
Parameters train_plain(const Parts& parts, int steps) {
  auto net = make_chain();
  auto optimizer = make(by_name(*net), parts);
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    for (const auto& x : rows(4).chunk(2)) (net(x).square().sum() / 2).backward();
    optimizer.step();
  }
  return by_name(*net);
}

struct Saved {
  StateDict model, optimizer;
};

/// Saves on `stages` stages after `steps` steps.
Saved save(const Parts& parts, int steps, int stages, int replicas = 1, bool shard = false) {
  Saved saved;
  run_local(
      stages * replicas,
      [&] {
        Own own(parts);
        own.train(steps);
        auto model = own.model.state_dict();
        auto optimizer = optimizer_state_dict(own.model, own.optimizer);
        if (rank() == 0) saved = {std::move(model), std::move(optimizer)};
      },
      config_of(stages, shard));
  return saved;
}

constexpr int kBefore = 2, kAfter = 3;

void expect_goes_on(const Saved& saved, const Parts& as_saved, const Parts& now, int stages,
                    int replicas = 1, bool shard = false, bool place = false) {
  const auto expected = train_plain(as_saved, kBefore + kAfter);
  run_local(
      stages * replicas,
      [&] {
        Own own(now, 1);
        own.model.load_state_dict(pp_rank() == 0 ? saved.model : StateDict());
        if (place) own.model.place();
        for (auto& group : own.optimizer.param_groups()) group.options().set_lr(99);
        load_optimizer_state_dict(own.model, own.optimizer,
                                  pp_rank() == 0 ? saved.optimizer : StateDict());
        own.train(kAfter);
        for (const auto& [name, parameter] : own.model.local_named_parameters()) {
          expect_close(parameter.detach(), expected.at(name).detach(), name);
        }
      },
      config_of(stages, shard));
}

const std::vector<Parts> kOrders{{kFirst, kBiases, kMiddle, kNothing},
                                 {kMiddle, kNothing, kFirst, kBiases},
                                 {kNothing, kBiases, kMiddle, kFirst}};

TEST(OptimizerGroups, InAnotherOrderKeepTheirOptions) {
  for (const int stages : {1, 2, 3}) {
    SCOPED_TRACE(stages);
    const auto saved = save(kOrders[0], kBefore, stages);
    for (const auto& order : kOrders) {
      expect_goes_on(saved, kOrders[0], order, stages % 3 + 1);
      expect_goes_on(saved, kOrders[0], order, stages, 1, false, /*place=*/true);
    }
  }
}

TEST(OptimizerGroups, InAnotherOrderKeepTheirOptionsWhereStateIsSharded) {
  for (const bool shard : {false, true}) {
    const auto saved = save(kOrders[0], kBefore, 2, 2, shard);
    for (const auto& order : kOrders) {
      expect_goes_on(saved, kOrders[0], order, 1, 2, true);
      expect_goes_on(saved, kOrders[0], order, 2, 2, true, /*place=*/true);
      expect_goes_on(saved, kOrders[0], order, 2, 1);
    }
  }
}

TEST(OptimizerGroups, AreNamedInTheDictWhateverRankHasThem) {
  const auto one = save(kOrders[1], 1, 1).optimizer;
  EXPECT_TRUE(one.at("param_groups.0.params.b.linear.weight").item<bool>());
  EXPECT_FALSE(one.contains("param_groups.1.params.b.linear.weight"));
  for (const auto& [stages, replicas] : {std::pair(2, 1), std::pair(3, 1), std::pair(2, 2)}) {
    const auto other = save(kOrders[1], 1, stages, replicas, replicas > 1).optimizer;
    EXPECT_THAT(other.names(), testing::UnorderedElementsAreArray(one.names()));
  }
}

/// Each rank reads a file of its own.
TEST(OptimizerGroups, MayComeInParts) {
  const auto saved = save(kOrders[0], kBefore, 2);
  const auto expected = train_plain(kOrders[0], kBefore + 1);
  run_local(
      2,
      [&] {
        Own own(kOrders[2]);
        own.model.load_state_dict(saved.model);
        StateDict part;
        int number = 0;
        for (const auto& [name, tensor] : saved.optimizer) {
          if (number++ % 2 == rank()) part.insert(name, tensor);
        }
        load_optimizer_state_dict(own.model, own.optimizer, part);
        own.train(1);
        for (const auto& [name, parameter] : own.model.local_named_parameters()) {
          expect_close(parameter.detach(), expected.at(name).detach(), name);
        }
      },
      config_of(2, false));
}

TEST(OptimizerGroups, ThatWereSplitOrMergedAreRefusedWithBothLists) {
  const auto saved = save({kFirst, kBiases, kMiddle}, 1, 2);
  const Part all{{"a.linear.weight", "b.linear.weight", "c.linear.weight"}, 1};
  const Part left{{"a.linear.weight"}, 1}, right{{"b.linear.weight", "c.linear.weight"}, 3};
  for (const int ranks : {1, 2}) {
    run_local(
        ranks,
        [&] {
          Own merged({all, kBiases}), other({left, kBiases, right});
          for (const bool placed : {false, true}) {
            for (auto* own : {&merged, &other}) {
              if (placed) own->model.place();
              const auto before = own->optimizer.param_groups()[0].options().get_lr();
              const auto said = refusal(
                  [&] { load_optimizer_state_dict(own->model, own->optimizer, saved.optimizer); });
              EXPECT_THAT(said, HasSubstr("the dict's group 0: a.linear.weight, c.linear.weight"));
              EXPECT_THAT(said, own == &merged
                                    ? HasSubstr("the optimizer's group 0: a.linear.weight, "
                                                "b.linear.weight, c.linear.weight")
                                    : HasSubstr("the optimizer's group 0: a.linear.weight\n"));
              EXPECT_EQ(own->optimizer.param_groups()[0].options().get_lr(), before);
            }
          }
        },
        config_of(ranks, false));
  }
}

/// Leaves out what earlier versions did not write.
StateDict without_members(const StateDict& dict) {
  StateDict old;
  for (const auto& [name, tensor] : dict) {
    if (name.find(".params.") == std::string::npos) old.insert(name, tensor);
  }
  return old;
}

TEST(OptimizerGroups, OfFilesOfEarlierVersionsAreThoseWithTheSameOptions) {
  auto saved = save(kOrders[0], kBefore, 2);
  saved.optimizer = without_members(saved.optimizer);
  for (const auto& order : kOrders) expect_goes_on(saved, kOrders[0], order, 2);
  const Part one{{"a.linear.weight", "a.linear.bias", "b.linear.weight", "b.linear.bias",
                  "c.linear.weight", "c.linear.bias"},
                 2};
  auto single = save({one}, kBefore, 2);
  single.optimizer = without_members(single.optimizer);
  expect_goes_on(single, {one}, {one}, 3);
  auto clear = saved.optimizer;
  for (const char* number : {"0", "1"}) {
    for (const char* option : {"weight_decay", "beta1", "beta2", "amsgrad"}) {
      const auto name = std::string("param_groups.") + number + "." + option;
      const auto value = clear.at(std::string("param_groups.2.") + option);
      clear.erase(name);
      clear.insert(name, value);
    }
  }
  on_ranks(2, [&] {
    Own own(kOrders[0]);
    EXPECT_THAT(refusal([&] { load_optimizer_state_dict(own.model, own.optimizer, clear); }),
                AllOf(HasSubstr("do not tell which is which"),
                      HasSubstr("the optimizer's group 2: b.linear.weight")));
  });
}

/// One tensor under two names: a file may have either, and not both.
TEST(OptimizerGroups, KnowAParameterByAllOfItsNames) {
  on_ranks(2, [] {
    auto net = model_state::make_net();
    DistributedModel model(net);
    model_state::spread(model);
    DistributedOptimizer optimizer(
        model,
        torch::optim::SGD({net->table->weight}, torch::optim::SGDOptions(0.1).momentum(0.9)));
    smp::step([&](Tensor x) { model.backward(model(x).sum()); })(rows(4, 6));
    optimizer.step();
    const auto saved = optimizer_state_dict(model, optimizer, kAllPpRanks);
    const std::string first = "table.weight", tied = "head.weight";
    auto dict = saved;
    for (const auto& [lead, field] :
         {std::pair("state.", ".momentum_buffer"), std::pair("param_groups.0.params.", "")}) {
      dict.erase(lead + first + field);
      dict.insert(lead + tied + field, saved.at(lead + first + field));
    }
    EXPECT_EQ(refusal([&] { load_optimizer_state_dict(model, optimizer, dict); }), "accepted");
    dict.insert("state.table.weight.momentum_buffer", torch::zeros({6, 4}));
    EXPECT_THAT(refusal([&] { load_optimizer_state_dict(model, optimizer, dict); }),
                HasSubstr("are of one parameter"));
  });
}

/// Of no model, so without names: their order in a group counts.
TEST(OptimizerGroups, OfTensorsOfNoModelGoWithTheirGroup) {
  on_ranks(2, [] {
    const auto outside = [](double value) {
      return torch::full({2}, value, torch::kDouble).requires_grad_();
    };
    auto net = make_chain();
    DistributedModel model(net);
    model.set_partition("", 0);
    model.set_partition("b", 1);
    const auto scale = outside(1), shift = outside(2);
    const auto make_two = [&](bool turned) {
      std::vector<torch::optim::OptimizerParamGroup> groups;
      auto with_weight = std::make_unique<AdamWOptions>(options_of(1));
      auto with_bias = std::make_unique<AdamWOptions>(options_of(3));
      groups.emplace_back(std::vector<Tensor>{net->b->linear->weight, scale},
                          std::move(with_weight));
      groups.emplace_back(std::vector<Tensor>{shift, net->b->linear->bias}, std::move(with_bias));
      if (turned) std::swap(groups[0], groups[1]);
      return AdamW(groups, AdamWOptions(0.5));
    };
    DistributedOptimizer optimizer(model, make_two(false));
    auto run = smp::step([&](Tensor x) {
      const auto y = model(x) * scale + shift;
      model.backward(y.square().sum());
    });
    run(rows(4));
    optimizer.step();
    const auto dict = optimizer_state_dict(model, optimizer, kAllPpRanks);
    DistributedOptimizer turned(model, make_two(true));
    load_optimizer_state_dict(model, turned, dict);
    EXPECT_EQ(static_cast<AdamWOptions&>(turned.param_groups()[0].options()).weight_decay(),
              0.1 * 3);
    const auto back = optimizer_state_dict(model, turned, kAllPpRanks);
    EXPECT_TRUE(torch::equal(back.at("state.param_groups.1.0.exp_avg"),
                             dict.at("state.param_groups.0.0.exp_avg")))
        << "of the scale";
    EXPECT_TRUE(torch::equal(back.at("state.param_groups.0.0.exp_avg"),
                             dict.at("state.param_groups.1.0.exp_avg")))
        << "of the shift";
    EXPECT_FALSE(torch::equal(dict.at("state.param_groups.1.0.exp_avg"),
                              dict.at("state.param_groups.0.0.exp_avg")));
  });
}

}  // namespace optimizer_groups_test
}  // namespace smp
