// smp::DistributedOptimizer against a plain LibTorch optimizer in one process: several models,
// tensors of no model, groups, shared modules; and models that share modules or follow each other.
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "api/chain_model.h"
#include "smp/checkpoint.h"

namespace smp {
namespace optimizer_test {

using at::Tensor;
using testing::HasSubstr;

torch::optim::SGD make_sgd(const std::vector<Tensor>& first, const std::vector<Tensor>& second) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(first, std::make_unique<torch::optim::SGDOptions>(0.1));
  groups.back().options().set_lr(0.1);
  auto options = std::make_unique<torch::optim::SGDOptions>(0.02);
  options->momentum(0.9).weight_decay(0.01);
  groups.emplace_back(second, std::move(options));
  return torch::optim::SGD(std::move(groups), torch::optim::SGDOptions(0.1));
}

std::vector<Tensor> joined(std::vector<Tensor> a, const std::vector<Tensor>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Tensor outside() { return torch::full({2}, 1.5, torch::kDouble).requires_grad_(); }

void pin(DistributedModel<Chain>& model, int shift) {
  model.set_partition("", 0);
  model.set_partition("b", (1 + shift) % size());
  model.set_partition("c", (2 + shift) % size());
}

// ---- what one optimizer may have ---------------------------------------------------------------

TEST(DistributedOptimizer, OfSeveralModelsAndTensorsOfNoneEqualsOneProcess) {
  constexpr int kSteps = 4;
  const auto loss_of = [](const Tensor& a, const Tensor& b, const Tensor& scale) {
    return ((a - b) * scale).square().sum() + scale.sum();
  };
  auto plain_a = make_chain();
  auto plain_b = make_chain();
  const auto plain_scale = outside();
  auto plain = make_sgd(plain_a->parameters(), joined({plain_scale}, plain_b->parameters()));
  for (int step = 0; step < kSteps; ++step) {
    for (const auto& x : rows(4).chunk(2)) {
      (loss_of(plain_a(x), plain_b(x * 2), plain_scale) / 2).backward();
    }
    plain.step();
    plain.zero_grad();
  }
  for (const int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    on_ranks(ranks, [&] {
      DistributedModel<Chain> a(make_chain()), b(make_chain());
      pin(a, 0);
      pin(b, 1);
      const auto scale = outside();
      DistributedOptimizer optimizer({a, b},
                                     make_sgd(a.parameters(), joined({scale}, b.parameters())));
      auto train = smp::step([&](Tensor x) {
        if (!is_tracing()) a.backward(loss_of(a(x), b(x * 2), scale));
      });
      for (int step = 0; step < kSteps; ++step) {
        train(rows(4));
        optimizer.step();
        optimizer.zero_grad();
      }
      expect_close(scale.detach(), plain_scale.detach(), "scale");  // on every rank
      for (const auto& [model, reference] : {std::pair(&a, plain_a), std::pair(&b, plain_b)}) {
        const auto expected = reference->named_parameters();
        for (auto& [name, parameter] : model->local_named_parameters()) {
          expect_close(parameter.detach(), expected[name].detach(), name);
        }
      }
    });
  }
}

TEST(DistributedOptimizer, StepsAParameterThatIsGivenTwiceOnce) {
  auto plain = FarModel::make();
  torch::optim::SGD reference(plain->parameters(), 0.1);
  for (const auto& x : rows(4).chunk(2)) (plain(x).sum() / 2).backward();
  reference.step();
  on_ranks(2, [&] {
    FarModel own;
    const auto all = own.model.parameters();
    DistributedOptimizer optimizer(own.model, torch::optim::SGD(joined(all, all), 0.1));
    auto train = smp::step([&](Tensor x) {
      if (!is_tracing()) own.model.backward(own.model(x).sum());
    });
    train(rows(4));
    optimizer.step();
    if (rank() == 1) {
      expect_close(own.far()->linear->weight.detach(), plain->far->linear->weight.detach(),
                   "weight");
    }
  });
}

using Chosen = std::unique_ptr<torch::optim::Optimizer>;
using Choose = std::function<Chosen(const std::vector<Tensor>&)>;

/// What a job may read from its command line.
std::map<std::string, Choose> choices() {
  using namespace torch::optim;
  const auto of = []<class Kind, class Options>(std::type_identity<Kind>, Options options) {
    return [options](const std::vector<Tensor>& all) {
      return Chosen(std::make_unique<Kind>(all, options));
    };
  };
  return {{"SGD", of(std::type_identity<SGD>(), SGDOptions(0.1).momentum(0.9))},
          {"Adam", of(std::type_identity<Adam>(), AdamOptions(0.1))},
          {"AdamW", of(std::type_identity<AdamW>(), AdamWOptions(0.1))},
          {"Adagrad", of(std::type_identity<Adagrad>(), AdagradOptions(0.1))},
          {"RMSprop", of(std::type_identity<RMSprop>(), RMSpropOptions(0.1).centered(true))}};
}

TEST(DistributedOptimizer, ChosenAtRunTimeEqualsOneProcess) {
  for (const auto& [name, choose] : choices()) {
    SCOPED_TRACE(name);
    auto plain = FarModel::make();
    const auto reference = choose(plain->parameters());
    for (int step = 0; step < 3; ++step) {
      reference->zero_grad();
      for (const auto& x : rows(4).chunk(2)) (plain(x).sum() / 2).backward();
      reference->step();
    }
    on_ranks(2, [&plain = plain, &choose = choose] {
      FarModel own;
      DistributedOptimizer optimizer(own.model, choose(own.model.parameters()));
      auto train = smp::step([&](Tensor x) { own.model.backward(own.model(x).sum()); });
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        train(rows(4));
        optimizer.step();
      }
      std::stringstream file;
      EXPECT_THAT(refusal<UsageError>([&] { torch::save(*optimizer, file); }),
                  HasSubstr("smp::optimizer_state_dict()"));
      const auto state = optimizer_state_dict(own.model, optimizer);
      load_optimizer_state_dict(own.model, optimizer, state);
      if (rank() == 1) {
        expect_close(own.far()->linear->weight.detach(), plain->far->linear->weight.detach(),
                     "weight");
      }
    });
  }
}

/// Has more than its base has.
struct CountingSgd : torch::optim::SGD {
  using SGD::SGD;
  Tensor step(LossClosure closure = nullptr) override {
    ++steps;
    return SGD::step(std::move(closure));
  }
  int steps = 0;
};

TEST(DistributedOptimizer, ChosenAtRunTimeKeepsAClassOfTheUsersOwn) {
  on_ranks(1, [] {
    FarModel own;
    auto made = std::make_unique<CountingSgd>(own.model.parameters(), 0.1);
    const auto* const counting = made.get();
    DistributedOptimizer optimizer(own.model, Chosen(std::move(made)));
    smp::step([&](Tensor x) { own.model.backward(own.model(x).sum()); })(rows(4));
    optimizer.step();
    EXPECT_EQ(counting->steps, 1);
    EXPECT_EQ(&*optimizer, counting);
    auto again = std::make_unique<CountingSgd>(own.model.parameters(), 0.1);
    DistributedOptimizer<CountingSgd> of_its_class(own.model, std::move(again));
    of_its_class.step();
    EXPECT_EQ(of_its_class->steps, 1);
    EXPECT_NE(dynamic_cast<detail::OptimizerGuards*>(&*of_its_class), nullptr);
    EXPECT_THAT(refusal<UsageError>([&] { DistributedOptimizer none(own.model, Chosen()); }),
                HasSubstr("a pointer to no optimizer"));
  });
}

/// torch::save() of all ranks into one file would keep the state of one.
TEST(DistributedOptimizer, IsWrittenByItselfOnlyWhereItIsWhole) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    on_ranks(ranks, [ranks] {
      FarModel own;
      DistributedOptimizer optimizer(own.model, torch::optim::Adam(own.model.parameters(), 0.1));
      std::stringstream file;
      EXPECT_EQ(refusal<UsageError>([&] { torch::save(*optimizer, file); }), "accepted")
          << "nothing is placed yet";
      smp::step([&](Tensor x) { own.model.backward(own.model(x).sum()); })(rows(4));
      optimizer.step();
      for (const bool load : {false, true}) {
        const auto answer = refusal<UsageError>([&] {
          if (load) {
            torch::load(*optimizer, file);
          } else {
            std::stringstream after;
            torch::save(*optimizer, after);
          }
        });
        if (ranks == 1) {
          EXPECT_EQ(answer, "accepted");
        } else {
          EXPECT_THAT(answer, HasSubstr(load ? "torch::load()" : "torch::save()"));
          EXPECT_THAT(answer, HasSubstr("smp::optimizer_state_dict()"));
        }
      }
    });
  }
}

