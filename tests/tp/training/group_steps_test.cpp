// Steps of ranks that share distributed modules: how they end when ranks differ or fail,
// evaluation, automatic placement, branches.
#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <tuple>

#include "api/rank/rank.h"
#include "support/refusal.h"
#include "tp/training/sliced_training.h"

namespace smp::tp {
namespace group_steps_test {

using testing::AllOf;
using testing::HasSubstr;

Config config_of(int tp, int pp = 1) {
  Config config;
  config.tensor_parallel_degree = tp;
  config.pipeline_parallel_degree = pp;
  config.microbatches = kMicrobatches;
  return config;
}

/// What a step ends with on this rank.
std::string end_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "it ended well";
}

void expect_gradients(const DistributedModelBase& model, const Training& reference, int step) {
  Training ours;
  for (const auto& [name, parameter] : model.local_named_parameters()) {
    ours.note(gradient_of(step), name, parameter.grad());
  }
  ours.losses = reference.losses;
  expect_equal(ours, reference, tp_rank(), tp_size());
}

// ---- failures ----

struct Failing {
  int ranks, tp, pp;
  int rank;       ///< of the job, on which an exception is thrown
  bool backward;  ///< in a hook, instead of in forward
};

/// Every rank's end of a step in which one fails; the next step is compared with the reference.
std::vector<std::string> ends_with(const Failing& failing, std::uint64_t seed) {
  std::vector<std::string> ends(static_cast<std::size_t>(failing.ranks));
  const auto reference = train_in_one_process(failing.ranks / failing.pp);
  run_local(failing.ranks,
            [&] {
              torch::manual_seed(3);
              SlicedBag net;
              DistributedModel model(net);
              const int last = pp_size() - 1;
              model.set_partition("", 0);
              model.set_partition("first", last);
              model.set_partition("whole", last);
              bool fails = rank() == failing.rank;
              auto train = step([&](const at::Tensor& tokens, const at::Tensor& targets) {
                auto out = model(tokens);
                if (fails && current_microbatch() == 1) {
                  if (!failing.backward) throw std::out_of_range("the body fell over");
                  out.register_hook([](const at::Tensor&) -> at::Tensor {
                    throw std::out_of_range("the hook fell over");
                  });
                }
                const auto loss = torch::mse_loss(out, targets);
                model.backward(loss);
                return loss;
              });
              const auto [tokens, targets] = samples(0, dp_rank());
              ends[static_cast<std::size_t>(rank())] = end_of([&] { train(tokens, targets); });
              fails = false;
              model.zero_grad();
              train(tokens, targets);
              expect_gradients(model, reference, 0);
            },
            config_of(failing.tp, failing.pp), {seed});
  return ends;
}

TEST(GroupSteps, FailEverywhereWhenOneRankFailsAndTheNextWorks) {
  for (const auto& failing :
       {Failing{2, 2, 1, 0, false}, Failing{2, 2, 1, 1, false}, Failing{2, 2, 1, 1, true},
        Failing{4, 2, 2, 0, false}, Failing{4, 2, 2, 1, true}, Failing{4, 2, 1, 2, false}}) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      const auto ends = ends_with(failing, seed);
      EXPECT_THAT(ends, testing::Each(HasSubstr("fell over")))
          << "rank " << failing.rank << " of " << failing.ranks << ", seed " << seed;
    }
  }
}

// ---- ranks that differ ----

/// Runs one step on two ranks whose batches `rows` says; what each is told.
std::vector<std::string> told_with_rows(std::vector<int> rows) {
  std::vector<std::string> told(2);
  run_local(2,
            [&] {
              SlicedBag net;
              DistributedModel model(net);
              auto train = step([&](const at::Tensor& tokens) {
                const auto loss = model(tokens).sum();
                model.backward(loss);
                return loss;
              });
              const auto own = rows[static_cast<std::size_t>(rank())];
              told[static_cast<std::size_t>(rank())] = end_of([&] {
                train(torch::ones({own, 5}, torch::kLong));
              });
            },
            config_of(2), {1});
  return told;
}

TEST(GroupSteps, NameBatchesOfDifferentShapes) {
  EXPECT_THAT(told_with_rows({6, 9}),
              testing::Each(AllOf(HasSubstr("module 'embed', microbatch "),
                                  HasSubstr("smp::fused_allgather_for_tp"), HasSubstr("[2, 5]"),
                                  HasSubstr("[3, 5]"), HasSubstr("batches of the same shape"))));
  EXPECT_THAT(told_with_rows({6, 6}), testing::Each("it ended well"));
}

