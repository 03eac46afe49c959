// An infinity in one gradient of one rank, whichever it is: on one stage, in one slice, in one
// replica, in what only one of several optimizers steps. Every rank skips that step.
#include <gmock/gmock.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "smp/precision/grad_scaler.h"
#include "smp/smp.h"
#include "smp/tp.h"

namespace smp {
namespace scaler_layouts_test {

using at::Tensor;

struct Layout {
  int ranks, pp, tp;
  bool sharded = false;
  const char* precision = "";

  Config config() const {
    Config config;
    config.pipeline_parallel_degree = pp;
    config.tensor_parallel_degree = tp;
    config.microbatches = 2;
    config.shard_optimizer_state = sharded;
    config.precision = precision;
    config.plan_cache = "off";
    return config;
  }
};

void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.ranks << " ranks, pp " << layout.pp << ", tp " << layout.tp
       << (layout.sharded ? ", sharded state " : " ") << layout.precision;
}

const std::vector<Layout> kLayouts{{2, 2, 1},
                                   {2, 1, 2},
                                   {2, 1, 1},
                                   {2, 1, 1, true},
                                   {4, 2, 1, true},
                                   {8, 2, 2, false, "fp16"},
                                   {8, 2, 2, true, "bf16"}};

struct NetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return last(first(x).tanh()); }
  nn::DistributedLinear first = register_module("first", nn::DistributedLinear(4, 8));
  nn::Linear last = register_module("last", nn::Linear(8, 2));
};
SMP_MODULE(Net);

/// The net on the first and the last stage.
struct Trained {
  Trained() : net(made()), model(net) {
    model.set_partition("", 0);
    model.set_partition("last", pp_size() - 1);
  }
  void train(const GradScaler& scaler) {
    auto run = smp::step([&](const Tensor& x) {
      if (is_tracing()) return;
      const auto scores = model(x.to(net->last->weight.scalar_type()));
      model.backward(scaler.scale(scores.to(at::kFloat).square().mean()));
    });
    run(torch::linspace(-1, 1, 16).view({4, 4}));
  }
  std::vector<Tensor> values() const {
    std::vector<Tensor> all;
    for (const auto& parameter : model.local_parameters())
      all.push_back(parameter.detach().clone());
    return all;
  }

  Net net;
  DistributedModel<Net> model;

 private:
  static Net made() {
    torch::manual_seed(3);
    return {};
  }
};

/// Makes one element of the first gradient that this rank has infinite, or no number. Returns 1 if
/// it has a gradient.
int spoil(const std::vector<Tensor>& parameters, float value) {
  for (const auto& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    Tensor(parameter).mutable_grad().flatten()[0].fill_(value);
    return 1;
  }
  return 0;
}

void expect_unchanged(const std::vector<Tensor>& now, const std::vector<Tensor>& before) {
  ASSERT_EQ(now.size(), before.size());
  for (std::size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(torch::equal(now[i], before[i])) << i;
}

/// Trains three steps; the gradients of the second one are spoilt on rank `bad`. With sharded state
/// a rank may have none: then nothing is skipped.
void expect_one_skipped_step(int bad, bool sharded) {
  Trained own;
  DistributedOptimizer optimizer(own.model, torch::optim::AdamW(own.model.parameters(), 0.1));
  GradScaler scaler({.init_scale = 64, .growth_interval = 100});
  int skipped = 0;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    own.train(scaler);
    int spoilt = 0;
    if (step == 1 && rank() == bad) {
      spoilt = spoil(own.model.local_parameters(), bad % 2 == 0 ? INFINITY : NAN);
    }
    const bool skips = all_gather(spoilt).at(static_cast<std::size_t>(bad)) == 1;
    EXPECT_TRUE(skips || step != 1 || sharded);
    skipped += skips ? 1 : 0;
    const auto before = own.values();
    EXPECT_EQ(scaler.step(optimizer), !skips) << "rank " << rank();
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), skipped == 0 ? 64 : 32);
    if (skips) expect_unchanged(own.values(), before);
  }
  EXPECT_EQ(scaler.skipped_steps(), skipped);
}

