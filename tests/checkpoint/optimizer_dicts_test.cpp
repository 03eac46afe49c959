// A dict that does not fit an optimizer is refused by UsageError, and nothing has changed then: not
// the model, nor the optimizer's state and options, nor any generator.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "api/two_ranks.h"
#include "smp/checkpoint.h"

namespace smp {
namespace optimizer_dicts_test {

using at::Tensor;
using testing::HasSubstr;
using Change = std::function<void(StateDict&)>;

/// Two linear layers that learn, one that the optimizer does not have, and running statistics.
struct LearnerImpl : torch::nn::Module {
  LearnerImpl()
      : first(register_module("first", nn::Linear(3, 3))),
        second(register_module("second", nn::Linear(3, 3))),
        other(register_module("other", nn::Linear(3, 3))),
        norm(register_module("norm", nn::BatchNorm1d(3))) {}
  Tensor forward(const Tensor& x) { return norm(other(second(first(x)))); }
  std::vector<Tensor> learned() {
    auto parameters = first->parameters();
    for (const auto& parameter : second->parameters()) parameters.push_back(parameter);
    return parameters;
  }
  nn::Linear first, second, other;
  nn::BatchNorm1d norm;
};
SMP_MODULE(Learner);

Change put(std::string name, Tensor value) {
  return [=](StateDict& dict) {
    dict.erase(name);
    dict.insert(name, value);
  };
}
Change leave_out(std::string name) {
  return [=](StateDict& dict) { EXPECT_TRUE(dict.erase(name)) << name; };
}
Change both(Change one, Change other) {
  return [=](StateDict& dict) { one(dict), other(dict); };
}

struct Wrong {
  std::string what;
  Change change;
  std::string said;
};

constexpr const char* kLr = "param_groups.0.lr";

/// What can be wrong with the dict of any optimizer. @param field  of a state, as large as bias
std::vector<Wrong> wrongs(const std::string& field) {
  const auto bias = "state.second.bias." + field;
  const auto lr7 = put(kLr, torch::tensor(7.0));
  const auto ones = torch::ones({3});
  return {
      {"complex state", both(lr7, put(bias, torch::complex(ones, ones))), "type of " + bias},
      {"boolean state", put(bias, torch::ones({3}, torch::kBool)), "type of " + bias},
      {"integer state", put(bias, torch::ones({3}, torch::kLong)), "type of " + bias},
      {"state of another shape", put(bias, torch::ones({1})), "shape of " + bias},
      {"state of a number", put(bias, torch::ones({})), "shape of " + bias},
      {"sparse state", put(bias, ones.to_sparse()), "is no dense tensor"},
      {"state without values", put(bias, torch::ones({3}, torch::kMeta)), "has no values"},
      {"state of a buffer", put("state.norm.running_mean." + field, ones),
       "unexpected: state.norm.running_mean"},
      {"state of a parameter that the optimizer does not have",
       put("state.other.bias." + field, ones), "unexpected: state.other.bias"},
      {"state of nobody", put("state.nobody." + field, ones), "unexpected: state.nobody"},
      {"an unknown field", put("state.second.bias.nothing", ones),
       "unexpected: state.second.bias.nothing"},
      {"another name", put("first.bias", ones), "unexpected: first.bias"},
      {"another option", put("param_groups.0.nothing", torch::ones({})),
       "unexpected: param_groups.0.nothing"},
      {"a group more", put("param_groups.1.lr", torch::ones({})), "1 groups, but the dict has 2"},
      {"a group far away", put("param_groups.123456789012.lr", torch::ones({})),
       "groups, but the dict has"},
      {"lr of two numbers", put(kLr, torch::ones({2})),
       "param_groups.0.lr: Float [2], but it must be one number"},
      {"lr of none", put(kLr, torch::ones({0})), "must be one number"},
      {"complex lr", put(kLr, torch::complex(torch::ones({}), torch::ones({}))),
       "must be one number"},
      {"lr that is a truth value", put(kLr, torch::tensor(true)), "must be one number"},
      {"lr below zero", put(kLr, torch::tensor(-1.0)), "Invalid learning rate: -1"},
      {"lr that is no number", put(kLr, torch::tensor(std::nan(""))), "Invalid learning rate"},
      {"no lr", leave_out(kLr), "missing: param_groups.0.lr"},
      {"weight_decay of two numbers",
       both(lr7, put("param_groups.0.weight_decay", torch::ones({2}))),
       "param_groups.0.weight_decay"},
      {"weight_decay below zero",
       both(lr7, put("param_groups.0.weight_decay", torch::tensor(-0.1))),
       "Invalid weight_decay value"},
      {"a parameter that is not in the group", leave_out("param_groups.0.params.first.bias"),
       "the optimizer's group 0: first.bias, first.weight"},
      {"a parameter that is said to be not in the group",
       put("param_groups.0.params.first.bias", torch::tensor(false)), "is false"},
      {"a group that is a number", put("param_groups.0.params.first.bias", torch::ones({})),
       "one truth value"},
  };
}

std::vector<Wrong> wrongs_of_adam() {
  auto all = wrongs("exp_avg");
  const std::vector<Wrong> own{
      {"beta1 of two", put("param_groups.0.beta1", torch::ones({2})), "param_groups.0.beta1"},
      {"beta1 of one", put("param_groups.0.beta1", torch::tensor(1.0)),
       "Invalid beta parameter at index 0: 1"},
      {"beta2 below zero", put("param_groups.0.beta2", torch::tensor(-0.5)),
       "Invalid beta parameter at index 1"},
      {"no beta2", leave_out("param_groups.0.beta2"), "missing: param_groups.0.beta2"},
      {"amsgrad 1.0", put("param_groups.0.amsgrad", torch::tensor(1.0)), "one truth value"},
      {"amsgrad without its state", put("param_groups.0.amsgrad", torch::tensor(true)),
       "missing: state.second.bias.max_exp_avg_sq"},
      {"half a step", put("state.second.bias.step", torch::tensor(2.5)), "steps are counted"},
      {"steps below none", put("state.second.bias.step", torch::tensor(-1)), "steps are counted"},
      {"steps of two", put("state.second.bias.step", torch::ones({2})),
       "shape of state.second.bias.step"},
      {"a truth value of steps", put("state.second.bias.step", torch::tensor(true)),
       "a number of steps"},
      {"no step", leave_out("state.second.bias.step"), "missing: state.second.bias.step"},
      {"no exp_avg_sq", leave_out("state.second.bias.exp_avg_sq"),
       "missing: state.second.bias.exp_avg_sq"},
  };
  all.insert(all.end(), own.begin(), own.end());
  return all;
}

std::vector<Wrong> wrongs_of_sgd() {
  auto all = wrongs("momentum_buffer");
  const std::vector<Wrong> own{
      {"nesterov 0.5", put("param_groups.0.nesterov", torch::tensor(0.5)), "one truth value"},
      {"nesterov with dampening",
       both(put("param_groups.0.nesterov", torch::tensor(true)),
            put("param_groups.0.dampening", torch::tensor(0.1))),
       "Nesterov momentum requires a momentum and zero dampening"},
      {"no momentum", leave_out("param_groups.0.momentum"), "missing: param_groups.0.momentum"},
      {"momentum below zero", put("param_groups.0.momentum", torch::tensor(-0.9)),
       "Invalid momentum value"},
      {"another optimizer",
       [](StateDict& dict) {
         dict.erase("optimizer.SGD");
         dict.insert("optimizer.Adam", torch::tensor(1));
       },
       "no \"optimizer.SGD\""},
  };
  all.insert(all.end(), own.begin(), own.end());
  return all;
}

std::vector<Wrong> wrongs_of_rmsprop() {
  auto all = wrongs("square_avg");
  const std::vector<Wrong> own{
      {"alpha below zero", put("param_groups.0.alpha", torch::tensor(-0.9)), "Invalid alpha value"},
      {"centered without its state", put("param_groups.0.centered", torch::tensor(true)),
       "missing: state.second.bias.grad_avg"},
      {"momentum without its state", put("param_groups.0.momentum", torch::tensor(0.5)),
       "missing: state.second.bias.momentum_buffer"}};
  all.insert(all.end(), own.begin(), own.end());
  return all;
}

/// A rank with something in all that could change.
template <class Optimizer>
struct Trained {
  template <class Options>
  explicit Trained(const Options& options)
      : net((torch::manual_seed(1), Learner())),
        model(net),
        optimizer(model, Optimizer(net->learned(), options)) {
    model.set_partition("", 0);
    model.set_partition("second", size() - 1);
    model.place();
    smp::step([&](Tensor x) { model.backward(model(x).square().sum()); })(torch::rand({4, 3}));
    optimizer.step();
  }
  /// All that a load may change, from all ranks.
  StateDict everything() {
    StateDict all;
    for (const auto& [name, tensor] : model.state_dict(kAllPpRanks))
      all.insert("model." + name, tensor.clone());
    for (const auto& [name, tensor] : optimizer_state_dict(model, optimizer, kAllPpRanks)) {
      all.insert(name, tensor.clone());
    }
    all.insert("random", at::globalContext().defaultGenerator(at::kCPU).get_state().clone());
    return all;
  }
  Learner net;
  DistributedModel<Learner> model;
  DistributedOptimizer<Optimizer> optimizer;
};

void expect_same(const StateDict& got, const StateDict& expected) {
  ASSERT_EQ(got.names(), expected.names());
  for (const auto& [name, tensor] : expected)
    EXPECT_TRUE(torch::equal(got.at(name), tensor)) << name;
}

/// @param giver  the rank that has the dict, or -1: all have
template <class Optimizer, class Options>
void expect_refused(const Options& options, const std::vector<Wrong>& wrong, int ranks, int giver) {
  SCOPED_TRACE(testing::Message() << ranks << " ranks, given by " << giver);
  on_ranks(ranks, [&] {
    Trained<Optimizer> own(options);
    const auto saved = optimizer_state_dict(own.model, own.optimizer, kAllPpRanks);
    own.optimizer.step();  // so that what is saved is not what is there
    const auto before = own.everything();
    for (const auto& [what, change, said] : wrong) {
      SCOPED_TRACE(what);
      auto dict = saved;
      change(dict);
      if (giver >= 0 && rank() != giver) dict = {};
      EXPECT_THAT(refusal([&] { load_optimizer_state_dict(own.model, own.optimizer, dict); }),
                  HasSubstr(said));
      expect_same(own.everything(), before);
    }
    load_optimizer_state_dict(own.model, own.optimizer, saved);
    const auto after = optimizer_state_dict(own.model, own.optimizer, kAllPpRanks);
    for (const auto& [name, tensor] : saved)
      EXPECT_TRUE(torch::equal(after.at(name), tensor)) << name;
  });
}

template <class Optimizer, class Options>
void expect_refused(const Options& options, const std::vector<Wrong>& wrong) {
  expect_refused<Optimizer>(options, wrong, 1, -1);
  expect_refused<Optimizer>(options, wrong, 2, -1);
  expect_refused<Optimizer>(options, wrong, 2, 1);
}

TEST(OptimizerDicts, ThatDoNotFitSgdChangeNothing) {
  expect_refused<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9), wrongs_of_sgd());
}
TEST(OptimizerDicts, ThatDoNotFitAdamChangeNothing) {
  expect_refused<torch::optim::Adam>(torch::optim::AdamOptions(0.1), wrongs_of_adam());
}
TEST(OptimizerDicts, ThatDoNotFitAdamwChangeNothing) {
  expect_refused<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1), wrongs_of_adam());
}
TEST(OptimizerDicts, ThatDoNotFitRmspropChangeNothing) {
  expect_refused<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.1), wrongs_of_rmsprop());
}
TEST(OptimizerDicts, ThatDoNotFitAdagradChangeNothing) {
  expect_refused<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1), wrongs("sum"));
}

