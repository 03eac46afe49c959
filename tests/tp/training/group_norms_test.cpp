// Norms of gradients and parameters where ranks share distributed modules, beside plain layers in
// one process, and what becomes of ranks that ask for other ones.
#include <gmock/gmock.h>

#include <functional>
#include <limits>
#include <set>
#include <string>

#include "smp/clip_grad.h"
#include "smp/norms.h"
#include "support/refusal.h"
#include "tp/training/sliced_training.h"

namespace smp::tp {
namespace group_norms_test {

using testing::AllOf;
using testing::HasSubstr;

Config config_of(int tp, int pp = 1) {
  Config config;
  config.tensor_parallel_degree = tp;
  config.pipeline_parallel_degree = pp;
  config.microbatches = kMicrobatches;
  return config;
}

/// Of `replicas`, on plain layers.
BagOfWordsImpl<PlainLayers> with_gradients(int replicas) {
  torch::manual_seed(3);
  BagOfWordsImpl<PlainLayers> plain;
  for (int replica = 0; replica < replicas; ++replica) {
    const auto [tokens, targets] = samples(0, replica);
    for (int m = 0; m < kMicrobatches; ++m) {
      const auto part = static_cast<std::size_t>(m);
      (torch::mse_loss(plain.forward(tokens.chunk(kMicrobatches)[part]),
                       targets.chunk(kMicrobatches)[part]) /
       (replicas * kMicrobatches))
          .backward();
    }
  }
  return plain;
}

/// Runs `ask` on each rank, after a step of a model with slices.
void after_a_step(int ranks, const Config& config,
                  const std::function<void(DistributedModelBase&)>& ask) {
  run_local(ranks,
            [&] {
              torch::manual_seed(3);
              SlicedBag net;
              DistributedModel model(net);
              model.set_partition("", 0);
              model.set_partition("first", pp_size() - 1);
              const DistributedOptimizer optimizer(model, sgd(model.parameters()));
              auto train = step([&](const at::Tensor& tokens, const at::Tensor& targets) {
                const auto loss = torch::mse_loss(model(tokens), targets);
                model.backward(loss);
                return loss;
              });
              const auto [tokens, targets] = samples(0, dp_rank());
              train(tokens, targets);
              ask(model);
              grad_norm(model);  // nothing is left of what was refused
            },
            config, {1});
}

void expect_clipping(int pp, int rdp, bool shard, double type) {
  const auto plain = with_gradients(2 * rdp);
  const double norm = torch::nn::utils::clip_grad_norm_(plain.parameters(), 0.01, type);
  std::vector<at::Tensor> flat;
  for (const auto& parameter : plain.parameters()) flat.push_back(parameter.detach().flatten());
  const double of_values = at::cat(flat).norm(type).item<double>();
  const auto expected = plain.named_parameters();
  std::set<std::string> seen;
  auto config = config_of(2, pp);
  config.shard_optimizer_state = shard;
  after_a_step(2 * pp * rdp, config, [&](DistributedModelBase& model) {
    EXPECT_NEAR(grad_norm(model, type), norm, 1e-12 * norm);
    EXPECT_NEAR(parameter_norm(model, type), of_values, 1e-12 * of_values);
    EXPECT_FALSE(grad_overflow(model));
    EXPECT_NEAR(clip_grad_norm_(model, 0.01, type), norm, 1e-12 * norm);
    for (const auto& [name, parameter] : model.local_named_parameters()) {
      if (shard && !parameter.grad().defined()) continue;
      const auto own = slice_of(expected[name].grad(), name, tp_rank(), tp_size());
      EXPECT_TRUE(torch::allclose(parameter.grad(), own, 1e-10, 1e-14)) << name;
      seen.insert(name);
    }
    // One slice on one of the ranks that share it, or on its owner among them.
    for (const auto& [name, parameter] : model.local_named_parameters()) {
      const bool slice = parameter.sizes() != expected[name].sizes();
      if (!slice || tp_rank() == 0 || !parameter.grad().defined()) continue;
      parameter.grad().flatten()[0].fill_(std::numeric_limits<double>::infinity());
      break;
    }
    EXPECT_TRUE(grad_overflow(model));
  });
  EXPECT_EQ(seen.size(), expected.size());
}

TEST(GroupNorms, AreThoseOfWholeParameters) {
  for (const int pp : {1, 2}) {
    for (const int rdp : {1, 2}) {
      for (const bool shard : {false, true}) {
        for (const double type : {1., 2., 3., std::numeric_limits<double>::infinity()}) {
          SCOPED_TRACE(testing::Message() << "pp " << pp << ", rdp " << rdp << ", shard " << shard
                                          << ", norm " << type);
          expect_clipping(pp, rdp, shard, type);
        }
      }
    }
  }
}

TEST(GroupNorms, OfOtherOrdersAreRefusedOnAllRanksThatShareSlices) {
  after_a_step(2, config_of(2), [](auto& model) {
    EXPECT_THAT(refusal<UsageError>([&] { grad_norm(model, 1.0 + tp_rank()); }),
                AllOf(HasSubstr("smp::grad_norm: ranks pass different options"),
                      HasSubstr("norm_type 1 and 2")));
    EXPECT_THAT(refusal<UsageError>([&] { clip_grad_norm_(model, 0.5 * (1 + tp_rank())); }),
                HasSubstr("max_norm 0.5 and 1"));
    EXPECT_THAT(refusal<UsageError>([&] { parameter_norm(model, 1.0 + tp_rank()); }),
                HasSubstr("norm_type 1 and 2"));
  });
}

TEST(GroupNorms, AndOnAllThatShareTheOptimizersState) {
  auto config = config_of(1);
  config.shard_optimizer_state = true;
  after_a_step(2, config, [](auto& model) {
    EXPECT_THAT(refusal<UsageError>([&] { grad_norm(model, 1.0 + dp_rank()); }),
                HasSubstr("norm_type 1 and 2"));
  });
}

TEST(GroupNorms, OfFewerSlicesOnOneRankAreRefusedOnAll) {
  after_a_step(2, config_of(2), [](auto& model) {
    auto some = model.parameters();
    if (tp_rank() == 1) some.erase(some.begin());  // embed.weight
    EXPECT_THAT(refusal<UsageError>([&] { grad_norm(some); }), HasSubstr("slices"));
  });
}

}  // namespace group_norms_test
}  // namespace smp::tp