TEST(ScalerLayouts, WhateverRankFindsAnInfinityAllSkip) {
  for (const auto& layout : kLayouts) {
    for (int bad = 0; bad < layout.ranks; ++bad) {
      SCOPED_TRACE(testing::PrintToString(layout) + ", infinite on rank " + std::to_string(bad));
      run_local(layout.ranks, [&] { expect_one_skipped_step(bad, layout.sharded); },
                layout.config(), {.seed = 1});
    }
  }
}

/// Of two optimizers the parameters of one are spoilt, on rank `bad` or the nearest one before it
/// that has some.
void expect_one_of_two_skips(int bad, bool last_is_bad) {
  Trained own;
  const auto sgd = [](const std::vector<Tensor>& parameters) {
    return torch::optim::SGD(parameters, 0.1);
  };
  const auto firsts = own.net->first->parameters(), lasts = own.net->last->parameters();
  DistributedOptimizer first(own.model, sgd(firsts)), last(own.model, sgd(lasts));
  GradScaler scaler({.init_scale = 64, .growth_interval = 100});
  own.train(scaler);
  const auto& spoilt = last_is_bad ? lasts : firsts;
  const auto has = all_gather(own.model.owns(spoilt[0]) ? 1 : 0);
  while (has.at(static_cast<std::size_t>(bad)) == 0) bad = (bad + size() - 1) % size();
  if (rank() == bad) spoil(spoilt, INFINITY);
  const auto before = own.values();
  EXPECT_EQ(scaler.step(first), last_is_bad);
  EXPECT_EQ(scaler.step(last), !last_is_bad);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 32);
  EXPECT_EQ(scaler.skipped_steps(), 1);
  std::size_t i = 0;
  for (const auto& [name, value] : own.model.local_named_parameters()) {
    const bool of_last = name.rfind("last.", 0) == 0;
    EXPECT_EQ(torch::equal(value, before.at(i++)), of_last == last_is_bad) << name;
  }
}

/// As Python's: each optimizer skips for itself, and one that does is enough for a smaller factor.
TEST(ScalerLayouts, OfTwoOptimizersTheOneWithAnInfinitySkipsEverywhere) {
  for (const auto& layout : {Layout{2, 2, 1}, Layout{2, 1, 2}, Layout{2, 1, 1}, Layout{8, 2, 2}}) {
    for (int bad = 0; bad < layout.ranks; ++bad) {
      for (const bool last_is_bad : {false, true}) {
        SCOPED_TRACE(testing::PrintToString(layout) + ", rank " + std::to_string(bad));
        run_local(layout.ranks, [&] { expect_one_of_two_skips(bad, last_is_bad); }, layout.config(),
                  {.seed = 1});
      }
    }
  }
}

/// A batch of one replica with an infinity in it: the gradients of all are infinite.
TEST(ScalerLayouts, AnInfiniteBatchOfOneReplicaIsSkippedByAll) {
  for (const bool sharded : {false, true}) {
    const Layout layout{4, 2, 1, sharded};
    run_local(layout.ranks,
              [] {
                Trained own;
                DistributedOptimizer optimizer(own.model,
                                               torch::optim::SGD(own.model.parameters(), 0.1));
                GradScaler scaler;
                auto run = smp::step([&](const Tensor& x) {
                  if (is_tracing()) return;
                  own.model.backward(scaler.scale(own.model(x).square().mean()));
                });
                auto batch = torch::ones({4, 4});
                if (rdp_rank() == 1) batch[3][0] = NAN;
                own.model.place();
                const auto before = own.values();
                run(batch);
                EXPECT_FALSE(scaler.step(optimizer));
                expect_unchanged(own.values(), before);
              },
              layout.config(), {.seed = 1});
  }
}

}  // namespace scaler_layouts_test
}  // namespace smp