TEST(DistributedOptimizer, EveryRankMayWriteItsStateDict) {
  const auto path =
      testing::TempDir() + "smp_optimizer_" + std::to_string(::getpid()) + ".safetensors";
  on_ranks(2, [&] {
    FarModel own;
    DistributedOptimizer optimizer(own.model, torch::optim::Adam(own.model.parameters(), 0.1));
    smp::step([&](Tensor x) { own.model.backward(own.model(x).sum()); })(rows(4));
    optimizer.step();
    const auto state = optimizer_state_dict(own.model, optimizer);
    EXPECT_EQ(state.empty(), rank() == 1);
    if (rank() == 1) barrier();
    save_safetensors(state, path);  // first rank 0, then rank 1, which has nothing
    if (rank() == 0) barrier();
    barrier();
    load_optimizer_state_dict(own.model, optimizer,
                              rank() == 0 ? load_safetensors(path) : StateDict());
  });
  std::remove(path.c_str());
}

TEST(DistributedOptimizer, IsNotSteppedInABody) {
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [] {
      FarModel own;
      DistributedOptimizer optimizer(own.model, torch::optim::SGD(own.model.parameters(), 0.1));
      for (const bool zero : {false, true}) {
        auto wrong = smp::step([&](Tensor x) {
          if (is_tracing()) return;
          own.model.backward(own.model(x).sum());
          zero ? optimizer.zero_grad() : optimizer.step();
        });
        EXPECT_THAT(refused_step<UsageError>(0, [&] { wrong(rows(4)); }),
                    HasSubstr("in the body of a step"));
      }
      optimizer.zero_grad();
    });
  }
}

