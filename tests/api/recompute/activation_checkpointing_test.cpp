// Activation checkpointing: the bits without it, and what is kept.
#include "smp/recompute/activation_checkpointing.h"

#include <torch/types.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "api/chain_model.h"

namespace smp {
namespace activation_checkpointing_test {

using at::Tensor;
using testing::HasSubstr;

int forwards = 0;

/// Draws, keeps running statistics, calls another module, writes its argument and its own values in
/// place, and gives two results, of which one may go unused.
struct MixedImpl : torch::nn::Module {
  explicit MixedImpl(double probability = 0.5)
      : first(register_module("first", nn::Linear(3, 4))),
        norm(register_module("norm", nn::BatchNorm1d(4))),
        inner(register_module("inner", nn::Linear(4, 3))),
        drop(register_module("drop", nn::Dropout(probability))) {
    to(torch::kDouble);
  }
  std::tuple<Tensor, Tensor> forward(Tensor x) {
    ++forwards;
    x.add_(1);
    auto h = drop(norm(first(x)).tanh());
    h.mul_(2);
    const auto y = drop(inner(h.sigmoid()));
    return {y * x.exp(), h.sum(-1)};
  }
  nn::Linear first;
  nn::BatchNorm1d norm;
  nn::Linear inner;
  nn::Dropout drop;
};
SMP_MODULE(Mixed);

struct StackImpl : torch::nn::Module {
  StackImpl() {
    for (int i = 0; i < 3; ++i) blocks->push_back(Mixed());
    register_module("blocks", blocks);
  }
  Tensor forward(const Tensor& x) {
    Tensor y = x * 1;
    for (const auto& block : *blocks) {
      const auto [main, side] = block->as<Mixed>()->forward(y);
      y = main + (block == *blocks->begin() ? side.unsqueeze(-1) : torch::zeros({}, x.options()));
    }
    return y;
  }
  nn::ModuleList blocks;
};
SMP_MODULE(Stack);

Stack make_stack() {
  torch::manual_seed(3);
  return {};
}

std::vector<Tensor> state_of(const Stack& net) {
  std::vector<Tensor> all;
  for (const auto& parameter : net->parameters()) {
    all.push_back(parameter.detach().clone());
    all.push_back(parameter.grad().defined() ? parameter.grad().clone() : Tensor());
  }
  for (const auto& buffer : net->buffers()) all.push_back(buffer.clone());
  return all;
}

void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].defined(), b[i].defined()) << i;
    if (a[i].defined()) {
      EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
    }
  }
}

// ---- in one process, outside of steps ----------------------------------------------------------

TEST(ActivationCheckpointing, AloneGivesTheSameBits) {
  std::vector<std::vector<Tensor>> states;
  std::vector<Tensor> draws;
  for (const bool checkpointed : {false, true}) {
    auto net = make_stack();
    if (checkpointed) set_activation_checkpointing(net->blocks);
    forwards = 0;
    torch::manual_seed(5);
    for (int step = 0; step < 2; ++step) net(rows(6)).square().sum().backward();
    EXPECT_EQ(forwards, checkpointed ? 12 : 6);
    states.push_back(state_of(net));
    draws.push_back(torch::rand({4}));
  }
  expect_same(states[0], states[1]);
  EXPECT_TRUE(torch::equal(draws[0], draws[1]));
}

/// The memory of a middle activation is given back with the forward.
TEST(ActivationCheckpointing, DropsWhatNodesSave) {
  nn::Linear wide(8, 8);
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made;
  const auto code = [&](const Tensor& x) {
    auto y = wide(x).exp();
    made.push_back(y.storage().getWeakStorageImpl());
    return y.sin().sum();
  };
  const auto x = torch::randn({4, 8}).requires_grad_();
  const auto held = code(x);
  EXPECT_FALSE(made.at(0).expired());
  const auto dropped = smp::checkpoint(code, x);
  EXPECT_TRUE(made.at(1).expired());
  dropped.backward();
  const auto gradient = x.grad().clone();
  x.mutable_grad().reset();
  held.backward();
  EXPECT_TRUE(torch::equal(x.grad(), gradient));
}