/// What ranks are told whose weights are drawn from `seeds`, and then treated by `change`.
std::vector<std::string> told_with_seeds(
    std::vector<std::uint64_t> seeds, int pp = 1,
    const std::function<void(SlicedBag&)>& change = [](SlicedBag&) {}) {
  std::vector<std::string> told(seeds.size());
  auto config = config_of(2, pp);
  config.initial_values = "first";
  run_local(static_cast<int>(seeds.size()),
            [&] {
              const auto own = static_cast<std::size_t>(rank());
              torch::manual_seed(seeds[own]);
              SlicedBag net;
              change(net);
              DistributedModel model(net);
              auto evaluate = step([&](const at::Tensor& tokens) { return model(tokens); });
              const torch::NoGradGuard no_grad;
              told[own] = end_of([&] { evaluate(torch::ones({6, 5}, torch::kLong)); });
            },
            config, {1});
  return told;
}

TEST(GroupSteps, RefuseSlicesThatWereCutFromDifferentValues) {
  EXPECT_THAT(told_with_seeds({3, 4}),
              testing::Each(AllOf(HasSubstr("'embed.weight'"), HasSubstr("TP_GROUP {0, 1}"),
                                  HasSubstr("other values"), HasSubstr("torch::manual_seed"))));
  EXPECT_THAT(told_with_seeds({3, 3}), testing::Each("it ended well"));
  // Replicas of slices take the values of the first, whatever they start from.
  EXPECT_THAT(told_with_seeds({3, 3, 4, 4}), testing::Each("it ended well"));
  EXPECT_THAT(told_with_seeds({3, 3, 3, 4}), testing::Contains(HasSubstr("TP_GROUP {2, 3}")));
}

TEST(GroupSteps, TakeSlicesThatWereWrittenSinceTheyWereCut) {
  const auto written = [](SlicedBag& net) {
    const torch::NoGradGuard no_grad;
    net->embed->weight.zero_();
    net->first->weight.zero_();
  };
  EXPECT_THAT(told_with_seeds({3, 4}, 1, written), testing::Each(HasSubstr("'second.weight'")));
  EXPECT_THAT(told_with_seeds({3, 4}, 1,
                              [&](SlicedBag& net) {
                                written(net);
                                const torch::NoGradGuard no_grad;
                                net->second->weight.zero_();
                              }),
              testing::Each("it ended well"));
}

/// What is printed where ranks of one seed initialise what they hold by `change`.
std::string printed_of(const std::function<void(SlicedBag&)>& change) {
  testing::internal::CaptureStderr();
  const auto told = told_with_seeds({3, 3}, 1, [&](SlicedBag& net) {
    const torch::NoGradGuard no_grad;
    change(net);
  });
  EXPECT_THAT(told, testing::Each("it ended well"));
  return testing::internal::GetCapturedStderr();
}

TEST(GroupSteps, WarnOfSlicesThatWereDrawnAlike) {
  EXPECT_THAT(printed_of([](SlicedBag& net) {
                torch::nn::init::normal_(net->embed->weight);
                torch::nn::init::normal_(net->second->weight);
              }),
              AllOf(HasSubstr("'embed.weight' is sliced over TP_GROUP {0, 1}"),
                    HasSubstr("equal slices of it (and of 1 others)"),
                    HasSubstr("docs/tensor_parallelism.md")));
  EXPECT_THAT(printed_of([](SlicedBag& net) { net->second->weight.data().normal_(); }),
              HasSubstr("'second.weight' is sliced over TP_GROUP {0, 1}, and some"))
      << "which no version shows";
  const auto silent = testing::Not(HasSubstr("equal slices"));
  EXPECT_THAT(printed_of([](SlicedBag& net) { net->embed->weight.fill_(0.5); }), silent);
  EXPECT_THAT(printed_of([](SlicedBag& net) {  // as the docs say
                const auto whole = torch::nn::init::normal_(torch::empty({13, 8}));
                net->embed->weight.copy_(whole.chunk(tp_size(), 1)[tp_rank()]);
              }),
              silent);
}

TEST(GroupSteps, SayWhichCollectiveARankDoesNotComeTo) {
  const auto text = refusal<InternalError>([] {
    run_local(2,
              [] {
                nn::Sequential net(nn::DistributedLinear(4, 4));
                DistributedModel model(net);
                auto train = step([&](const at::Tensor& x) {
                  if (rank() == 1) return x.sum();
                  return model(x).sum();
                });
                const torch::NoGradGuard no_grad;
                train(torch::ones({6, 4}));
              },
              config_of(2), {1});
  });
  EXPECT_THAT(text, AllOf(HasSubstr("deadlock"), HasSubstr("smp::scatter_and_merge_for_tp"),
                          HasSubstr("module '0', microbatch 0"), HasSubstr("TP_GROUP {0, 1}")));
}

