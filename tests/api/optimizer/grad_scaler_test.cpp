// smp::GradScaler against the rules of Python's torch.amp.GradScaler, written down for one process.
#include "smp/precision/grad_scaler.h"

#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "api/chain_model.h"

namespace smp {
namespace grad_scaler_test {

using at::Tensor;
using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kSteps = 8;

/// After which of the steps a gradient is infinite.
bool is_bad(int step) { return step == 1 || step == 4 || step == 5; }

GradScalerOptions options() { return {.init_scale = 64, .growth_interval = 2}; }

struct Trained {
  std::vector<Tensor> parameters;
  std::vector<double> scales;
};

/// What the rules say: bad steps are skipped and halve the factor, two good ones in a row double
/// it.
Trained expected() {
  auto net = make_chain();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  Trained result;
  double scale = 64;
  int good = 0;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (const auto& slice : rows(4).chunk(2)) (net(slice).square().sum() / 2).backward();
    if (is_bad(step)) {
      scale /= 2;
      good = 0;
    } else {
      optimizer.step();
      if (++good == 2) {
        scale *= 2;
        good = 0;
      }
    }
    result.scales.push_back(scale);
  }
  result.parameters = net->parameters();
  return result;
}

/// Factors that are powers of two change no bit of what they are divided by again.
TEST(GradScaler, EveryRankSkipsWhatOneFoundInfinite) {
  const auto wanted = expected();
  for (const int ranks : {1, 2, 3}) {
    for (const bool unscaled_first : {false, true}) {
      SCOPED_TRACE(ranks);
      on_ranks(ranks, [&] {
        auto net = make_chain();
        DistributedModel model(net);
        model.set_partition("", 0);
        model.set_partition("b", 1 % size());
        model.set_partition("c", size() - 1);
        DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 0.1));
        GradScaler scaler(options());
        auto train = smp::step([&](Tensor x) {
          if (!is_tracing()) model.backward(scaler.scale(model(x).square().sum()));
        });
        int skipped = 0;
        for (int step = 0; step < kSteps; ++step) {
          optimizer.zero_grad();
          train(rows(4));
          const auto& last = net->c->linear->bias;  // on one rank only
          if (is_bad(step) && model.owns(last)) last.grad()[0] = step == 4 ? NAN : kInfinity;
          if (unscaled_first) scaler.unscale_(optimizer);
          EXPECT_EQ(scaler.step(optimizer), !is_bad(step));
          scaler.update();
          skipped += is_bad(step);
          EXPECT_EQ(scaler.get_scale(), wanted.scales[step]) << step;
        }
        EXPECT_EQ(scaler.skipped_steps(), skipped);
        const auto parameters = net->parameters();
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          if (!model.owns(parameters[i])) continue;
          EXPECT_TRUE(at::allclose(parameters[i], wanted.parameters[i], 1e-12, 1e-14)) << i;
        }
      });
    }
  }
}

TEST(GradScaler, HysteresisWaitsForSeveralBadSteps) {
  on_ranks(1, [] {
    nn::Linear net(1, 1);
    DistributedModel model(net);
    model.place();
    DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 0.1));
    GradScaler scaler({.init_scale = 8, .growth_interval = 2, .hysteresis = 2});
    std::vector<double> scales;
    for (const bool bad : {true, true, true, false, false, true, false, true}) {
      net->weight.mutable_grad() = torch::full({1, 1}, bad ? kInfinity : 1.0f);
      scaler.step(optimizer);
      scaler.update();
      scales.push_back(scaler.get_scale());
    }
    EXPECT_EQ(scales, (std::vector<double>{8, 4, 2, 2, 4, 4, 4, 2}));
  });
}

TEST(GradScaler, SumsOfSparseEntriesCount) {
  on_ranks(1, [] {
    nn::Linear net(1, 1);
    DistributedModel model(net);
    model.place();
    DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 0.1));
    const auto most = std::numeric_limits<float>::max();
    net->weight.mutable_grad() = at::sparse_coo_tensor(torch::zeros({2, 2}, torch::kLong),
                                                       torch::tensor({most, most}), {1, 1});
    GradScaler scaler(options());
    EXPECT_FALSE(scaler.step(optimizer));
  });
}

TEST(GradScaler, StateGoesOnWhereItWas) {
  on_ranks(1, [] {
    nn::Linear net(1, 1);
    DistributedModel model(net);
    model.place();
    DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 0.1));
    GradScaler first(options()), second;
    const auto good_step = [&](GradScaler& scaler) {
      net->weight.mutable_grad() = torch::ones({1, 1});
      scaler.step(optimizer);
      scaler.update();
    };
    good_step(first);
    second.load_state_dict(first.state_dict());
    good_step(second);
    EXPECT_EQ(second.get_scale(), 128);
    auto damaged = first.state_dict();
    damaged.erase("scale");
    damaged.insert("scale", torch::zeros({}));
    EXPECT_THAT(refusal<UsageError>([&] { second.load_state_dict(damaged); }),
                HasSubstr("scale is 0"));
    EXPECT_EQ(second.get_scale(), 128);
  });
}