TEST(ActivationCheckpointing, EndsWhenTheLastTensorIsThere) {
  int tails = 0;
  const auto code = [&](const Tensor& x) {
    auto y = x.sin().cos();
    ++tails;
    return y * 2 + 1;
  };
  const auto x = torch::randn({3}).requires_grad_();
  auto y = smp::checkpoint(code, x);
  y.sum().backward();
  EXPECT_EQ(tails, 1);
  EXPECT_TRUE(torch::allclose(x.grad(), -2 * x.sin().sin() * x.cos()));
}

TEST(ActivationCheckpointing, CodeDrawsTheSameNumbers) {
  std::vector<Tensor> gradients;
  for (const bool checkpointed : {false, true}) {
    torch::manual_seed(1);
    const auto x = torch::ones({64}).requires_grad_();
    const auto code = [](const Tensor& of) { return torch::dropout(of.exp(), 0.5, true).square(); };
    auto y = checkpointed ? smp::checkpoint(code, x) : code(x);
    torch::rand({7});
    y.sum().backward();
    gradients.push_back(torch::cat({x.grad(), torch::rand({3})}));
  }
  EXPECT_TRUE(torch::equal(gradients[0], gradients[1]));
}

TEST(ActivationCheckpointing, MayBeGoneThroughTwice) {
  const auto x = torch::randn({5}).requires_grad_();
  int runs = 0;
  auto y = smp::checkpoint(
      [&](const Tensor& of) {
        ++runs;
        return of.exp() * of.sin();
      },
      x);
  const auto once = torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true)[0];
  EXPECT_TRUE(torch::equal(torch::autograd::grad({y.sum()}, {x})[0], once));
  EXPECT_EQ(runs, 2);
}

TEST(ActivationCheckpointing, WhatNeedsNoGradientRunsOnce) {
  auto net = make_stack();
  set_activation_checkpointing(net->blocks);
  forwards = 0;
  const torch::NoGradGuard no_grad;
  net(rows(4));
  EXPECT_EQ(forwards, 3);
}

TEST(ActivationCheckpointing, MarksCanBeTakenAway) {
  auto net = make_stack();
  set_activation_checkpointing(net);
  unset_activation_checkpointing(*net);
  forwards = 0;
  net(rows(4)).sum().backward();
  EXPECT_EQ(forwards, 3);
}

struct FickleImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    ++calls;
    if (kind == "shape" && calls > 1) return x.narrow(0, 0, 1).exp().expand_as(x).sin();
    if (kind == "less" && calls > 1) return x.exp();
    if (kind == "buffer") count += 1;
    if (kind == "data") count.data().add_(1);
    return x.exp().sin();
  }
  std::string kind;
  int calls = 0;
  Tensor count = register_buffer("count", torch::zeros({}));
};
SMP_MODULE(Fickle);

struct ModalImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    auto h = x.exp();
    if (is_training()) h = h * 2;
    return h.sin();
  }
};
SMP_MODULE(Modal);

/// One region, of which the inner activations are not arguments of others.
TEST(ActivationCheckpointing, OfASequentialKeepsItsArgumentsOnly) {
  for (const bool in_session : {false, true}) {
    const auto run = [&] {
      nn::Linear one(3, 3);
      Fickle two;
      nn::Sequential net(one, two, nn::Linear(3, 2));
      set_activation_checkpointing(net);
      const auto x = torch::randn({2, 3});
      const auto plain =
          torch::linear(one(x).exp().sin(), net->parameters()[2], net->parameters()[3]);
      const auto wanted = torch::autograd::grad({plain.sum()}, {one->weight})[0];
      two->calls = 0;
      net->forward<Tensor>(x).sum().backward();
      EXPECT_EQ(two->calls, 2);
      EXPECT_TRUE(torch::equal(one->weight.grad(), wanted));
    };
    in_session ? on_ranks(1, run) : run();
  }
}