TEST(GroupSteps, NameMicrobatchesOfOneRankOnly) {
  const auto told = told_with_rows({3, 2});  // of three microbatches one row each
  EXPECT_THAT(told[0],
              AllOf(HasSubstr("rank 0 cuts its batch of 3 rows into 3 microbatches"),
                    HasSubstr("rank 1 its of 2 into 2"), HasSubstr("distributed modules")));
  EXPECT_THAT(told[1], HasSubstr("rank 1 cuts its batch of 2 rows into 2 microbatches"));
}

/// Lets gradients through, and counts how often it is shown each part.
class CountingHook final : public CommHook {
 public:
  std::vector<at::Tensor> compress(const at::Tensor& elements, const Part& part) override {
    ++seen[{part.bucket, part.part, part.sum}];
    return {elements.clone()};
  }
  at::Tensor decompress(const std::vector<at::Tensor>& compressed, const at::Tensor&,
                        const Part&) override {
    return compressed.at(0).clone();
  }
  std::map<std::tuple<std::int64_t, int, bool>, int> seen;
};

TEST(GroupSteps, TellAHookApartWhatIsWholeAndWhatIsSliced) {
  run_local(4,
            [] {
              torch::manual_seed(3);
              SlicedBag net;
              DistributedModel model(net);
              const auto hook = std::make_shared<CountingHook>();
              model.register_comm_hook(hook);
              auto train = step([&](const at::Tensor& tokens) {
                const auto loss = model(tokens).sum();
                model.backward(loss);
                return loss;
              });
              train(samples(0, dp_rank()).tokens);
              EXPECT_GT(hook->seen.size(), 4u);
              for (const auto& [part, times] : hook->seen) EXPECT_EQ(times, 1);
            },
            config_of(2), {1});
}

// ---- what else steps do ----

TEST(GroupSteps, EvaluateTogether) {
  torch::manual_seed(3);
  BagOfWordsImpl<PlainLayers> plain;
  for (const int replicas : {1, 2}) {  // of the group
    run_local(2 * replicas,
              [&] {
                torch::manual_seed(3);
                SlicedBag net;
                DistributedModel model(net);
                auto evaluate = step([&](const at::Tensor& tokens) { return model(tokens); });
                const torch::NoGradGuard no_grad;
                for (int s = 0; s <= rdp_rank(); ++s) {  // replicas of a group need not agree
                  const auto tokens = samples(s, dp_rank()).tokens;
                  const auto expected = plain.forward(tokens);
                  EXPECT_TRUE(torch::allclose(evaluate(tokens).concat(), expected, 1e-12, 1e-12));
                }
              },
              config_of(2), {1});
  }
}

TEST(GroupSteps, ArePlacedByTheLibrary) {
  const auto reference = train_in_one_process(2);
  run_local(4,
            [&] {
              torch::manual_seed(3);
              SlicedBag net;
              DistributedModel model(net);
              auto train = step([&](const at::Tensor& tokens, const at::Tensor& targets) {
                const auto loss = torch::mse_loss(model(tokens), targets);
                model.backward(loss);
                return loss;
              });
              const auto [tokens, targets] = samples(0, dp_rank());
              train(tokens, targets);
              expect_gradients(model, reference, 0);
              EXPECT_EQ(model.plan().pp_size(), 2);
              const auto& summary = model.plan().summary();
              ASSERT_TRUE(summary);
              EXPECT_EQ(summary->costs, "operators") << "the trial run failed";
              bool second_stage = false;
              for (const auto* path : {"embed", "first", "whole", "second"}) {
                second_stage = second_stage || model.plan().stage_of(path) == 1;
              }
              EXPECT_TRUE(second_stage) << "nothing was distributed: the trial run failed";
            },
            config_of(2, 2), {1});
}

/// As many calls of a layer as the microbatch's number says.
struct LoopImpl : torch::nn::Module {
  LoopImpl() : layer(register_module("layer", nn::DistributedLinear(4, 4))) { to(torch::kDouble); }
  at::Tensor forward(at::Tensor x, int times) {
    for (int i = 0; i < times; ++i) x = torch::tanh(layer(x));
    return x;
  }
  nn::DistributedLinear layer;
};
SMP_MODULE(Loop);

