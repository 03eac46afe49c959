// Optimizer state that replicas share: the same bits as without, on one replica each, in every mix
// with pipelines, clipping, accumulation, several optimizers, and files (docs/data_parallelism.md).
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "api/rank/rank.h"
#include "api/replicas/replicas.h"
#include "api/state/optimizer_fields.h"
#include "smp/checkpoint.h"
#include "smp/smp.h"
#include "support/refusal.h"

namespace smp {
namespace optimizer_shards_test {

using testing::HasSubstr;
using Parameters = std::vector<at::Tensor>;

constexpr int kSteps = 4;
constexpr int kMicrobatches = 2;

/// [B, 5] -> [B, 3]; float32, so that any other order of a sum shows.
struct ShardedNetImpl : torch::nn::Module {
  explicit ShardedNetImpl(bool sparse)
      : table(register_module("table",
                              nn::Embedding(torch::nn::EmbeddingOptions(11, 6).sparse(sparse)))),
        first(register_module("first", nn::Linear(6, 16))),
        second(register_module("second", nn::Linear(16, 8))),
        unused(register_module("unused", nn::Linear(4, 4))),
        last(register_module("last", nn::Linear(8, 3))) {
    first->bias.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& words) {
    const auto x = torch::tanh(first(table(words).mean(1)));
    return last(torch::tanh(second(x)));
  }
  nn::Embedding table;
  nn::Linear first, second, unused, last;
};
SMP_MODULE(ShardedNet);

ShardedNet make_net(bool sparse = false) {
  torch::manual_seed(4);
  return ShardedNet(sparse);
}

at::Tensor words(int step, int replica) {
  const auto n = at::arange(4 * 5, at::kLong);
  return at::remainder(n * n + 3 * n + 17 * step + 5 * replica, 11).view({4, 5});
}

at::Tensor loss_of(const at::Tensor& output) { return output.pow(2).mean() - output.mean(); }

Config config_of(int stages, bool shard) {
  Config config;
  config.pipeline_parallel_degree = stages;
  config.microbatches = kMicrobatches;
  config.auto_partition = false;
  config.default_partition = 0;
  config.shard_optimizer_state = shard;
  config.bucket_cap_mb = 1e-4;
  return config;
}

/// What a rank has in the end.
struct Outcome {
  std::map<std::string, at::Tensor> values;
  std::vector<double> norms;
  std::map<std::string, std::int64_t> state_bytes;  ///< by parameter that has state
};

std::string bytes_of(const at::Tensor& tensor) {
  const auto flat = tensor.detach().contiguous();
  return {static_cast<const char*>(flat.const_data_ptr()), flat.nbytes()};
}

template <class Optimizer>
std::map<std::string, std::int64_t> state_bytes(const DistributedModelBase& model,
                                                DistributedOptimizer<Optimizer>& optimizer) {
  std::map<std::string, std::int64_t> bytes;
  for (const auto& [name, parameter] : model.local_named_parameters()) {
    const auto found = (*optimizer).state().find(parameter.unsafeGetTensorImpl());
    if (found == (*optimizer).state().end() || !found->second) continue;
    with_kind(*optimizer, [&](auto kind) {
      each_state_field(static_cast<typename decltype(kind)::State&>(*found->second),
                       [&, key = name](const char*, auto& value) {
                         if constexpr (std::is_same_v<decltype(value), at::Tensor&>) {
                           if (value.defined()) bytes[key] += value.nbytes();
                         }
                       });
    });
  }
  return bytes;
}

struct Mix {
  int stages = 1;
  int replicas = 2;
  double clip = 0;   ///< 0: not
  int apart = 0;     ///< steps under no_sync() before each averaging one
  bool zero = true;  ///< gradients before each step
  bool sparse = false;
  int ranks() const { return stages * replicas; }
};

template <class Make>
Outcome train(const Mix& run, const Make& make) {
  Outcome outcome;
  auto net = make_net(run.sparse);
  DistributedModel model(net);
  if (run.stages > 1) model.set_partition("second", 1);
  DistributedOptimizer optimizer(model, make(model.parameters()));
  auto body = step([&](const at::Tensor& x) {
    const auto loss = loss_of(model(x));
    model.backward(loss);
    return loss;
  });
  int batch = 0;
  for (int s = 0; s < kSteps; ++s) {
    if (run.zero) optimizer.zero_grad();
    for (int i = 0; i < run.apart; ++i) {
      const auto apart = model.no_sync();
      body(words(batch++, dp_rank()));
    }
    body(words(batch++, dp_rank()));
    if (run.clip > 0) outcome.norms.push_back(clip_grad_norm_(model, run.clip));
    optimizer.step();
  }
  for (const auto& [name, tensor] : model.local_named_parameters()) outcome.values[name] = tensor;
  outcome.state_bytes = state_bytes(model, optimizer);
  return outcome;
}

template <class Make>
std::map<int, Outcome> train_everywhere(const Mix& run, bool shard, const Make& make,
                                        std::uint64_t seed = 3) {
  std::map<int, Outcome> outcomes;
  run_local(run.ranks(), [&] { outcomes[rank()] = train(run, make); }, config_of(run.stages, shard),
            {seed});
  return outcomes;
}

/// Each rank's values and norms have the bits that it has without sharding.
template <class Make>
void expect_same_bits(const Mix& run, const Make& make) {
  const auto plain = train_everywhere(run, false, make);
  for (const std::uint64_t seed : {1, 2}) {
    const auto sharded = train_everywhere(run, true, make, seed);
    ASSERT_EQ(sharded.size(), plain.size());
    for (const auto& [rank, outcome] : sharded) {
      const auto& expected = plain.at(rank);
      EXPECT_EQ(outcome.norms, expected.norms) << "rank " << rank;
      ASSERT_EQ(outcome.values.size(), expected.values.size());
      for (const auto& [name, value] : outcome.values) {
        EXPECT_EQ(bytes_of(value), bytes_of(expected.values.at(name)))
            << name << " on rank " << rank << ": " << value << " instead of "
            << expected.values.at(name);
      }
    }
  }
}

const auto sgd = [](const Parameters& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
};
const auto adam = [](const Parameters& parameters) {
  return torch::optim::Adam(parameters, torch::optim::AdamOptions(0.01));
};

TEST(OptimizerShards, TrainToTheSameBits) {
  for (const auto& run : {Mix{1, 2}, Mix{1, 3}, Mix{2, 2}, Mix{1, 4}}) {
    SCOPED_TRACE(testing::Message() << run.stages << " stages, " << run.replicas << " replicas");
    expect_same_bits(run, sgd);
    expect_same_bits(run, adam);
  }
}

TEST(OptimizerShards, TrainToTheSameBitsWithOtherOptimizers) {
  expect_same_bits({}, [](const Parameters& parameters) {
    return torch::optim::AdamW(parameters, torch::optim::AdamWOptions(0.01).amsgrad(true));
  });
  expect_same_bits({}, [](const Parameters& parameters) {
    return torch::optim::RMSprop(parameters, torch::optim::RMSpropOptions(0.01).momentum(0.5));
  });
  expect_same_bits({}, [](const Parameters& parameters) {
    return torch::optim::Adagrad(parameters, torch::optim::AdagradOptions(0.1));
  });
}

TEST(OptimizerShards, ClipByTheNormOfAllGradients) {
  expect_same_bits({.stages = 1, .replicas = 3, .clip = 0.05}, sgd);
  expect_same_bits({.stages = 2, .replicas = 2, .clip = 0.05}, adam);
}

TEST(OptimizerShards, TakeGradientsOfSeveralStepsAndSparseOnes) {
  expect_same_bits({.apart = 2}, adam);
  expect_same_bits({.replicas = 3, .sparse = true},
                   [](const Parameters& parameters) { return torch::optim::SGD(parameters, 0.1); });
}

/// Sums of means of several steps are associated otherwise.
/// Two parameters in one memory (set_data()), each with a gradient of its own.
struct OneMemoryImpl : torch::nn::Module {
  OneMemoryImpl()
      : table(register_module("table", nn::Linear(torch::nn::LinearOptions(6, 6).bias(false)))),
        head(register_module("head", nn::Linear(torch::nn::LinearOptions(6, 6).bias(false)))),
        between(register_module("between", nn::Linear(6, 6))) {
    head->weight.set_data(table->weight.data());
  }
  at::Tensor forward(const at::Tensor& x) { return head(torch::tanh(between(table(x)))); }
  nn::Linear table, head, between;
};
SMP_MODULE(OneMemory);

std::map<int, at::Tensor> weights_in_one_memory(int replicas, bool shard) {
  std::map<int, at::Tensor> weights;
  run_local(replicas,
            [&] {
              torch::manual_seed(4);
              OneMemory net;
              DistributedModel model(net);
              DistributedOptimizer optimizer(model, sgd(model.parameters()));
              auto body = step([&](const at::Tensor& x) { model.backward(loss_of(model(x))); });
              for (int s = 0; s < kSteps; ++s) {
                optimizer.zero_grad();
                body(at::sin(at::arange(24, at::kFloat) + s + 7 * dp_rank()).view({4, 6}));
                optimizer.step();
              }
              weights[rank()] = at::cat({net->table->weight.detach(), net->head->weight.detach()});
            },
            config_of(1, shard), {3});
  return weights;
}

TEST(OptimizerShards, OfParametersInOneMemoryAreOnOneReplica) {
  for (const int replicas : {2, 3}) {
    const auto plain = weights_in_one_memory(replicas, false);
    for (const auto& [rank, weights] : weights_in_one_memory(replicas, true)) {
      EXPECT_EQ(bytes_of(weights), bytes_of(plain.at(rank))) << rank << " of " << replicas;
    }
  }
}

TEST(OptimizerShards, CountGradientsThatNobodyZeroedForAllReplicas) {
  const Mix run{.replicas = 3, .clip = 100, .zero = false};
  const auto plain = train_everywhere(run, false, sgd);
  for (const auto& [rank, outcome] : train_everywhere(run, true, sgd)) {
    for (std::size_t s = 0; s < kSteps; ++s) {
      EXPECT_NEAR(outcome.norms[s], plain.at(rank).norms[s], 1e-5) << "step " << s;
    }
    for (const auto& [name, value] : outcome.values) {
      EXPECT_TRUE(at::allclose(value, plain.at(rank).values.at(name), 1e-4, 1e-6)) << name;
    }
  }
}

TEST(OptimizerShards, AreEachOnOneReplicaAndEven) {
  for (const int replicas : {2, 4}) {
    const Mix run{.replicas = replicas};
    const auto whole = train_everywhere(run, false, adam).at(0).state_bytes;
    std::int64_t all = 0, largest = 0;
    for (const auto& [name, bytes] : whole) {
      all += bytes;
      largest = std::max(largest, bytes);
    }
    // two tensors of float32 for each weight that learns and is used
    ASSERT_EQ(all, 2 * 4 * (11 * 6 + 6 * 16 + 16 * 8 + 8 + 8 * 3 + 3));
    std::map<std::string, std::int64_t> joined;
    for (const auto& [rank, outcome] : train_everywhere(run, true, adam)) {
      std::int64_t here = 0;
      for (const auto& [name, bytes] : outcome.state_bytes) {
        EXPECT_TRUE(joined.emplace(name, bytes).second) << name << " is on two replicas";
        here += bytes;
      }
      EXPECT_LE(here, all / replicas + largest) << "rank " << rank;
    }
    EXPECT_EQ(joined, whole);
  }
}

/// Whoever trains them later finds their state on all replicas.
TEST(OptimizerShards, OfFrozenParametersAreEvenToo) {
  for (const bool all : {false, true}) {
    std::set<int> owners;
    run_local(4,
              [&] {
                auto net = make_net();
                for (auto& parameter : net->parameters()) {
                  if (all || parameter.dim() == 2) parameter.set_requires_grad(false);
                }
                DistributedModel model(net);
                DistributedOptimizer optimizer(model, adam(model.parameters()));
                model.place();
                for (const auto& parameter : net->parameters()) {
                  if (parameter.requires_grad()) continue;
                  owners.insert(Replicas::current().shards().owner_of(parameter));
                }
              },
              config_of(1, true), {3});
    EXPECT_EQ(owners.size(), 4u) << all;
  }
}

/// Adagrad has a state for every parameter from its construction.
TEST(OptimizerShards, LeaveNothingBehindOfAStateThatWasThereBefore) {
  const auto adagrad = [](const Parameters& parameters) {
    return torch::optim::Adagrad(parameters, torch::optim::AdagradOptions(0.1));
  };
  std::map<std::string, int> holders;
  for (const auto& [rank, outcome] : train_everywhere({.replicas = 2}, true, adagrad)) {
    for (const auto& [name, bytes] : outcome.state_bytes) ++holders[name];
  }
  EXPECT_EQ(holders.size(), 9u);
  for (const auto& [name, count] : holders) EXPECT_EQ(count, 1) << name;
}

TEST(OptimizerShards, LeaveGradientsWhereTheyAreStepped) {
  run_local(
      2,
      [] {
        auto net = make_net();
        DistributedModel model(net);
        DistributedOptimizer optimizer(model, sgd(model.parameters()));
        auto body = step([&](const at::Tensor& x) { model.backward(loss_of(model(x))); });
        body(words(0, dp_rank()));
        std::set<const void*> stepped;
        for (const auto& parameter : optimizer.param_groups()[0].params()) {
          stepped.insert(parameter.unsafeGetTensorImpl());
        }
        EXPECT_FALSE(stepped.empty());
        for (const auto& [name, parameter] : model.named_parameters()) {
          if (name.starts_with("unused") || name == "first.bias") continue;
          EXPECT_EQ(parameter.grad().defined(), stepped.count(parameter.unsafeGetTensorImpl()) > 0)
              << name << " on rank " << rank();
        }
      },
      config_of(1, true), {1});
}

TEST(OptimizerShards, SendNothingOfFrozenParameters) {
  std::uint64_t sent = 0;
  std::map<int, std::string> bits;
  run_local(2,
            [&] {
              auto net = make_net();
              net->second->weight.set_requires_grad(false);
              DistributedModel model(net);
              DistributedOptimizer optimizer(model, sgd(model.parameters()));
              auto body = step([&](const at::Tensor& x) { model.backward(loss_of(model(x))); });
              body(words(0, dp_rank()));
              const auto sent_so_far = [] {
                return Rank::current().channel().counters().tensor_bytes_sent;
              };
              const auto before = sent_so_far();
              optimizer.step();
              sent += sent_so_far() - before;
              body(words(1, dp_rank()));
              net->first->weight.set_requires_grad(false);  // whose gradient is there already
              const auto value = net->first->weight.detach().clone();
              optimizer.step();
              EXPECT_FALSE(at::equal(net->first->weight, value)) << "on rank " << rank();
              for (const auto& parameter : model.parameters()) bits[rank()] += bytes_of(parameter);
            },
            config_of(1, true), {1});
  EXPECT_EQ(sent, 4u * (11 * 6 + 6 * 16 + (4 * 4 + 4) + 8 + (8 * 3 + 3))) << "what learns, once";
  EXPECT_EQ(bits.at(0), bits.at(1));
}

TEST(OptimizerShards, RefuseAStepWhoseGradientsWereKeptApart) {
  run_local(2,
            [] {
              auto net = make_net();
              DistributedModel model(net);
              DistributedOptimizer optimizer(model, sgd(model.parameters()));
              auto body = step([&](const at::Tensor& x) { model.backward(loss_of(model(x))); });
              body(words(0, dp_rank()));
              optimizer.step();
              optimizer.zero_grad();
              {
                const auto apart = model.no_sync();
                body(words(1, dp_rank()));
              }
              EXPECT_THAT(refusal<UsageError>([&] { optimizer.step(); }),
                          HasSubstr("step() after a step under no_sync()"));
              optimizer.zero_grad();
              for (const auto& parameter : model.parameters()) {
                EXPECT_FALSE(parameter.grad().defined());
              }
              optimizer.step();
              body(words(2, dp_rank()));
              optimizer.step();
            },
            config_of(1, true), {1});
}

/// A model of which nothing is in the step comes and goes.
TEST(OptimizerShards, RefuseItAlsoWhereAnotherModelIsGoneMeanwhile) {
  run_local(2,
            [] {
              auto net = make_net();
              DistributedModel model(net);
              DistributedOptimizer optimizer(model, sgd(model.parameters()));
              auto body = step([&](const at::Tensor& x) { model.backward(loss_of(model(x))); });
              {
                const auto apart = model.no_sync();
                body(words(0, dp_rank()));
              }
              {
                auto other = make_net();
                DistributedModel(other).place();
              }
              EXPECT_THAT(refusal<UsageError>([&] { clip_grad_norm_(model, 1); }),
                          HasSubstr("no_sync()"));
              EXPECT_THAT(refusal<UsageError>([&] { optimizer.step(); }),
                          HasSubstr("step() after a step under no_sync()"));
            },
            config_of(1, true), {1});
}

/// One of them had no batch of which the parameter has a gradient: it would wait for the others.
TEST(OptimizerShards, RefuseItOnReplicasWithoutGradientsToo) {
  run_local(2,
            [] {
              auto net = make_net();
              DistributedModel model(net);
              DistributedOptimizer optimizer(model, sgd(model.parameters()));
              auto body = step([&](const at::Tensor& x) { model.backward(loss_of(model(x))); });
              {
                const auto apart = model.no_sync();
                body(words(0, dp_rank()));
              }
              for (const auto& parameter : model.parameters()) {
                if (dp_rank() == 1) at::Tensor(parameter).mutable_grad().reset();
              }
              EXPECT_THAT(refusal<UsageError>([&] { optimizer.step(); }),
                          HasSubstr("step() after a step under no_sync()"));
            },
            config_of(1, true), {1});
}

/// A mean that nobody zeroed counts once in the step after one that fell over.
TEST(OptimizerShards, KeepAMeanThroughAStepThatFails) {
  std::map<std::string, at::Tensor> sums[2];  // without a failure, and with one
  for (const bool failure : {false, true}) {
    run_local(3,
              [&] {
                auto net = make_net();
                DistributedModel model(net);
                DistributedOptimizer optimizer(model, sgd(model.parameters()));
                bool fails = false;
                auto body = step([&](const at::Tensor& x) {
                  if (fails) throw std::out_of_range("the body fell over");
                  model.backward(loss_of(model(x)));
                });
                body(words(0, dp_rank()));
                fails = failure;
                if (failure) {
                  EXPECT_THROW(body(words(1, dp_rank())), std::exception);
                }
                fails = false;
                body(words(2, dp_rank()));
                for (const auto& [name, parameter] : model.local_named_parameters()) {
                  if (parameter.grad().defined()) sums[failure][name] = parameter.grad().clone();
                }
              },
              config_of(1, true), {1});
  }
  EXPECT_EQ(sums[0].size(), sums[1].size());
  for (const auto& [name, sum] : sums[0]) {
    EXPECT_TRUE(at::allclose(sums[1].at(name), sum, 1e-5, 1e-7)) << name;
  }
}

/// Places of others are in lists of theirs, which may be longer.
TEST(OptimizerShards, NormsOfARanksOwnListAreThoseOfTheModel) {
  run_local(3,
            [&] {
              auto net = make_net();
              DistributedModel model(net);
              DistributedOptimizer optimizer(model, sgd(model.parameters()));
              auto body = step([&](const at::Tensor& x) { model.backward(loss_of(model(x))); });
              body(words(0, dp_rank()));
              const double of_model = clip_grad_norm_(model, 1e9);
              std::vector<at::Tensor> own;
              for (const auto& group : optimizer.param_groups()) {
                own.insert(own.end(), group.params().begin(), group.params().end());
              }
              EXPECT_LT(own.size(), model.parameters().size());
              EXPECT_NEAR(clip_grad_norm_(own, 1e9), of_model, 1e-6 * of_model);
            },
            config_of(1, true), {1});
}

/// It would step what is owned here, and tell nobody.
TEST(OptimizerShards, RefuseTheStepOfLibTorch) {
  for (const bool shard : {false, true}) {
    run_local(2,
              [&] {
                auto net = make_net();
                DistributedModel model(net);
                DistributedOptimizer optimizer(model, sgd(model.parameters()));
                auto body = step([&](const at::Tensor& x) { model.backward(loss_of(model(x))); });
                body(words(0, dp_rank()));
                const testing::Matcher<std::string> refused =
                    testing::AllOf(HasSubstr("step() of the LibTorch optimizer"),
                                   HasSubstr("call step() of the smp::DistributedOptimizer"));
                const testing::Matcher<std::string> accepted = "accepted";
                const auto& expected = shard ? refused : accepted;
                EXPECT_THAT(refusal<UsageError>([&] { optimizer->step(); }), expected);
                EXPECT_THAT(refusal<UsageError>([&] { (*optimizer).step(); }), expected);
                EXPECT_THAT(refusal<UsageError>([&] { optimizer.shared()->step(); }), expected);
                auto moved = std::move(optimizer);
                EXPECT_THAT(refusal<UsageError>([&] { moved->step(); }), expected);
                moved.step();
                body(words(1, dp_rank()));
                moved.step();
                DistributedOptimizer chosen(
                    model, std::unique_ptr<torch::optim::Optimizer>(
                               std::make_unique<torch::optim::SGD>(model.parameters(), 0.1)));
                EXPECT_THAT(refusal<UsageError>([&] { chosen->step(); }), expected);
                struct OwnSgd : torch::optim::SGD {
                  using SGD::SGD;
                };
                DistributedOptimizer own(model, std::make_unique<OwnSgd>(model.parameters(), 0.1));
                EXPECT_THAT(refusal<UsageError>([&] { own->step(); }), expected);
                std::unique_ptr<torch::optim::Optimizer> hidden =
                    std::make_unique<OwnSgd>(model.parameters(), 0.1);
                EXPECT_THAT(refusal<UnsupportedError>(
                                [&] { DistributedOptimizer unknown(model, std::move(hidden)); }),
                            shard ? testing::Matcher<std::string>(HasSubstr("OwnSgd"))
                                  : testing::Matcher<std::string>("accepted"));
              },
              config_of(1, shard), {1});
  }
}

/// What others zero or keep apart is none of its business.
TEST(OptimizerShards, OfOneModelDoNotCareForGradientsOfAnother) {
  run_local(2,
            [] {
              auto generator = make_net(), critic = make_net();
              DistributedModel first(generator), second(critic);
              DistributedOptimizer of_first(first, sgd(first.parameters()));
              DistributedOptimizer of_second(second, sgd(second.parameters()));
              auto body = step([&](const at::Tensor& x) {
                first.backward(loss_of(first(x)) + loss_of(second(x)));
              });
              body(words(0, dp_rank()));
              {
                const auto apart = second.no_sync();
                body(words(1, dp_rank()));
              }
              of_first.step();
              of_first.zero_grad();
              EXPECT_THAT(refusal<UsageError>([&] { of_second.step(); }),
                          HasSubstr("step() after a step under no_sync()"));
              EXPECT_THAT(refusal<UsageError>([&] { clip_grad_norm_(second, 1); }),
                          HasSubstr("no_sync()"));
              clip_grad_norm_(first, 1);
              body(words(2, dp_rank()));
              of_second.step();
            },
            config_of(1, true), {1});
}

/// What the user puts in the place of a mean is a gradient like any other.
TEST(OptimizerShards, TakeGradientsThatTheUserGives) {
  const auto train_with_decay = [](bool shard) {
    std::map<int, std::string> bits;
    run_local(2,
              [&] {
                auto net = make_net();
                DistributedModel model(net);
                DistributedOptimizer optimizer(model, sgd(model.parameters()));
                auto body = step([&](const at::Tensor& x) { model.backward(loss_of(model(x))); });
                for (int s = 0; s < kSteps; ++s) {
                  optimizer.zero_grad();
                  for (auto& parameter : model.local_parameters()) {
                    if (!parameter.requires_grad() || s == 0) continue;
                    parameter.mutable_grad() = 0.25 * parameter.detach();
                  }
                  body(words(s, dp_rank()));
                  optimizer.step();
                }
                for (const auto& parameter : model.local_parameters()) {
                  bits[rank()] += bytes_of(parameter);
                }
              },
              config_of(1, shard), {1});
    return bits;
  };
  EXPECT_EQ(train_with_decay(true), train_with_decay(false));
}

/// One after the other over the same parameters, and others: owners are the same for both.
TEST(OptimizerShards, OfSeveralOptimizersAndModels) {
  const auto outcome_of = [](bool shard) {
    std::map<int, std::string> bits;
    run_local(2,
              [&] {
                auto a = make_net(), b = make_net();
                DistributedModel first(a), second(b);
                DistributedOptimizer all({first, second}, sgd([&] {
                                           auto both = first.parameters();
                                           const auto more = second.parameters();
                                           both.insert(both.end(), more.begin(), more.end());
                                           return both;
                                         }()));
                DistributedOptimizer again(second, adam(second.parameters()));
                auto body = step([&](const at::Tensor& x) {
                  const auto loss = loss_of(first(x)) + loss_of(second(x) * 2);
                  first.backward(loss);
                });
                for (int s = 0; s < kSteps; ++s) {
                  all.zero_grad();
                  body(words(s, dp_rank()));
                  all.step();
                  again.step();
                }
                for (auto* model : {static_cast<DistributedModelBase*>(&first),
                                    static_cast<DistributedModelBase*>(&second)}) {
                  for (const auto& parameter : model->parameters())
                    bits[rank()] += bytes_of(parameter);
                }
              },
              config_of(1, shard), {2});
    return bits;
  };
  EXPECT_EQ(outcome_of(true), outcome_of(false));
}

// ---- saving and loading ----

struct Saved {
  StateDict model, optimizer;
};

/// Steps `begin` to `end`; what is loaded is given by rank 0 alone.
Saved train_from(int replicas, bool shard, int begin, int end, const Saved& from) {
  Saved saved;
  run_local(2 * replicas,
            [&] {
              auto net = make_net();
              DistributedModel model(net);
              model.set_partition("second", 1);
              DistributedOptimizer optimizer(model, adam(model.parameters()));
              auto body = step([&](const at::Tensor& x) { model.backward(loss_of(model(x))); });
              if (begin > 0) {
                model.load_state_dict(pp_rank() == 0 ? from.model : StateDict());
                const bool gives = shard ? rank() == 0 : pp_rank() == 0;
                load_optimizer_state_dict(model, optimizer, gives ? from.optimizer : StateDict());
              }
              for (int s = begin; s < end; ++s) {
                optimizer.zero_grad();
                body(words(s, 0));  // the same everywhere: numbers of replicas may change
                optimizer.step();
              }
              auto weights = model.state_dict();
              auto state = optimizer_state_dict(model, optimizer);
              if (rank() == 0) saved = {std::move(weights), std::move(state)};
            },
            config_of(2, shard), {1});
  return saved;
}

TEST(OptimizerShards, AreSavedWholeAndLoadedOnAnyNumberOfReplicas) {
  const auto expected = train_from(2, false, 0, 4, {});
  struct Part {
    int replicas;
    bool shard;
  };
  for (const auto& [before, after] : std::vector<std::pair<Part, Part>>{
           {{2, true}, {2, true}}, {{2, true}, {2, false}}, {{2, false}, {4, true}}}) {
    const auto half = train_from(before.replicas, before.shard, 0, 2, {});
    EXPECT_TRUE(half.optimizer.contains("state.second.weight.exp_avg"));
    EXPECT_TRUE(half.optimizer.contains("state.table.weight.exp_avg_sq"));
    const auto whole = train_from(after.replicas, after.shard, 2, 4, half);
    for (const auto dicts : {&Saved::model, &Saved::optimizer}) {
      ASSERT_THAT((whole.*dicts).names(),
                  testing::UnorderedElementsAreArray((expected.*dicts).names()));
      for (const auto& [name, tensor] : expected.*dicts) {
        EXPECT_TRUE(at::equal((whole.*dicts).at(name), tensor)) << name;
      }
    }
  }
}

}  // namespace optimizer_shards_test
}  // namespace smp