/// What is switched in between is as it was, and as it is afterwards.
TEST(ActivationCheckpointing, FlagsAreThoseOfTheCall) {
  for (const bool in_session : {false, true}) {
    const auto run = [] {
      Modal net;
      set_activation_checkpointing(net);
      const auto x = torch::ones({3}).requires_grad_();
      auto y = net(x);
      net->eval();
      y.sum().backward();
      EXPECT_FALSE(net->is_training());
      EXPECT_TRUE(torch::allclose(x.grad(), 2 * x.exp() * (2 * x.exp()).cos()));
    };
    in_session ? on_ranks(1, run) : run();
  }
}

struct OfModalImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return modal(first(x)); }
  nn::Linear first = register_module("first", nn::Linear(3, 3));
  Modal modal = register_module("modal", Modal());
};
SMP_MODULE(OfModal);

TEST(ActivationCheckpointing, FlagsOfABodyAreBackAfterItsBackward) {
  on_ranks(
      1,
      [] {
        OfModal net;
        set_activation_checkpointing(net->modal);
        DistributedModel model(net);
        bool is_training = true;
        auto train = smp::step([&](const Tensor& x) {
          const auto y = model(x);
          net->modal->eval();
          if (!is_tracing()) model.backward(y.sum());
          is_training = net->modal->is_training();
          net->modal->train();
        });
        for (int step = 0; step < 2; ++step) {
          train(torch::ones({2, 3}));
          EXPECT_FALSE(is_training) << step;
        }
      },
      /*microbatches=*/1);
}

/// What a body switches after a call is not how that call runs again.
TEST(ActivationCheckpointing, FlagsInABodyAreThoseOfTheCall) {
  std::vector<Tensor> gradients;
  for (const bool checkpointed : {false, true}) {
    on_ranks(
        1,
        [&] {
          torch::manual_seed(3);
          OfModal net;
          if (checkpointed) set_activation_checkpointing(net->modal);
          DistributedModel model(net);
          auto train = smp::step([&](const Tensor& x) {
            const auto y = model(x);
            net->modal->eval();
            if (!is_tracing()) model.backward(y.sum());
            net->modal->train();
          });
          train(torch::ones({2, 3}));
          gradients.push_back(net->first->weight.grad().clone());
        },
        /*microbatches=*/1);
  }
  EXPECT_TRUE(torch::equal(gradients[0], gradients[1]));
}

/// As LibTorch does without: the second run writes what a node of it has saved.
TEST(ActivationCheckpointing, NoticesWritesToWhatIsSaved) {
  const auto x = torch::randn({3}).requires_grad_();
  const auto y = smp::checkpoint(
      [](const Tensor& of) {
        auto e = of.exp();
        e.mul_(2);
        return e.sin();
      },
      x);
  EXPECT_THAT(refusal<UsageError>([&] { y.sum().backward(); }),
              HasSubstr("modified by an inplace operation"));
}

TEST(ActivationCheckpointing, ArgumentsThatShareMemoryShareItAgain) {
  const auto x = torch::randn({4}).requires_grad_();
  const auto code = [](Tensor a, const Tensor& b, const Tensor& part) {
    a.mul_(2);
    return b.exp().sum() + part.sin().sum();
  };
  const auto plain = x * 1;
  code(plain, plain, plain.narrow(0, 1, 2)).backward();
  const auto wanted = x.grad().clone();
  x.mutable_grad().reset();
  const auto h = x * 1;
  smp::checkpoint(code, h, h, h.narrow(0, 1, 2)).backward();
  EXPECT_TRUE(torch::equal(x.grad(), wanted));
}