TEST(OptimizerDicts, ThatDoNotFitChangeNothingBeforePlacementEither) {
  on_ranks(2, [] {
    Trained<torch::optim::Adam> trained(torch::optim::AdamOptions(0.1));
    const auto saved = optimizer_state_dict(trained.model, trained.optimizer, kAllPpRanks);
    for (const auto& [what, change, said] : wrongs_of_adam()) {
      SCOPED_TRACE(what);
      Learner net;
      DistributedModel model(net);
      DistributedOptimizer optimizer(model, torch::optim::Adam(net->learned(), 0.25));
      auto dict = saved;
      change(dict);
      EXPECT_THAT(refusal([&] { load_optimizer_state_dict(model, optimizer, dict); }),
                  HasSubstr(said));
      EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.25);
      model.place();
      EXPECT_TRUE(optimizer->state().empty());
    }
  });
}

/// What LibTorch's own optimizers may well have.
TEST(OptimizerDicts, OfOtherTypesAndValuesAreTaken) {
  on_ranks(2, [] {
    Trained<torch::optim::Adam> own(torch::optim::AdamOptions(0.1));
    auto dict = optimizer_state_dict(own.model, own.optimizer, kAllPpRanks);
    const auto nan = std::numeric_limits<float>::quiet_NaN();
    put("state.second.bias.exp_avg", torch::full({3}, nan))(dict);
    put("state.second.bias.exp_avg_sq", torch::full({3}, 0.5, torch::kDouble))(dict);
    put("state.second.bias.step", torch::tensor(4.0F))(dict);
    put("state.first.bias.exp_avg", torch::full({3}, 0.25, torch::kHalf))(dict);
    put(kLr, torch::tensor(7))(dict);
    put("param_groups.0.eps", torch::full({1, 1}, 0.5F))(dict);
    load_optimizer_state_dict(own.model, own.optimizer, dict);
    const auto now = optimizer_state_dict(own.model, own.optimizer, kAllPpRanks);
    EXPECT_TRUE(now.at("state.second.bias.exp_avg").isnan().all().item<bool>());
    EXPECT_TRUE(torch::equal(now.at("state.second.bias.exp_avg_sq"), torch::full({3}, 0.5F)));
    EXPECT_TRUE(torch::equal(now.at("state.first.bias.exp_avg"), torch::full({3}, 0.25F)));
    EXPECT_EQ(now.at("state.second.bias.step").item<std::int64_t>(), 4);
    EXPECT_EQ(now.at(kLr).item<double>(), 7);
    EXPECT_EQ(now.at("param_groups.0.eps").item<double>(), 0.5);
  });
}

/// The parameters of one rank may be what makes an optimizer one over several models.
TEST(OptimizerDicts, OfSeveralModelsAreRefusedOnAllRanks) {
  on_ranks(2, [] {
    Learner a, b;
    DistributedModel first(a), second(b);
    first.set_partition("", 0);
    second.set_partition("", 0);
    second.set_partition("second", 1);
    DistributedOptimizer optimizer({first, second},
                                   torch::optim::SGD({a->first->bias, b->second->bias}, 0.1));
    first.place();
    second.place();
    EXPECT_THAT(refusal<UnsupportedError>(
                    [&] { static_cast<void>(optimizer_state_dict(first, optimizer)); }),
                HasSubstr("use an optimizer for each model"));
    EXPECT_THAT(refusal<UnsupportedError>([&] { load_optimizer_state_dict(first, optimizer, {}); }),
                HasSubstr("use an optimizer for each model"));
    barrier();
  });
}

}  // namespace optimizer_dicts_test
}  // namespace smp