/// Python's dict has five entries.
TEST(GradScaler, TakesTheStateOfPython) {
  StateDict dict;
  for (const auto& [name, value] : std::map<std::string, double>{{"scale", 512},
                                                                 {"growth_factor", 2},
                                                                 {"backoff_factor", 0.5},
                                                                 {"growth_interval", 3},
                                                                 {"_growth_tracker", 1}}) {
    dict.insert(name, torch::full({}, value));
  }
  GradScaler scaler({.hysteresis = 2});
  scaler.load_state_dict(dict);
  EXPECT_EQ(scaler.get_scale(), 512);
  EXPECT_EQ(scaler.state_dict().at("hysteresis").item<double>(), 2);
  EXPECT_EQ(scaler.state_dict().at("growth_interval").item<double>(), 3);
  GradScaler disabled({.enabled = false});
  disabled.load_state_dict({});
}

/// Another factor on one rank would divide gradients by what they were not multiplied with.
TEST(GradScaler, RanksHaveOneFactor) {
  on_ranks(2, [] {
    auto net = make_chain();
    DistributedModel model(net);
    model.set_partition("", 0);
    model.set_partition("c", 1);
    DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 0.1));
    GradScaler scaler(options());
    auto train = smp::step([&](Tensor x) { model.backward(scaler.scale(model(x).sum())); });
    train(rows(2));
    if (rank() == 1) scaler.update(8);
    const auto& own = rank() == 0 ? net->a->linear->bias : net->c->linear->bias;
    const auto before = own.grad().clone();
    EXPECT_THAT(refusal<UsageError>([&] { scaler.step(optimizer); }),
                testing::AllOf(HasSubstr("rank 0 has scale 64"), HasSubstr("has scale 8")));
    EXPECT_TRUE(torch::equal(own.grad(), before));  // nobody has divided
  });
}

/// A loss that is no number for good: the factor has a smallest value, and goes on.
TEST(GradScaler, ManyBadStepsAreNoError) {
  on_ranks(1, [] {
    nn::Linear net(1, 1);
    DistributedModel model(net);
    model.place();
    DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 0.1));
    GradScaler scaler;
    for (int step = 0; step < 200; ++step) {
      net->weight.mutable_grad() = torch::full({1, 1}, NAN);
      EXPECT_FALSE(scaler.step(optimizer));
      scaler.update();
    }
    EXPECT_EQ(scaler.get_scale(), std::numeric_limits<float>::min());
    net->weight.mutable_grad() = torch::full({1}, 1e-38f).expand({1, 1});
    EXPECT_TRUE(scaler.step(optimizer));
    GradScaler second;
    second.load_state_dict(scaler.state_dict());
    EXPECT_EQ(second.get_scale(), scaler.get_scale());
  });
}

TEST(GradScaler, RefusesWrongOrderAndHalfGradients) {
  on_ranks(2, [] {
    auto net = make_chain();
    DistributedModel model(net);
    model.set_partition("", 0);
    model.set_partition("c", 1);
    DistributedOptimizer optimizer(model, torch::optim::SGD(net->parameters(), 0.1));
    GradScaler scaler(options());
    EXPECT_THAT(refusal<UsageError>([&] { scaler.update(); }), HasSubstr("before step()"));
    model.place();
    EXPECT_THAT(refusal<UsageError>([&] { scaler.step(optimizer); }),
                HasSubstr("no parameter of the optimizer has a gradient on any rank"));
    auto train = smp::step([&](Tensor x) { model.backward(scaler.scale(model(x).sum())); });
    train(rows(2));
    scaler.step(optimizer);
    EXPECT_THAT(refusal<UsageError>([&] { scaler.step(optimizer); }), HasSubstr("a second time"));
    EXPECT_THAT(refusal<UsageError>([&] { scaler.unscale_(optimizer); }),
                HasSubstr("after step()"));
    scaler.update();
    train(rows(2));
    const auto& last = net->c->linear->weight;
    if (model.owns(last)) {
      at::Tensor(last).set_data(last.to(at::kHalf));
      at::Tensor(last).mutable_grad() = torch::ones_like(last);
    }
    EXPECT_THAT(refusal<UsageError>([&] { scaler.step(optimizer); }), HasSubstr("is float16"));
  });
}

TEST(GradScaler, DisabledDoesNothing) {
  GradScaler scaler({.enabled = false});
  const auto loss = torch::ones({});
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  EXPECT_EQ(scaler.get_scale(), 1);
  scaler.update();
}

TEST(GradScaler, RefusesOptionsOutOfRange) {
  EXPECT_THROW(GradScaler({.init_scale = 0}), UsageError);
  EXPECT_THROW(GradScaler({.growth_factor = 1}), UsageError);
  EXPECT_THROW(GradScaler({.backoff_factor = 1}), UsageError);
  EXPECT_THROW(GradScaler({.growth_interval = 0}), UsageError);
  EXPECT_THROW(GradScaler({.hysteresis = 0}), UsageError);
  EXPECT_THROW(GradScaler({.init_scale = 1e39}), UsageError);
  GradScaler scaler;
  EXPECT_THROW(scaler.update(-1.0), UsageError);
  EXPECT_THROW(scaler.update(1e-50), UsageError);
}

}  // namespace grad_scaler_test
}  // namespace smp