/// Code that catches everything meets the end of the second run, too.
TEST(ActivationCheckpointing, CodeMayCatchEverything) {
  const auto x = torch::randn({4}).requires_grad_();
  auto y = smp::checkpoint(
      [](const Tensor& of) {
        try {
          return of.exp().sin();
        } catch (...) {
          return of.cos().exp();
        }
      },
      x);
  y.sum().backward();
  EXPECT_TRUE(torch::allclose(x.grad(), x.exp() * x.exp().cos()));
}

struct CopiedImpl : torch::nn::Cloneable<CopiedImpl> {
  CopiedImpl() { reset(); }
  void reset() override {
    weight = register_parameter("weight", torch::ones({3}));
    calls = 0;
  }
  Tensor forward(const Tensor& x) {
    ++calls;
    return (x * weight).exp();
  }
  Tensor weight;
  int calls = 0;
};
SMP_MODULE(Copied);

TEST(ActivationCheckpointing, ClonesAreMarked) {
  Copied net;
  set_activation_checkpointing(net);
  Copied second(std::dynamic_pointer_cast<Copied::ContainedType>(net->clone()));
  second(torch::ones({3}).requires_grad_()).sum().backward();
  EXPECT_EQ(second->calls, 2);
}

// ---- what cannot run twice ---------------------------------------------------------------------

std::string refused_by(const std::string& kind) {
  Fickle net;
  net->kind = kind;
  set_activation_checkpointing(net);
  return refusal<Error>([&] { net(torch::ones({3}).requires_grad_()).sum().backward(); });
}

TEST(ActivationCheckpointing, NamesWhatDiffersTheSecondTime) {
  EXPECT_THAT(refused_by("shape"), HasSubstr("FickleImpl): activation checkpointing runs a call "
                                             "twice, and the second time it did something else"));
  EXPECT_THAT(refused_by("less"), HasSubstr("number 1 is missing"));
  for (const char* kind : {"buffer", "data"}) {
    EXPECT_THAT(refused_by(kind), HasSubstr("has written to parameter or buffer 'count'"));
  }
}

TEST(ActivationCheckpointing, RefusesWeightsThatChangedInBetween) {
  nn::Linear net(2, 2);
  set_activation_checkpointing(net);
  auto y = net(torch::ones({1, 2})).exp().sum();
  {
    const torch::NoGradGuard no_grad;
    net->weight.add_(1);
  }
  EXPECT_THAT(refusal<UsageError>([&] { y.backward(); }), HasSubstr("was changed between"));
}

TEST(ActivationCheckpointing, RefusesWhatIsNotRouted) {
  torch::nn::Linear plain(2, 2);
  EXPECT_THAT(refusal<UnsupportedError>([&] { set_activation_checkpointing(*plain); }),
              HasSubstr("nothing would be computed again"));
}

// ---- over ranks --------------------------------------------------------------------------------

/// The gradients that this rank owns after two steps, and the state of all, by name.
std::map<std::string, Tensor> trained(bool checkpointed, const std::vector<int>& stages) {
  auto net = make_stack();
  if (checkpointed) set_activation_checkpointing(net->blocks);
  DistributedModel model(net);
  model.set_partition("", 0);
  for (int i = 0; i < 3; ++i) {
    const auto path = "blocks." + std::to_string(i);
    model.set_partition(path, stages[i] % size());
    model.set_partition(path + ".inner", stages[3 + i] % size());
  }
  auto train = smp::step([&](Tensor x) {
    if (!is_tracing()) model.backward(model(x).square().sum());
  });
  for (int step = 0; step < 2; ++step) train(rows(8));
  std::map<std::string, Tensor> all;
  for (const auto& item : net->named_parameters()) {
    if (!model.owns(item.value())) continue;
    all[item.key()] = item.value().grad().clone();
  }
  for (const auto& [name, value] : model.state_dict(kAllPpRanks)) all["state " + name] = value;
  return all;
}