TEST(GroupSteps, BranchByMicrobatch) {
  torch::manual_seed(1);
  torch::nn::Linear plain(4, 4);
  plain->to(torch::kDouble);
  const auto batch = [](int replica) {
    return at::sin(at::arange(24, at::kDouble) + replica).view({6, 4});
  };
  for (int replica = 0; replica < 4; ++replica) {
    for (int m = 0; m < kMicrobatches; ++m) {
      auto x = batch(replica).chunk(kMicrobatches)[static_cast<std::size_t>(m)];
      for (int i = 0; i <= 2 * m; ++i) x = torch::tanh(plain(x));
      (x.sum() / (4 * kMicrobatches)).backward();
    }
  }
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    run_local(8,
              [&] {
                torch::manual_seed(1);
                Loop net;
                DistributedModel model(net);
                model.set_partition("", 0);
                model.set_partition("layer", 1);
                auto train = step([&](const at::Tensor& x) {
                  const auto loss = model(x, 2 * current_microbatch() + 1).sum();
                  model.backward(loss);
                  return loss;
                });
                train(batch(dp_rank()));
                if (pp_rank() == 0) return;
                const auto& gradient = net->layer->weight.grad();
                const auto expected = plain->weight.grad().chunk(4, 1)[tp_rank()];
                EXPECT_TRUE(torch::allclose(gradient, expected, 1e-12, 1e-12));
                EXPECT_TRUE(torch::allclose(net->layer->bias.grad(), plain->bias.grad(), 1e-12));
              },
              config_of(4, 2), {seed, 1e-3});
  }
}

/// `there` runs on another stage, and its result goes straight into a collective here.
struct GatheredImpl : torch::nn::Module {
  GatheredImpl() : there(register_module("there", nn::Linear(4, 4))) { to(torch::kDouble); }
  at::Tensor forward(const at::Tensor& x) { return fused_allgather_for_tp(there(x), 0); }
  nn::Linear there;
};
SMP_MODULE(Gathered);

TEST(GroupSteps, TakeWhatAnotherStageHasPromised) {
  torch::manual_seed(1);
  torch::nn::Linear plain(4, 4);
  plain->to(torch::kDouble);
  const auto x = at::sin(at::arange(24, at::kDouble)).view({6, 4});
  (plain(x).square().sum() / kMicrobatches).backward();  // each of 2 ranks has all rows, halved
  run_local(4,
            [&] {
              torch::manual_seed(1);
              Gathered net;
              DistributedModel model(net);
              model.set_partition("", 0);
              model.set_partition("there", 1);
              auto train = step([&](const at::Tensor& part) {
                const auto loss = model(part).square().sum() / 2;
                model.backward(loss);
                return loss;
              });
              train(x);
              if (pp_rank() == 0) return;
              // Each rank's rows count in the losses of both.
              EXPECT_TRUE(torch::allclose(net->there->weight.grad(), plain->weight.grad(), 1e-12));
            },
            config_of(2, 2), {1});
}

TEST(GroupSteps, ForgetTheirLanes) {
  run_local(2,
            [] {
              SlicedBag net;
              DistributedModel model(net);
              auto train = step([&](const at::Tensor& tokens) {
                const auto loss = model(tokens).sum();
                model.backward(loss);
                return loss;
              });
              // From the second step on buckets of gradients have lanes of their own, which stay.
              for (int s = 0; s < 2; ++s) train(samples(s, dp_rank()).tokens);
              const auto after_two = Rank::current().groups().lanes();
              for (int s = 2; s < 6; ++s) train(samples(s, dp_rank()).tokens);
              EXPECT_EQ(Rank::current().groups().lanes(), after_two);
            },
            config_of(2), {1});
}

/// Of a step, with gradients that hooks make shorter where they travel.
std::map<std::string, at::Tensor> gradients_with_hook(bool hook) {
  std::map<std::string, at::Tensor> gradients;
  run_local(2,
            [&] {
              torch::manual_seed(3);
              SlicedBag net;
              DistributedModel model(net);
              if (hook) model.register_comm_hook(bf16_compress_hook());
              auto train = step([&](const at::Tensor& tokens, const at::Tensor& targets) {
                const auto loss = torch::mse_loss(model(tokens), targets);
                model.backward(loss);
                return loss;
              });
              const auto [tokens, targets] = samples(0, dp_rank());
              train(tokens, targets);
              if (rank() != 0) return;
              for (const auto& [name, parameter] : model.local_named_parameters()) {
                gradients[name] = parameter.grad().clone();
              }
            },
            config_of(2), {1});
  return gradients;
}

TEST(GroupSteps, RoundNoGradientOfASliceThatIsHereAlone) {
  const auto exact = gradients_with_hook(false), rounded = gradients_with_hook(true);
  for (const auto& [name, gradient] : exact) {
    const bool slice = name == "embed.weight" || name == "first.weight" || name == "second.weight";
    EXPECT_EQ(at::equal(gradient, rounded.at(name)), slice) << name;
  }
}

TEST(GroupSteps, RefuseTheStockEngine) {
  run_local(2,
            [] {
              SlicedBag net;
              DistributedModel model(net);
              auto train = step([&](const at::Tensor& tokens) {
                auto loss = model(tokens).sum();
                loss.backward();
                return loss;
              });
              EXPECT_THAT(end_of([&] { train(samples(0, 0).tokens); }),
                          HasSubstr("model.backward(loss)"));
            },
            config_of(2), {1});
}

}  // namespace group_steps_test
}  // namespace smp::tp