TEST(DistributedOptimizer, ATensorOfNoModelWithGradientsOnTwoRanksIsRefused) {
  on_ranks(2, [] {
    FarModel own;
    auto scale = outside();
    DistributedOptimizer optimizer(own.model, torch::optim::SGD({scale}, 0.1));
    own.model.place();
    scale.mutable_grad() = torch::ones({2}, torch::kDouble);
    EXPECT_THAT(refusal<UsageError>([&] { optimizer.step(); }), HasSubstr("on stages 0 and 1"));
  });
}

// ---- models that share modules -----------------------------------------------------------------

struct HeadedImpl : torch::nn::Module {
  explicit HeadedImpl(Chain shared)
      : trunk(register_module("trunk", std::move(shared))),
        head(register_module("head", nn::Linear(2, 2))) {
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) { return head(trunk(x)); }
  Chain trunk;
  nn::Linear head;
};
SMP_MODULE(Headed);

struct Shared {
  Shared() : trunk(make_chain()), a(trunk), b(trunk) {}
  std::vector<Tensor> parameters() const { return joined(a->parameters(), b->head->parameters()); }
  Chain trunk;
  Headed a, b;
};

Tensor shared_loss(const Tensor& a, const Tensor& b) { return a.sum() + (a * b).square().sum(); }

TEST(SeveralWrappers, OverASharedTrunkEqualOneProcess) {
  Shared plain;
  torch::optim::SGD reference(plain.parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    for (const auto& x : rows(4).chunk(2)) {
      (shared_loss(plain.a(x), plain.b(x * 0.5)) / 2).backward();
    }
    reference.step();
    reference.zero_grad();
  }
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    on_ranks(ranks, [&] {
      Shared own;
      DistributedModel a(own.a), b(own.b);
      a.set_partition("", 0);
      a.set_partition("trunk.b", size() - 1);
      DistributedOptimizer optimizer({a, b}, torch::optim::SGD(own.parameters(), 0.1));
      auto train = smp::step([&](Tensor x) {
        if (!is_tracing()) a.backward(shared_loss(a(x), b(x * 0.5)));
      });
      for (int step = 0; step < 3; ++step) {
        train(rows(4));
        optimizer.step();
        optimizer.zero_grad();
      }
      for (const auto& [model, net] : {std::pair<DistributedModelBase*, Headed>(&a, plain.a),
                                       std::pair<DistributedModelBase*, Headed>(&b, plain.b)}) {
        const auto expected = net->named_parameters();
        for (auto& [name, parameter] : model->local_named_parameters()) {
          expect_close(parameter.detach(), expected[name].detach(), name);
        }
      }
    });
  }
}

TEST(SeveralWrappers, OneAfterTheOtherAndOfAPartKeepTheValues) {
  auto plain = make_chain();
  const auto expected = plain(rows(4)).detach();
  const auto expected_part = plain->a(rows(4)).detach();
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    on_ranks(ranks, [&] {
      auto net = make_chain();
      {
        DistributedModel<Chain> first(net);
        pin(first, 0);
        auto look = smp::step([&](Tensor x) { return first(x); });
        expect_close(look(rows(4)).concat(), expected, "first");
      }
      DistributedModel<Chain> second(net);
      auto look = smp::step([&](Tensor x) { return second(x); });
      expect_close(look(rows(4)).concat(), expected, "second");
      {
        DistributedModel part(net->a);  // on stage 0
        auto look_at_part = smp::step([&](Tensor x) { return part(x); });
        expect_close(look_at_part(rows(4)).concat(), expected_part, "part");
      }
      expect_close(look(rows(4)).concat(), expected, "again");
    });
  }
}

TEST(SeveralWrappers, AModuleThatIsPlacedStaysWhereItIs) {
  on_ranks(2, [] {
    auto net = make_chain();
    DistributedModel<Chain> whole(net);
    whole.set_partition("", 0);
    whole.set_partition("b", 1);
    whole.place();
    DistributedModel part(net->b);
    EXPECT_THAT(refusal<UsageError>([&] { part.place(); }),
                HasSubstr("placed it on stage 1, but a model of its own begins on stage 0"));
    part.set_partition("", 0);
    EXPECT_THAT(refusal<UsageError>([&] { part.place(); }),
                HasSubstr("placed this module on stage 1"));
  });
}

}  // namespace optimizer_test
}  // namespace smp
