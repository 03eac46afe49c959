// Steps that change parameters without a new version: everything that other ranks know of them is
// as in one process, or refused.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "api/chain_model.h"
#include "api/optimizer/user_steps.h"
#include "smp/checkpoint.h"

namespace smp {
namespace fused_steps_test {

using namespace user_steps;
using testing::AnyOf;
using testing::HasSubstr;

TEST(FusedSteps, OfLibTorchLeaveTheVersionAsItIs) {
  const auto parameter = torch::ones({3}, torch::kDouble).requires_grad_();
  parameter.mutable_grad() = torch::ones({3}, torch::kDouble);
  for (const auto way : {UserStep::kFusedAdamw, UserStep::kFusedSgd, UserStep::kData}) {
    const auto before = parameter._version();
    const auto values = parameter.detach().clone();
    UserOptimizer({parameter}, way).step();
    EXPECT_EQ(parameter._version(), before)
        << name_of(way) << ": it counts now, so what this file tests is tested no more";
    EXPECT_FALSE(torch::equal(parameter.detach(), values));
  }
}

/// Hands its own weight out, and works with one that it gets.
struct LenderImpl : torch::nn::Module {
  LenderImpl() : weight(register_parameter("weight", torch::randn({4, 4}, torch::kDouble))) {}
  Tensor forward(const Tensor& x, const Tensor& other) {
    return torch::tanh(x.mm(weight)).mm(other);
  }
  Tensor read() { return weight; }
  Tensor weight;
};
SMP_MODULE(Lender, read);

struct RingImpl : torch::nn::Module {
  RingImpl()
      : own(register_parameter("own", torch::randn({4, 4}, torch::kDouble))),
        a(register_module("a", Lender())),
        b(register_module("b", Lender())),
        c(register_module("c", Lender())) {}
  /// Each gets the weight of another one, as a value from another rank.
  Tensor forward(const Tensor& x) {
    const auto first = a(x, own);
    const auto second = b(first, a->read());
    return c(second, b->read() + c->read()).sin() + first;
  }
  Tensor own;
  Lender a, b, c;
};
SMP_MODULE(Ring);

Ring make_ring() {
  torch::manual_seed(5);
  return {};
}

constexpr int kSteps = 9, kMicrobatches = 2;

Tensor batch(int step) { return rows(4, 4) * (1 + 0.1 * step); }
Tensor loss_of(const Tensor& y) { return y.square().mean(); }

struct Trained {
  std::vector<double> losses;
  std::map<std::string, Tensor> values;
};

Trained train_plain(UserStep way) {
  Trained trained;
  auto net = make_ring();
  UserOptimizer optimizer(net->parameters(), way);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    double sum = 0;
    for (const auto& x : batch(step).chunk(kMicrobatches)) {
      const auto loss = loss_of(net(x)) / kMicrobatches;
      loss.backward();
      sum += loss.item<double>();
    }
    trained.losses.push_back(sum);
    optimizer.step();
  }
  for (const auto& item : net->named_parameters())
    trained.values[item.key()] = item.value().detach();
  return trained;
}

struct Mode {
  const char* schedule;
  bool repeats = false;  ///< static_mode and fast_mode
  bool shard = false;
  int replicas = 1;
};

void expect_equal(const Mode& mode, int stages, UserStep way, const Trained& expected) {
  SCOPED_TRACE(testing::Message() << name_of(way) << ", " << mode.schedule << ", " << stages
                                  << " stages, " << mode.replicas << " replicas"
                                  << (mode.repeats ? ", static" : ""));
  Config config;
  config.pipeline_parallel_degree = stages;
  config.microbatches = kMicrobatches;
  config.plan_cache = "off";
  config.pipeline = mode.schedule;
  config.static_mode = config.fast_mode = mode.repeats;
  config.shard_optimizer_state = mode.shard;
  run_local(
      stages * mode.replicas,
      [&] {
        auto net = make_ring();
        DistributedModel model(net);
        model.set_partition("", 0);
        model.set_partition("a", 1 % pp_size());
        model.set_partition("b", 2 % pp_size());
        model.set_partition("c", 3 % pp_size());
        DistributedOptimizer optimizer(model, UserOptimizer(model.parameters(), way));
        auto run = smp::step([&](Tensor x) {
          auto loss = loss_of(model(x));
          model.backward(loss);
          return loss;
        });
        for (int step = 0; step < kSteps; ++step) {
          optimizer.zero_grad();
          const auto loss = run(batch(step)).reduce_mean().item<double>();
          EXPECT_NEAR(loss, expected.losses[static_cast<std::size_t>(step)], 1e-12)
              << "step " << step;
          optimizer.step();
        }
        for (const auto& [name, parameter] : model.local_named_parameters()) {
          expect_close(parameter.detach(), expected.values.at(name), name);
        }
      },
      config);
}

TEST(FusedSteps, AreSeenByAllRanks) {
  for (const auto way : kWays) {
    const auto expected = train_plain(way);
    for (const int stages : {1, 2, 3, 4}) {
      for (const auto& mode : {Mode{"simple"}, Mode{"interleaved"}, Mode{"interleaved", true}}) {
        expect_equal(mode, stages, way, expected);
      }
    }
  }
}

TEST(FusedSteps, AreSeenByReplicas) {
  for (const auto way : kWays) {
    const auto expected = train_plain(way);
    for (const bool shard : {false, true}) {
      expect_equal({"interleaved", false, shard, 2}, 1, way, expected);
      expect_equal({"simple", true, shard, 2}, 2, way, expected);
    }
  }
}

// ---- buffers in the memory of parameters -------------------------------------------------------

/// Its buffer is its weight; small, so that every rank has a copy.
struct MirrorImpl : torch::nn::Module {
  MirrorImpl()
      : weight(register_parameter("weight", torch::randn({3, 3}, torch::kDouble))),
        mirror(register_buffer("mirror", weight.detach())) {}
  Tensor forward(const Tensor& x) { return x.mm(weight).tanh(); }
  Tensor weight, mirror;
};
SMP_MODULE(Mirror);

struct HallImpl : torch::nn::Module {
  HallImpl() : far(register_module("far", Mirror())) {}
  Tensor forward(const Tensor& x) { return far(x); }
  Mirror far;
};
SMP_MODULE(Hall);

Hall make_hall() {
  torch::manual_seed(5);
  return {};
}

/// What is said if the body reads the mirror in its second step; the loss if nothing is.
std::string look_into_mirror(int ranks, UserStep way, bool later, bool static_mode) {
  std::string said;
  Config config;
  config.microbatches = 2;
  config.plan_cache = "off";
  config.static_mode = static_mode;
  run_local(
      ranks,
      [&] {
        auto net = make_hall();
        DistributedModel model(net);
        model.set_partition("", 0);
        model.set_partition("far", size() - 1);
        DistributedOptimizer optimizer(model, UserOptimizer(model.parameters(), way));
        int step_number = 0;
        auto run = smp::step([&](Tensor x) {
          auto loss = model(x).square().mean();
          if (!later || step_number > 5) loss = loss + net->far->mirror.sum() * loss.detach();
          model.backward(loss);
          return loss;
        });
        double last = 0;
        const auto text = refusal<std::exception>([&] {
          for (; step_number < (later ? 8 : 2); ++step_number) {
            optimizer.zero_grad();
            last = run(rows(4)).reduce_mean().item<double>();
            optimizer.step();
          }
        });
        if (rank() == 0) said = text == "accepted" ? std::to_string(last) : text;
      },
      config);
  return said;
}

TEST(FusedSteps, DoNotLeaveAStaleCopyOfABufferThatIsAParameter) {
  for (const auto way :
       {UserStep::kFusedAdamw, UserStep::kFusedSgd, UserStep::kForeach, UserStep::kData}) {
    for (const bool later : {false, true}) {
      for (const bool static_mode : {false, true}) {
        SCOPED_TRACE(testing::Message() << name_of(way) << (later ? ", later" : "")
                                        << (static_mode ? ", static" : ""));
        EXPECT_THAT(look_into_mirror(2, way, later, static_mode),
                    AnyOf(HasSubstr("stale values"), HasSubstr("(which changed it)")));
        EXPECT_THAT(look_into_mirror(1, way, later, static_mode), testing::Not(HasSubstr(" ")))
            << "with one rank";
      }
    }
  }
}

/// In it gradients of this and other microbatches are still to come.
TEST(FusedSteps, AreRefusedInABody) {
  for (const auto way : kWays) {
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(testing::Message() << name_of(way) << ", " << ranks << " ranks");
      on_ranks(ranks, [&] {
        auto net = make_chain();
        DistributedModel model(net);
        model.set_partition("", 0);
        model.set_partition("b", size() - 1);
        std::optional<UserOptimizer> plain;
        auto wrong = smp::step([&](Tensor x) {
          model.backward(model(x).sum());
          if (is_tracing()) return;
          if (!plain) plain.emplace(net->a->parameters(), way);
          for (const auto& parameter : net->a->parameters()) {
            parameter.mutable_grad() = torch::ones_like(parameter);
          }
          plain->step();
        });
        EXPECT_THAT(refused_step<UsageError>(0, [&] { wrong(rows(4)); }),
                    HasSubstr("was written while microbatch"));
      });
    }
  }
}

TEST(FusedSteps, AreSavedAndLoaded) {
  const auto expected = train_plain(UserStep::kFusedAdamw);
  on_ranks(2, [&] {
    StateDict weights, state;
    for (const int half : {0, 1}) {
      auto net = make_ring();
      DistributedModel model(net);
      model.set_partition("", 0);
      model.set_partition("b", (1 + half) % 2);
      DistributedOptimizer optimizer(model,
                                     UserOptimizer(model.parameters(), UserStep::kFusedAdamw));
      if (half == 1) {
        model.load_state_dict(weights);
        load_optimizer_state_dict(model, optimizer, state);
      }
      auto run = smp::step([&](Tensor x) { model.backward(loss_of(model(x))); });
      for (int step = half * 4; step < (half == 0 ? 4 : kSteps); ++step) {
        optimizer.zero_grad();
        run(batch(step));
        optimizer.step();
      }
      weights = model.state_dict(kAllPpRanks);
      state = optimizer_state_dict(model, optimizer, kAllPpRanks);
    }
    for (const auto& [name, value] : expected.values) expect_close(weights.at(name), value, name);
  });
}

}  // namespace fused_steps_test
}  // namespace smp