TEST(ActivationCheckpointing, OverRanksGivesTheSameBits) {
  const std::vector<std::vector<int>> placements = {
      {0, 1, 2, 0, 1, 2}, {0, 1, 0, 1, 0, 2}, {1, 1, 1, 0, 0, 0}, {0, 0, 0, 1, 2, 1}};
  for (const int ranks : {1, 2, 3}) {
    for (const auto& stages : placements) {
      for (const bool fast : {false, true}) {
        SCOPED_TRACE(ranks);
        Config config;
        config.microbatches = 4;
        config.plan_cache = "off";
        config.static_mode = fast;
        const auto run = [&](bool checkpointed) {
          std::map<std::string, Tensor> all;
          run_local(ranks,
                    [&] {
                      for (const auto& [name, value] : trained(checkpointed, stages)) {
                        all[name + " on " + std::to_string(rank())] = value;
                      }
                    },
                    config, {.seed = 1});
          return all;
        };
        const auto kept = run(false), again = run(true);
        ASSERT_EQ(kept.size(), again.size());
        for (const auto& [name, value] : kept) {
          EXPECT_TRUE(torch::equal(value, again.at(name))) << name;
        }
      }
    }
  }
}

/// Does less from the second time on.
struct WearsOutImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return ++runs > 1 ? x.exp() : x.exp().sin(); }
  static int runs;
};
int WearsOutImpl::runs = 0;
SMP_MODULE(WearsOut);

TEST(ActivationCheckpointing, NamesTheRankAndTheModule) {
  on_ranks(
      2,
      [] {
        WearsOutImpl::runs = 0;
        nn::Sequential net{Layer(3, 3), WearsOut()};
        set_activation_checkpointing(*net->ptr(1));
        DistributedModel model(net);
        model.set_partition("", 0);
        model.set_partition("1", 1);
        auto train = smp::step([&](Tensor x) {
          if (!is_tracing()) model.backward(net->forward(x).sum());
        });
        EXPECT_THAT(refused_step<UsageError>(1, [&] { train(rows(4)); }),
                    testing::AllOf(HasSubstr("rank 1: module '1' ("),
                                   HasSubstr("WearsOutImpl): activation checkpointing runs a call "
                                             "twice")));
      },
      /*microbatches=*/1);
}

/// Throws on its own rank; its caller goes on without it.
struct ThrowsImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    if (x.defined()) throw std::runtime_error("not here");
    return x;
  }
};
SMP_MODULE(Throws);

struct CatchesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    Tensor h;
    try {
      h = wrong(x);
    } catch (const std::exception&) {
      h = x * 2;
    }
    const auto e = h.exp();
    return e + far(x).sin();
  }
  Throws wrong = register_module("wrong", Throws());
  Layer far = register_module("far", Layer(3, 3));
};
SMP_MODULE(Catches);

struct RootImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return last(inner(first(x))); }
  Layer first = register_module("first", Layer(3, 3));
  Catches inner = register_module("inner", Catches());
  Layer last = register_module("last", Layer(3, 2));
};
SMP_MODULE(Root);

TEST(ActivationCheckpointing, WhatAnotherRankThrewIsThrownAgain) {
  std::map<std::string, Tensor> kept;
  for (const bool checkpointed : {false, true}) {
    on_ranks(2, [&] {
      torch::manual_seed(7);
      Root net;
      if (checkpointed) set_activation_checkpointing(net->inner);
      DistributedModel model(net);
      model.set_partition("", 0);
      model.set_partition("inner.wrong", 1);
      model.set_partition("inner.far", 1);
      auto train = smp::step([&](Tensor x) {
        if (!is_tracing()) model.backward(model(x).square().sum());
      });
      train(rows(4));
      for (const auto& [name, parameter] : model.local_named_parameters()) {
        const auto known = kept.try_emplace(name, parameter.grad().clone());
        EXPECT_TRUE(torch::equal(known.first->second, parameter.grad())) << name;
      }
    });
  }
}

}  // namespace activation_checkpointing_test
}  // namespace smp
