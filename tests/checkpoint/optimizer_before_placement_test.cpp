// What is loaded into an optimizer before its model is placed is a copy, and has its place in the
// order of what the program does.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "api/chain_model.h"
#include "smp/checkpoint.h"

namespace smp {
namespace optimizer_before_placement_test {

using at::Tensor;
using testing::HasSubstr;
using torch::optim::Adam;
using torch::optim::AdamOptions;

constexpr double kLr = 0.05;

/// Not placed.
struct Own {
  explicit Own(bool delayed, int shift = 0)
      : net(build(delayed)), model(net), optimizer(model, Adam(model.parameters(), kLr)) {
    model.set_partition("", 0);
    model.set_partition("b", (1 + shift) % size());
    model.set_partition("c", (2 + shift) % size());
  }
  static Chain build(bool delayed) {
    torch::manual_seed(7);
    if (!delayed) return {};
    delay_param_initialization delay;
    return {};
  }
  void train(int steps = 1) {
    auto run = smp::step([&](Tensor x) { model.backward(model(x).square().sum()); });
    for (int i = 0; i < steps; ++i) {
      optimizer.zero_grad();
      run(rows(4));
      optimizer.step();
    }
  }
  StateDict state() { return optimizer_state_dict(model, optimizer, kAllPpRanks); }
  Chain net;
  DistributedModel<Chain> model;
  DistributedOptimizer<Adam> optimizer;
};

StateDict copy_of(const StateDict& dict) {
  StateDict copy;
  for (const auto& [name, tensor] : dict) copy.insert(name, tensor.clone());
  return copy;
}

void expect_equal(const StateDict& got, const StateDict& expected) {
  EXPECT_THAT(got.names(), testing::UnorderedElementsAreArray(expected.names()));
  for (const auto& [name, tensor] : expected) {
    if (!got.contains(name)) continue;
    EXPECT_TRUE(torch::equal(got.at(name), tensor)) << name;
  }
}

/// Runs on 1 to 3 ranks, with delayed initialisation and without; `saved` is of two steps.
void on_all(const std::function<void(bool delayed, const StateDict& saved)>& test) {
  for (const int ranks : {1, 2, 3}) {
    for (const bool delayed : {false, true}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << (delayed ? "delayed" : "at once"));
      on_ranks(ranks, [&] {
        StateDict saved;
        {
          Own trained(delayed);
          trained.train(2);
          saved = copy_of(trained.state());
        }
        test(delayed, saved);
      });
    }
  }
}

TEST(OptimizerBeforePlacement, WhatIsDoneToTheDictAfterwardsChangesNothing) {
  on_all([](bool delayed, const StateDict& saved) {
    Own own(delayed, 1);
    auto dict = rank() == size() - 1 ? copy_of(saved) : StateDict();
    load_optimizer_state_dict(own.model, own.optimizer, dict);
    for (const auto& [name, tensor] : dict) at::Tensor(tensor).zero_();
    own.model.place();
    expect_equal(own.state(), saved);
  });
}

TEST(OptimizerBeforePlacement, WhatTheProgramSetsAfterwardsWins) {
  on_all([](bool delayed, const StateDict& saved) {
    Own own(delayed);
    own.optimizer.param_groups()[0].options().set_lr(3);
    load_optimizer_state_dict(own.model, own.optimizer, saved);
    EXPECT_EQ(own.optimizer.param_groups()[0].options().get_lr(), kLr);
    own.optimizer.param_groups()[0].options().set_lr(0.5);
    own.model.place();
    EXPECT_EQ(own.optimizer.param_groups()[0].options().get_lr(), 0.5);
    auto expected = copy_of(saved);
    expected.erase("param_groups.0.lr");
    expected.insert("param_groups.0.lr", torch::tensor(0.5, torch::kDouble));
    expect_equal(own.state(), expected);
  });
}

TEST(OptimizerBeforePlacement, OfTwoLoadsTheLaterCounts) {
  on_all([](bool delayed, const StateDict& saved) {
    auto other = copy_of(saved);
    for (const auto& [name, tensor] : other) {
      if (name.ends_with("exp_avg")) at::Tensor(tensor).mul_(2);
    }
    for (const char* field : {"step", "exp_avg", "exp_avg_sq"}) {
      other.erase(std::string("state.c.linear.bias.") + field);
    }
    Own own(delayed);
    load_optimizer_state_dict(own.model, own.optimizer, saved);
    load_optimizer_state_dict(own.model, own.optimizer, other);
    own.model.place();
    expect_equal(own.state(), other);
  });
}

/// Before anything is placed: what was loaded is there for whoever asks.
TEST(OptimizerBeforePlacement, IsSavedAgain) {
  on_all([](bool delayed, const StateDict& saved) {
    Own own(delayed);
    load_optimizer_state_dict(own.model, own.optimizer, saved);
    expect_equal(own.state(), saved);
    own.model.place();
    expect_equal(own.state(), saved);
    for (auto& [key, state] : own.optimizer->state()) {
      bool here = false;
      for (const auto& parameter : own.model.local_parameters()) {
        here |= parameter.unsafeGetTensorImpl() == key;
      }
      EXPECT_TRUE(here) << "state of another rank's parameter";
    }
  });
}

/// By gradients that the program has made itself; the loaded state is what it goes on from.
TEST(OptimizerBeforePlacement, IsThereForAStep) {
  for (const bool of_libtorch : {false, true}) {
    on_ranks(2, [&] {
      StateDict saved;
      {
        Own trained(false);
        trained.train(2);
        saved = copy_of(trained.state());
      }
      Own own(false);
      load_optimizer_state_dict(own.model, own.optimizer, saved);
      for (const auto& parameter : own.model.parameters()) {
        parameter.mutable_grad() = torch::ones_like(parameter);
      }
      of_libtorch ? static_cast<void>(own.optimizer->step()) : own.optimizer.step();
      own.model.place();
      const auto now = own.state();
      EXPECT_EQ(now.at("state.a.linear.bias.step").item<std::int64_t>(), 3);
      EXPECT_EQ(now.at("state.b.linear.bias.step").item<std::int64_t>(), 3);
      const auto expected = saved.at("state.b.linear.bias.exp_avg") * 0.9 + 0.1;
      expect_close(now.at("state.b.linear.bias.exp_avg"), expected, "exp_avg");
    });
  }
}

TEST(OptimizerBeforePlacement, IsWrittenByLibTorchWhereTheRankHasAll) {
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&] {
      StateDict saved;
      {
        Own trained(false);
        trained.train(2);
        saved = copy_of(trained.state());
      }
      Own own(false);
      load_optimizer_state_dict(own.model, own.optimizer, saved);
      std::stringstream file;
      const auto said = refusal([&] {
        if (rank() == 0) torch::save(*own.optimizer, file);
      });
      if (ranks == 2) {
        EXPECT_THAT(said, rank() == 0 ? HasSubstr("place()") : HasSubstr("accepted"));
        return;
      }
      auto net = make_chain();
      Adam read(net->parameters(), 1);
      torch::load(read, file);
      void* const key = net->b->linear->bias.unsafeGetTensorImpl();
      const auto& state = static_cast<torch::optim::AdamParamState&>(*read.state().at(key));
      EXPECT_EQ(state.step(), 2);
    });
  }
}

