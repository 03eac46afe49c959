// Calls that are computed ahead beside all else that a program may use: training equals one process
// of plain LibTorch, and has the bits of one that computes nothing ahead.
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "api/chain_model.h"
#include "server/recompute/ahead.h"
#include "smp/recompute/activation_checkpointing.h"

namespace smp {
namespace recompute_ahead_mixes_test {

using at::Tensor;
using server::RecomputeAhead;

constexpr int kStages = 3, kMicrobatches = 6, kSteps = 4, kWidth = 4;
constexpr RecomputeAhead::Credit kNone{.one_call = false}, kOne{.one_call = true},
    kALot{.one_call = true, .bytes = 1 << 30};

/// With a part on another rank.
struct BlockImpl : torch::nn::Module {
  Layer near = register_module("near", Layer(kWidth, kWidth));
  Layer far = register_module("far", Layer(kWidth, kWidth));
  Tensor forward(const Tensor& x) { return x + far(near(x).exp()).sin(); }
};
SMP_MODULE(Block);

/// Block 3 of three stages is on the first one again.
struct NetImpl : torch::nn::Module {
  std::vector<Block> blocks;
  NetImpl() {
    for (int i = 0; i <= kStages; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Block()));
    }
  }
  Tensor forward(Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x;
  }
};
SMP_MODULE(Net);

Net make_net() {
  torch::manual_seed(5);
  return {};
}

/// What training is mixed with.
struct Mix {
  Config config = {};
  int replicas = 1;
  CheckpointOptions options = {};
  bool delayed = false;
  bool code = false;       ///< the body computes its loss by smp::checkpoint()
  bool evaluates = false;  ///< between steps, once without gradients and once with
};

Mix mix_of(const std::string& schedule) {
  Mix mix;
  mix.config.microbatches = kMicrobatches;
  mix.config.pipeline_parallel_degree = kStages;
  mix.config.pipeline = schedule;
  mix.config.active_microbatches = 4;
  mix.config.plan_cache = "off";
  return mix;
}

struct Batch {
  Tensor x, y;
};

/// @param replica  whose part
Batch batch_of(int step, int replica) {
  const auto n = at::arange(2 * kMicrobatches * kWidth, at::kDouble);
  const auto seed = 1.7 * step + 0.3 * replica;
  return {at::sin(n * 0.9 + seed).view({-1, kWidth}), at::cos(n * 1.1 + seed).view({-1, kWidth})};
}

Tensor loss_of(const Tensor& out, const Tensor& y) { return (out.tanh() - y).exp().mean(); }

torch::optim::SGD optimizer_of(const std::vector<Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

using Named = std::map<std::string, Tensor>;

std::string gradient_of(int step, const std::string& name) {
  return "gradient " + std::to_string(step) + " of " + name;
}

/// One process of plain LibTorch, on the batches of all replicas.
Named trained_plainly(int replicas) {
  Named all;
  auto net = make_net();
  auto optimizer = optimizer_of(net->parameters());
  const double weight = 1.0 / (replicas * kMicrobatches);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    auto loss = at::zeros({}, at::kDouble);
    for (int replica = 0; replica < replicas; ++replica) {
      const auto [x, y] = batch_of(step, replica);
      for (int m = 0; m < kMicrobatches; ++m) {
        const auto own =
            loss_of(net->forward(x.chunk(kMicrobatches)[m]), y.chunk(kMicrobatches)[m]) * weight;
        own.backward();
        loss += own.detach();
      }
    }
    all["loss " + std::to_string(step)] = loss;
    for (const auto& item : net->named_parameters()) {
      all[gradient_of(step, item.key())] = item.value().grad().clone();
    }
    optimizer.step();
  }
  for (const auto& item : net->named_parameters()) all[item.key()] = item.value().detach().clone();
  return all;
}

/// The same on ranks. What several ranks have must be the same.
class Trained {
 public:
  Trained(const Mix& mix, const RecomputeAhead::Credit& credit, std::uint64_t seed) : mix_(mix) {
    const auto before = computed_ahead();
    run_local(kStages * mix.replicas, [&] { run(credit); }, mix.config,
              {.seed = seed, .random_order = seed % 2 == 0});
    ahead = computed_ahead() - before;
  }

  Named all;
  std::int64_t ahead = 0;  ///< calls of all ranks

 private:
  std::int64_t computed_ahead() const {
    std::int64_t computed = 0;
    for (int rank = 0; rank < kStages * mix_.replicas; ++rank) {
      computed += RecomputeAhead::of(rank)->computed();
    }
    return computed;
  }

  void note(const std::string& name, const Tensor& value) {
    const auto [known, fresh] = all.try_emplace(name, value.detach().clone());
    EXPECT_TRUE(fresh || torch::equal(known->second, value)) << name << " on " << rank();
  }

  void run(const RecomputeAhead::Credit& credit) {
    std::optional<delay_param_initialization> delay;
    if (mix_.delayed) delay.emplace();
    auto net = make_net();
    delay.reset();
    for (auto& block : net->blocks) set_activation_checkpointing(block, mix_.options);
    DistributedModel model(net);
    model.set_partition("", 0);
    for (int i = 0; i <= kStages; ++i) {
      const auto path = "block" + std::to_string(i);
      model.set_partition(path, i % kStages);
      model.set_partition(path + ".far", (i + 1) % kStages);
    }
    DistributedOptimizer optimizer(model, optimizer_of(model.parameters()));
    auto train = smp::step([&](const Tensor& x, const Tensor& y) {
      const auto out = model(x);
      const auto loss = mix_.code ? checkpoint(mix_.options, loss_of, out, y) : loss_of(out, y);
      model.backward(loss);
      return loss;
    });
    auto evaluate = smp::step([&](const Tensor& x) { return model(x).detach(); });
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const auto [x, y] = batch_of(step, dp_rank());
      const auto own = train(x, y).reduce_mean();
      auto loss = at::zeros({}, at::kDouble);
      for (const int member : group(Group::kDp)) {
        loss += broadcast(own, member, Group::kDp) / dp_size();
      }
      note("loss " + std::to_string(step), loss);
      for (const auto& [name, parameter] : model.local_named_parameters()) {
        // With sharded state, where it is stepped.
        if (parameter.grad().defined()) note(gradient_of(step, name), parameter.grad());
      }
      optimizer.step();
      if (mix_.evaluates) {
        const at::AutoGradMode grad(step % 2 == 0);
        note("out " + std::to_string(step), evaluate(x).reduce_mean());
      }
      if (step == 0) RecomputeAhead::of(rank())->set_credit(credit);
    }
    for (const auto& [name, parameter] : model.local_named_parameters()) note(name, parameter);
  }

  const Mix& mix_;
};

