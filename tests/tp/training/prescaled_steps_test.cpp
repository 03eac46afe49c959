// Steps of ranks that are given one batch: what is averaged, clipped and drawn, which samples they
// read, and what they say if they read others.
#include <gmock/gmock.h>

#include "smp/clip_grad.h"
#include "smp/data/distributed_sampler.h"
#include "smp/join.h"
#include "support/refusal.h"
#include "tp/plain_transformer.h"
#include "tp/training/sliced_training.h"

namespace smp::tp {
namespace prescaled_steps_test {

using testing::AllOf;
using testing::HasSubstr;

Config config_of(int tp, int pp = 1, int microbatches = kMicrobatches) {
  Config config;
  config.tensor_parallel_degree = tp;
  config.pipeline_parallel_degree = pp;
  config.microbatches = microbatches;
  config.prescaled_batch = true;
  return config;
}

TEST(PrescaledSteps, ReadTheSamplesOfTheirGroup) {
  for (const bool prescaled : {false, true}) {
    auto config = config_of(2);
    config.prescaled_batch = prescaled;
    run_local(4,
              [&] {
                EXPECT_EQ(data_shard().count, prescaled ? 2 : 4);
                EXPECT_EQ(data_shard().index, prescaled ? rdp_rank() : dp_rank());
                DistributedSampler sampler(8, {.shuffle = false});
                const auto first = static_cast<std::size_t>(data_shard().index);
                const auto apart = static_cast<std::size_t>(data_shard().count);
                const std::vector<std::size_t> expected{first, first + apart};
                EXPECT_EQ(sampler.next(2), expected);
              },
              config, {1});
  }
}

// ---- gradients ----

/// Rows that each batch has of its samples.
Samples cut(const Samples& all, std::int64_t rows) {
  return {all.tokens.narrow(0, 0, rows), all.targets.narrow(0, 0, rows)};
}

/// Of the losses of two batches, by one process. @param rows  of each
BagOfWordsImpl<PlainLayers> plain_gradients(const std::string& loss,
                                            const std::vector<std::int64_t>& rows) {
  torch::manual_seed(3);
  BagOfWordsImpl<PlainLayers> plain;
  std::vector<at::Tensor> tokens, targets;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto own = cut(samples(0, static_cast<int>(i)), rows[i]);
    tokens.push_back(own.tokens);
    targets.push_back(own.targets);
  }
  const auto squares = (plain.forward(at::cat(tokens)) - at::cat(targets)).square();
  (loss == "sum" ? squares.sum() : squares.mean()).backward();
  return plain;
}

/// Of what each rank has after one step, without and with Join.
void expect_gradients_of(const std::string& loss, const std::vector<std::int64_t>& rows, int pp) {
  const auto plain = plain_gradients(loss, rows);
  const auto expected = plain.named_parameters();
  auto config = config_of(2, pp, 2);
  config.loss = loss;
  std::set<std::string> seen;
  run_local(2 * pp * static_cast<int>(rows.size()),
            [&] {
              torch::manual_seed(3);
              SlicedBag net;
              DistributedModel model(net);
              model.set_partition("", 0);
              model.set_partition("first", pp - 1);
              auto train = step([&](const at::Tensor& tokens, const at::Tensor& targets) {
                const auto squares = (model(tokens) - targets).square();
                const auto own = loss == "sum" ? squares.sum() : squares.mean();
                model.backward(own);
                return own;
              });
              const auto own = cut(samples(0, data_shard().index),
                                   rows[static_cast<std::size_t>(data_shard().index)]);
              train(own.tokens, own.targets);
              for (const auto& [name, parameter] : model.local_named_parameters()) {
                const auto whole = expected[name].grad();
                const auto slice = slice_of(whole, name, tp_rank(), tp_size());
                EXPECT_TRUE(at::allclose(parameter.grad(), slice, 1e-12, 1e-13)) << name;
                seen.insert(name);
              }
            },
            config, {1});
  EXPECT_EQ(seen.size(), expected.size());
}

TEST(PrescaledSteps, AverageOverRowsOfDifferentBatches) {
  for (const int pp : {1, 2}) {
    for (const auto* loss : {"mean", "sum"}) {
      SCOPED_TRACE(testing::Message() << loss << ", pp " << pp);
      expect_gradients_of(loss, {6}, pp);
      expect_gradients_of(loss, {6, 4}, pp);
    }
  }
}

void expect_clipping(int pp, bool shard) {
  const auto plain = plain_gradients("mean", {6, 6});
  const double norm = torch::nn::utils::clip_grad_norm_(plain.parameters(), 0.01);
  const auto expected = plain.named_parameters();
  auto config = config_of(2, pp);
  config.shard_optimizer_state = shard;
  run_local(4 * pp,
            [&] {
              torch::manual_seed(3);
              SlicedBag net;
              DistributedModel model(net);
              model.set_partition("", 0);
              model.set_partition("first", pp - 1);
              const DistributedOptimizer optimizer(model, sgd(model.parameters()));
              auto train = step([&](const at::Tensor& tokens, const at::Tensor& targets) {
                model.backward(torch::mse_loss(model(tokens), targets));
              });
              const auto [tokens, targets] = samples(0, data_shard().index);
              // Twice the same, without zero_grad() between: what owners have counts for all.
              train(tokens, targets);
              train(tokens, targets);
              EXPECT_NEAR(model.clip_grad_norm_(0.01), 2 * norm, 1e-12);
              for (const auto& [name, parameter] : model.local_named_parameters()) {
                if (!parameter.grad().defined()) continue;
                const auto own = slice_of(expected[name].grad(), name, tp_rank(), tp_size());
                // The formula divides by the norm and 1e-6.
                EXPECT_TRUE(at::allclose(parameter.grad(), own, 1e-4, 1e-9)) << name;
              }
            },
            config, {1});
}

TEST(PrescaledSteps, ClipByTheNormOfWholeParametersOverSeveralSteps) {
  for (const int pp : {1, 2}) {
    for (const bool shard : {false, true}) {
      SCOPED_TRACE(testing::Message() << "pp " << pp << ", shard " << shard);
      expect_clipping(pp, shard);
    }
  }
}

/// The second batch ends before the first: k of R = 1 of 2 batches in the last round.
TEST(PrescaledSteps, GoOnWhereAnotherGroupHasNoBatch) {
  const auto plain = plain_gradients("mean", {6});
  const auto expected = plain.named_parameters();
  for (const bool divide : {false, true}) {
    run_local(4,
              [&] {
                torch::manual_seed(3);
                SlicedBag net;
                DistributedModel model(net);
                auto train = step([&](const at::Tensor& tokens, const at::Tensor& targets) {
                  model.backward(torch::mse_loss(model(tokens), targets));
                });
                Join join({.divide_by_initial_world_size = divide});
                for (int round = 0; join.next(data_shard().index == 0 ? round < 2 : round < 1);
                     ++round) {
                  model.zero_grad();
                  const auto [tokens, targets] = samples(0, data_shard().index);
                  train(tokens, targets);
                }
                for (const auto& [name, parameter] : model.local_named_parameters()) {
                  const auto own = slice_of(expected[name].grad(), name, tp_rank(), tp_size());
                  EXPECT_TRUE(at::allclose(parameter.grad(), divide ? own / 2 : own, 1e-12, 1e-13))
                      << name;
                }
              },
              config_of(2), {1});
  }
}

TEST(PrescaledSteps, Evaluate) {
  torch::manual_seed(3);
  BagOfWordsImpl<PlainLayers> plain;
  run_local(4,
            [&] {
              torch::manual_seed(3);
              SlicedBag net;
              DistributedModel model(net);
              auto evaluate = step([&](const at::Tensor& tokens) { return model(tokens); });
              const torch::NoGradGuard no_grad;
              const auto tokens = samples(0, data_shard().index).tokens;
              EXPECT_TRUE(at::allclose(evaluate(tokens).concat(), plain.forward(tokens), 1e-12));
            },
            config_of(2), {1});
}

// ---- random numbers ----

struct DroppingImpl : torch::nn::Module {
  explicit DroppingImpl(const AttentionLayerOptions& attention)
      : before(register_module("before", nn::Dropout(0.3))),
        layers(register_module("layers",
                               nn::DistributedTransformer(attention, output_of(attention), 2))) {
    to(torch::kDouble);
  }
  static TransformerOutputLayerOptions output_of(const AttentionLayerOptions& attention) {
    auto options = output_options();
    options.hidden_dropout_prob = 0.3;
    options.optimize = attention.optimize;
    return options;
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto dropped = before(x);
    return torch::cat({layers(TransformerState{dropped, {}, {}, {}}).hidden, dropped}, -1);
  }
  nn::Dropout before;
  nn::DistributedTransformer layers;
};
SMP_MODULE(Dropping);

/// Three heads on two ranks: the second draws masks for one head less.
TEST(PrescaledSteps, DropAlikeWhatAllRanksHave) {
  for (const auto* layout : kLayouts) {
    auto attention = attention_options();
    attention.num_attention_heads = 3;
    attention.hidden_dropout_prob = attention.attention_dropout_prob = 0.3;
    attention.optimize = layout;
    std::vector<at::Tensor> outputs(2);
    run_local(2,
              [&] {
                torch::manual_seed(3);
                Dropping net(attention);
                DistributedModel model(net);
                auto train = step([&](const at::Tensor& x) {
                  const auto y = model(x);
                  model.backward(y.square().mean());
                  return y;
                });
                const auto x = at::sin(at::arange(6 * 3 * kHidden, at::kDouble));
                outputs[static_cast<std::size_t>(rank())] =
                    train(x.view({6, 3, kHidden})).concat().detach().clone();
              },
              config_of(2), {1});
    EXPECT_TRUE(at::equal(outputs[0], outputs[1])) << layout;
  }
}

// ---- what goes wrong ----

std::vector<std::string> told_with(const std::function<at::Tensor(int)>& tokens_of, bool learns) {
  std::vector<std::string> told(2);
  run_local(2,
            [&] {
              SlicedBag net;
              DistributedModel model(net);
              auto run = step([&](const at::Tensor& tokens) {
                const auto loss = model(tokens).sum();
                if (learns) model.backward(loss);
                return loss;
              });
              const at::AutoGradMode mode(learns);
              auto& own = told[static_cast<std::size_t>(rank())];
              try {
                run(tokens_of(rank()));
              } catch (const UsageError& error) {
                own = error.what();
              }
            },
            config_of(2), {1});
  return told;
}

TEST(PrescaledSteps, RefuseDifferentBatchesInAGroup) {
  for (const bool learns : {false, true}) {
    const auto of_values = told_with([](int rank) { return samples(0, rank).tokens; }, learns);
    EXPECT_THAT(of_values,
                testing::Each(AllOf(HasSubstr("with prescaled_batch, one batch"),
                                    HasSubstr("Long [6, 5] #"), HasSubstr("smp::data_shard()"))));
    const auto of_rows =
        told_with([](int rank) { return samples(0, 0).tokens.narrow(0, 0, 6 - rank); }, learns);
    EXPECT_THAT(of_rows,
                testing::Each(AllOf(HasSubstr("Long [6, 5] #"), HasSubstr("Long [5, 5] #"))));
    EXPECT_THAT(told_with([](int) { return samples(0, 0).tokens; }, learns), testing::Each(""));
  }
}

/// What the rank that has a batch more is told. @param learns  else it evaluates
std::string told_without_the_other(bool prescaled, bool learns) {
  std::string told;
  auto config = config_of(2);
  config.prescaled_batch = prescaled;
  run_local(2,
            [&] {
              SlicedBag net;
              DistributedModel model(net);
              auto run = step([&](const at::Tensor& tokens) {
                const auto loss = model(tokens).sum();
                if (learns) model.backward(loss);
                return loss;
              });
              const at::AutoGradMode mode(learns);
              for (int s = 0; s < 3 - rank(); ++s) {
                try {
                  run(samples(s, data_shard().index).tokens);
                } catch (const PeerLostError& error) {
                  told = error.what();
                }
              }
            },
            config, {1});
  return told;
}

TEST(PrescaledSteps, NameARankOfTheGroupThatHasFewerBatches) {
  for (const bool prescaled : {false, true}) {
    for (const bool learns : {false, true}) {
      EXPECT_THAT(told_without_the_other(prescaled, learns),
                  AllOf(HasSubstr("rank 0: step 3 of this replica has none in another"),
                        HasSubstr("waits for rank 1, but rank 1 left after step 2"),
                        HasSubstr("the same number of batches")));
    }
  }
}

}  // namespace prescaled_steps_test
}  // namespace smp::tp