/// Adagrad has state from its construction, and parameters without values give it none.
TEST(OptimizerBeforePlacement, OfAdagradIsSaved) {
  on_ranks(2, [] {
    for (const bool delayed : {false, true}) {
      Chain net = Own::build(delayed);
      DistributedModel model(net);
      model.set_partition("", 0);
      model.set_partition("b", 1);
      DistributedOptimizer optimizer(
          model,
          torch::optim::Adagrad(model.parameters(),
                                torch::optim::AdagradOptions(0.1).initial_accumulator_value(0.5)));
      for (const bool placed : {false, true}) {
        if (placed) model.place();
        const auto dict = optimizer_state_dict(model, optimizer, kAllPpRanks);
        for (const char* name : {"state.a.linear.bias.sum", "state.b.linear.bias.sum"}) {
          EXPECT_TRUE(torch::equal(dict.at(name), torch::full({4}, 0.5, torch::kDouble))) << name;
        }
      }
    }
  });
}

/// A group that joins between the load and the placement has no state.
TEST(OptimizerBeforePlacement, LeavesGroupsThatJoinLaterAlone) {
  on_all([](bool delayed, const StateDict&) {
    Chain net = Own::build(delayed);
    DistributedModel model(net);
    model.set_partition("", 0);
    model.set_partition("b", size() - 1);
    DistributedOptimizer optimizer(model, Adam(net->a->parameters(), kLr));
    StateDict saved = optimizer_state_dict(model, optimizer, kAllPpRanks);
    saved.insert("state.a.linear.bias.step", torch::tensor(5));
    saved.insert("state.a.linear.bias.exp_avg", torch::ones({4}));
    saved.insert("state.a.linear.bias.exp_avg_sq", torch::ones({4}));
    load_optimizer_state_dict(model, optimizer, saved);
    optimizer->add_param_group({net->b->parameters(), std::make_unique<AdamOptions>(0.25)});
    model.place();
    const auto now = optimizer_state_dict(model, optimizer, kAllPpRanks);
    EXPECT_EQ(now.at("state.a.linear.bias.step").item<std::int64_t>(), 5);
    EXPECT_EQ(now.at("param_groups.1.lr").item<double>(), 0.25);
    EXPECT_FALSE(now.contains("state.b.linear.bias.step"));
  });
}

}  // namespace optimizer_before_placement_test
}  // namespace smp