/// Compares what plain LibTorch has.
void expect_equal(const Named& plain, const Named& ours) {
  for (const auto& [name, value] : plain) {
    ASSERT_TRUE(ours.contains(name)) << name;
    expect_close(ours.at(name), value, name);
  }
}

void expect_same_bits(const Named& a, const Named& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : a) EXPECT_TRUE(torch::equal(value, b.at(name))) << name;
}

/// Of odd seeds one call may be ahead; even ones have any order of what is ready.
RecomputeAhead::Credit credit_of(std::uint64_t seed) { return seed % 2 == 1 ? kOne : kALot; }

void expect_right(const Mix& mix, std::uint64_t seeds = 2) {
  const auto plain = trained_plainly(mix.replicas);
  const Trained without(mix, kNone, 1);
  expect_equal(plain, without.all);
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << mix.config.pipeline << ", seed " << seed);
    const Trained ahead(mix, credit_of(seed), seed);
    EXPECT_GE(ahead.ahead, kSteps * kStages * mix.replicas);
    expect_equal(plain, ahead.all);
    expect_same_bits(without.all, ahead.all);
  }
}

void expect_right_in_all_schedules(const std::function<void(Mix&)>& change) {
  for (const char* schedule : {"simple", "interleaved", "1f1b", "zero_bubble"}) {
    auto mix = mix_of(schedule);
    change(mix);
    expect_right(mix);
  }
}

TEST(RecomputeAheadMixes, AloneEqualsPlainLibTorch) {
  expect_right_in_all_schedules([](Mix&) {});
}

TEST(RecomputeAheadMixes, Replicas) {
  expect_right_in_all_schedules([](Mix& mix) { mix.replicas = 2; });
}

TEST(RecomputeAheadMixes, ShardedOptimizers) {
  expect_right_in_all_schedules([](Mix& mix) {
    mix.replicas = 2;
    mix.config.shard_optimizer_state = true;
  });
}

TEST(RecomputeAheadMixes, ReplicasInStaticMode) {
  for (const bool fast : {false, true}) {
    auto mix = mix_of("interleaved");
    mix.replicas = 2;
    mix.config.static_mode = true;
    mix.config.fast_mode = fast;
    expect_right(mix);
  }
}

TEST(RecomputeAheadMixes, DelayedInitialisation) {
  expect_right_in_all_schedules([](Mix& mix) {
    mix.delayed = true;
    mix.replicas = 2;
  });
}

TEST(RecomputeAheadMixes, KeptProducts) {
  expect_right_in_all_schedules([](Mix& mix) { mix.options.keep = KeepPolicy::kProducts; });
}

TEST(RecomputeAheadMixes, CodeOfBodies) {
  for (const auto keep : {KeepPolicy::kNothing, KeepPolicy::kProducts}) {
    expect_right_in_all_schedules([&](Mix& mix) {
      mix.code = true;
      mix.options.keep = keep;
    });
  }
}

TEST(RecomputeAheadMixes, EvaluationBetweenSteps) {
  expect_right_in_all_schedules([](Mix& mix) { mix.evaluates = true; });
}

/// Of the user's own: the last microbatch goes back first, and the others in another order still.
TEST(RecomputeAheadMixes, ListsOfTheUser) {
  const auto path = (std::filesystem::temp_directory_path() /
                     ("recompute_ahead_mixes_" + std::to_string(::getpid()) + ".txt"))
                        .string();
  for (const char* backwards : {"B5 B4 B3 B2 B1 B0", "B2 B0 B1 B5 B3 B4"}) {
    {
      std::ofstream file(path);
      file << "smp-schedule 1\nmicrobatches " << kMicrobatches << "\n";
      for (int rank = 0; rank < kStages; ++rank) {
        file << "rank " << rank << ": F0 F1 F2 F3 F4 F5 " << backwards << "\n";
      }
    }
    expect_right(mix_of("file:" + path));
  }
  std::filesystem::remove(path);
}

/// Losses in bfloat16 products are no numbers of float64: only the bits are compared.
TEST(RecomputeAheadMixes, Autocast) {
  for (const char* schedule : {"simple", "interleaved", "1f1b", "zero_bubble"}) {
    for (const int replicas : {1, 2}) {
      auto mix = mix_of(schedule);
      mix.config.precision = "amp";
      mix.replicas = replicas;
      const Trained without(mix, kNone, 1);
      for (std::uint64_t seed = 1; seed <= 2; ++seed) {
        SCOPED_TRACE(testing::Message() << schedule << ", seed " << seed);
        const Trained ahead(mix, credit_of(seed), seed);
        EXPECT_GE(ahead.ahead, kSteps * kStages * replicas);
        expect_same_bits(without.all, ahead.all);
      }
    }
  }
}

}  // namespace recompute_ahead_mixes_test
}  // namespace smp
