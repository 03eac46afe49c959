// Sliced layers that a rank computes again while it would idle: collectives of the first run do not
// meet those of the second, whatever the ranks of a group compute ahead and when.
#include "server/recompute/ahead.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "tp/layer_comparison.h"
#include "tp/training/every_layer.h"

namespace smp::tp {
namespace recompute_ahead_test {

using namespace every_layer;
// Files that are joined with this one have others of these names.
using every_layer::kMicrobatches;
using every_layer::kSteps;
using every_layer::sgd;
using every_layer::train_in_one_process;
using server::RecomputeAhead;

constexpr RecomputeAhead::Credit kNone{.one_call = false}, kOne{.one_call = true},
    kALot{.one_call = true, .bytes = 1 << 30};
constexpr int kBatches = 3;  // of one rank, in a step: so many times kMicrobatches

struct Mix {
  int ranks, pp, tp;
  const char* optimize = "memory";
  const char* pipeline = "interleaved";
  bool prescaled = false;
  KeepPolicy keep = KeepPolicy::kNothing;
  bool shard = false;
  bool static_mode = false;

  int batches() const { return kBatches * ranks / pp / (prescaled ? tp : 1); }
  Config config() const {
    Config config;
    config.pipeline_parallel_degree = pp;
    config.tensor_parallel_degree = tp;
    config.optimize = optimize;
    config.pipeline = pipeline;
    config.microbatches = kBatches * kMicrobatches;
    config.prescaled_batch = prescaled;
    config.shard_optimizer_state = shard;
    config.static_mode = static_mode;
    config.plan_cache = "off";
    return config;
  }
};

void PrintTo(const Mix& mix, std::ostream* out) {
  *out << mix.ranks << " ranks, pp " << mix.pp << ", tp " << mix.tp << ", " << mix.optimize << ", "
       << mix.pipeline << (mix.prescaled ? ", prescaled" : "")
       << (mix.keep == kProducts ? ", all but products" : "") << (mix.shard ? ", sharded" : "")
       << (mix.static_mode ? ", static" : "");
}

/// By rank and name. What is summed over replicas is compared with one process on all batches.
using Tensors = std::map<std::string, at::Tensor>;

struct Outcome {
  Tensors tensors;
  std::int64_t ahead = 0;
};

class Training {
 public:
  Training(const Mix& mix, const Reference& reference, Outcome& outcome)
      : mix_(mix), reference_(reference), outcome_(outcome) {}

  void run(const RecomputeAhead::Credit& credit) {
    torch::manual_seed(3);
    SlicedNet net;
    net->to(torch::kDouble);
    for (const auto& layer : net->children()) {
      set_activation_checkpointing(*layer, {.keep = mix_.keep});
    }
    DistributedModel model(net);
    model.set_partition("", 0);
    for (const auto* last : {"block", "mlp", "mixture", "last"}) {
      model.set_partition(last, pp_size() - 1);
    }
    model.set_partition("attention", pp_size() / 2);
    DistributedOptimizer optimizer(model, sgd(model.parameters()));
    auto train = step([&](const at::Tensor& tokens) {
      const auto loss = model(tokens);
      model.backward(loss);
      return loss;
    });
    for (int s = 0; s < kSteps; ++s) {
      optimizer.zero_grad();
      std::vector<at::Tensor> tokens;
      for (int b = 0; b < kBatches; ++b) {
        tokens.push_back(tokens_of(s, kBatches * data_shard().index + b));
      }
      const auto mine = train(at::cat(tokens)).reduce_mean().item<double>();
      check_step(static_cast<std::size_t>(s), mine, net, model);
      optimizer.step();
      if (s == 0) RecomputeAhead::of(rank())->set_credit(credit);
    }
    for (const auto& [name, parameter] : model.local_named_parameters()) note(name, parameter);
    const auto values = model.state_dict(kAllPpRanks);
    for (const auto& [name, value] : values) {
      expect_near(value, reference_.parameters.at(name), 1e-12, name);
    }
  }

 private:
  void check_step(std::size_t s, double own, const SlicedNet& net,
                  DistributedModel<SlicedNet>& model) {
    double loss = 0;
    for (const int member : group(Group::kDp)) loss += broadcast(own, member, Group::kDp);
    EXPECT_NEAR(loss / dp_size(), reference_.losses[s], 1e-12) << "step " << s;
    const SlicedParameters slices(*net);
    for (const auto& [name, parameter] : model.local_named_parameters()) {
      if (mix_.shard && !parameter.grad().defined()) continue;  // on the rank where it is stepped
      const auto& whole = reference_.gradients[s].at(name);
      const auto slice = slices.find(parameter);
      expect_near(parameter.grad(),
                  slice ? part_of(whole, slice->dim, parameter.size(slice->dim), tp_rank()) : whole,
                  1e-12, "gradient of " + name);
      note("gradient " + std::to_string(s) + " of " + name, parameter.grad());
    }
  }
  void note(const std::string& name, const at::Tensor& value) {
    outcome_.tensors[std::to_string(rank()) + " " + name] = value.detach().clone();
  }

  const Mix& mix_;
  const Reference& reference_;
  Outcome& outcome_;
};

Outcome trained(const Mix& mix, const Reference& reference, const RecomputeAhead::Credit& credit,
                std::uint64_t seed) {
  Outcome outcome;
  const auto computed = [&] {
    std::int64_t all = 0;
    for (int rank = 0; rank < mix.ranks; ++rank) all += RecomputeAhead::of(rank)->computed();
    return all;
  };
  outcome.ahead = -computed();
  run_local(mix.ranks, [&] { Training(mix, reference, outcome).run(credit); }, mix.config(),
            {.seed = seed, .random_order = seed % 2 == 0});
  outcome.ahead += computed();
  return outcome;
}

class RecomputeAheadInGroups : public testing::TestWithParam<Mix> {};

TEST_P(RecomputeAheadInGroups, EqualsOneProcess) {
  const auto mix = GetParam();
  const auto reference = train_in_one_process(mix.batches());
  const auto without = trained(mix, reference, kNone, 1);
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto with = trained(mix, reference, seed == 1 ? kOne : kALot, seed);
    EXPECT_GE(with.ahead, mix.ranks * kSteps);
    ASSERT_EQ(with.tensors.size(), without.tensors.size());
    for (const auto& [name, value] : without.tensors) {
      EXPECT_TRUE(torch::equal(with.tensors.at(name), value)) << name;
    }
  }
}

constexpr auto kMemory = "memory", kSpeed = "speed", kSequence = "sequence", kUsual = "interleaved";
INSTANTIATE_TEST_SUITE_P(
    Mixes, RecomputeAheadInGroups,
    testing::Values(Mix{4, 2, 2}, Mix{4, 2, 2, kSpeed}, Mix{4, 2, 2, kMemory, "simple"},
                    Mix{4, 2, 2, kSpeed, "1f1b"}, Mix{4, 2, 2, kMemory, "zero_bubble"},
                    Mix{4, 2, 2, kSpeed, kUsual, true},
                    Mix{4, 2, 2, kMemory, kUsual, false, kProducts}, Mix{6, 3, 2},
                    Mix{8, 2, 4, kMemory, "1f1b"}, Mix{8, 2, 2, kSpeed},
                    Mix{8, 2, 2, kMemory, "simple", true, KeepPolicy::kNothing, true},
                    Mix{4, 2, 2, kSequence, "1f1b", true},
                    Mix{8, 2, 2, kSequence, kUsual, true, kProducts},
                    Mix{4, 2, 2, kSpeed, kUsual, false, KeepPolicy::kNothing, false, true}));

}  // namespace recompute_ahead_test
}  // namespace smp::tp
