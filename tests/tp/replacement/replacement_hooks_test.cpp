// Modules that are replaced by a class which was not written for them: hooks make it, and translate
// arguments and results.
#include <gmock/gmock.h>

#include "smp/tp/replacement.h"
#include "support/refusal.h"
#include "tp/layer_comparison.h"
#include "tp/plain_transformer.h"
#include "tp/training/sliced_training.h"

namespace smp::tp {
namespace replacement_hooks_test {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

Config config_of(int tp, int pp) {
  Config config;
  config.tensor_parallel_degree = tp;
  config.pipeline_parallel_degree = pp;
  config.microbatches = 2;
  return config;
}

AttentionLayerOptions attention() {
  auto options = attention_options();
  options.causal_mask_size = 16;
  return options;
}

/// A block as a user writes it: other names, one tensor in and out.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(std::int64_t intermediate = 12) {
    auto output = output_options();
    output.intermediate_size = intermediate;
    core = register_module("core", PlainLayer(attention(), output));
  }
  at::Tensor forward(const at::Tensor& hidden) {
    TransformerState state;
    state.hidden = hidden;
    return core(state).hidden;
  }
  PlainLayer core{nullptr};
};
SMP_MODULE(Block);

ReplacementHooks<BlockImpl, nn::DistributedTransformerLayerImpl> block_hooks(double dropout = 0) {
  return {.init =
              [dropout](BlockImpl& block) {
                auto options = block.core->output->options;
                options.hidden_dropout_prob = dropout;
                auto made =
                    std::make_shared<nn::DistributedTransformerLayer::Impl>(attention(), options);
                std::map<std::string, at::Tensor> values;
                for (const auto& item : block.core->named_parameters()) {
                  values[item.key()] = item.value();
                }
                set_whole_values(*made, values);
                return made;
              },
          .forward =
              [](const at::Tensor& hidden) {
                TransformerState state;
                state.hidden = hidden;
                return std::tuple(state);
              },
          .result = [](const TransformerState& state) { return state.hidden; },
          .obstacle =
              [](const BlockImpl& block, int ranks) {
                const auto width = block.core->output->options.intermediate_size;
                return width % ranks == 0 ? "" : std::to_string(width) + " cannot be divided";
              }};
}

struct StackImpl : torch::nn::Module {
  StackImpl()
      : one(register_module("one", Block())),
        two(register_module("two", Block())),
        top(register_module("top", nn::Linear(kHidden, 3))) {
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return top(two(one(x))); }
  Block one, two;
  nn::Linear top;
};
SMP_MODULE(Stack);

at::Tensor rows_of(int step, int replica) {
  const auto n = at::arange(4 * 5 * kHidden, at::kDouble);
  return at::sin(n * 0.37 + 11 * step + 3 * replica).view({4, 5, kHidden});
}

constexpr int kManySteps = 3;

/// The parameters of the textbook model after some steps, by the names that they have with
/// distributed blocks.
std::map<std::string, at::Tensor> train_in_one_process(int replicas) {
  torch::manual_seed(4);
  StackImpl net;
  auto optimizer = sgd(net.parameters());
  for (int s = 0; s < kManySteps; ++s) {
    optimizer.zero_grad();
    for (int replica = 0; replica < replicas; ++replica) {
      for (const auto& part : rows_of(s, replica).chunk(2)) {
        (net.forward(part).square().mean() / (2 * replicas)).backward();
      }
    }
    optimizer.step();
  }
  std::map<std::string, at::Tensor> values;
  for (const auto& item : net.named_parameters()) {
    auto name = item.key();
    const auto core = name.find("core.");
    if (core != std::string::npos) name.erase(core, 5);
    values[name] = item.value().detach();
  }
  return values;
}

void expect_as_in_one_process(int tp, int pp, int ranks) {
  const auto reference = train_in_one_process(ranks / pp);
  tp_register_with_module<BlockImpl, nn::DistributedTransformerLayerImpl>(block_hooks());
  run_local(ranks,
            [&] {
              torch::manual_seed(4);
              Stack net;
              set_tensor_parallelism(net->one);
              set_tensor_parallelism(net->two);
              DistributedModel model(net);
              model.set_partition("", 0);
              model.set_partition("two", pp - 1);
              DistributedOptimizer optimizer(model, sgd(model.parameters()));
              auto train = step([&](const at::Tensor& x) {
                const auto loss = model(x).square().mean();
                model.backward(loss);
                return loss;
              });
              for (int s = 0; s < kManySteps; ++s) {
                optimizer.zero_grad();
                train(rows_of(s, dp_rank()));
                optimizer.step();
              }
              EXPECT_EQ(model.named_parameters().size(), reference.size());
              EXPECT_TRUE(model.is_distributed_parameter(net->one->parameters()[0]));
              const auto dict = model.state_dict(kAllPpRanks);
              for (const auto& [name, value] : dict) {
                ASSERT_EQ(reference.count(name), 1u) << name;
                expect_near(value, reference.at(name), 1e-12, name);
              }
            },
            config_of(tp, pp), {3});
}

TEST(ReplacementHooks, PutALayerOfTheLibraryInTheUsersPlace) {
  expect_as_in_one_process(2, 1, 2);
  expect_as_in_one_process(4, 1, 4);
  expect_as_in_one_process(2, 2, 4);
  expect_as_in_one_process(2, 2, 8);
}

TEST(ReplacementHooks, DropTheWeightsOfTheOriginal) {
  tp_register_with_module<BlockImpl, nn::DistributedTransformerLayerImpl>(block_hooks());
  run_local(2,
            [] {
              Block net;
              const auto before = net->core->parameters();
              set_tensor_parallelism(net);
              DistributedModel model(net);
              for (const auto& tensor : before) {
                EXPECT_EQ(tensor.numel(), 0);
                EXPECT_THAT(refusal<UsageError>([&] { tensor.square().sum(); }),
                            AllOf(HasSubstr("rank "), HasSubstr("parameter 'core."),
                                  HasSubstr("Use those of model.named_parameters()")));
              }
              std::vector<std::string> names;
              for (const auto& [name, tensor] : model.named_parameters()) names.push_back(name);
              EXPECT_THAT(names, Each(Not(HasSubstr("core"))));
              EXPECT_THAT(names, Contains("attention.query.weight"));
              std::vector<std::string> distributed;
              for (const auto& [path, module] : model.distributed_modules()) {
                distributed.push_back(path);
              }
              EXPECT_THAT(distributed, AllOf(Contains("attention"), Contains("output.first")));
            },
            config_of(2, 1), {1});
}

TEST(ReplacementHooks, LeaveTheOriginalWhereSizesDoNotFit) {
  tp_register_with_module<BlockImpl, nn::DistributedTransformerLayerImpl>(block_hooks());
  run_local(2,
            [] {
              Block net(13);
              set_tensor_parallelism(net);
              const auto rows = replace_marked_modules(*net);
              ASSERT_EQ(rows.size(), 1u);
              EXPECT_THAT(rows[0].obstacle, HasSubstr("13 cannot be divided"));
              EXPECT_EQ(net->core->output->first->weight.sizes(), at::IntArrayRef({13, kHidden}));
            },
            config_of(2, 1), {1});
}

/// What the hooks themselves do wrong is no reason to go on without them.
TEST(ReplacementHooks, EndTheJobIfTheyAreWrong) {
  auto hooks = block_hooks();
  hooks.init = [](BlockImpl&) { return nullptr; };
  tp_register_with_module<BlockImpl, nn::DistributedTransformerLayerImpl>(hooks);
  run_local(2,
            [] {
              Block net;
              set_tensor_parallelism(net);
              EXPECT_THAT(refusal<UsageError>([&] { DistributedModel model(net); }),
                          AllOf(HasSubstr("module '<root>' ("),
                                HasSubstr("the hook init returned no module")));
            },
            config_of(2, 1), {1});
}

struct TwiceImpl : torch::nn::Module {
  TwiceImpl() : one(register_module("one", Block())), two(register_module("two", Block())) {
    two->core = two->replace_module("core", one->core.ptr());
  }
  Block one, two;
};

TEST(ReplacementHooks, LeaveModulesAloneThatShareSomethingBelowThem) {
  tp_register_with_module<BlockImpl, nn::DistributedTransformerLayerImpl>(block_hooks());
  run_local(2,
            [] {
              TwiceImpl net;
              set_tensor_parallelism(net);
              const auto rows = replace_marked_modules(net);
              ASSERT_EQ(rows.size(), 2u);
              for (const auto& row : rows) {
                EXPECT_EQ(row.obstacle, "it shares module 'core' with another module");
              }
            },
            config_of(2, 1), {1});
}

TEST(ReplacementHooks, RefuseAnOptimizerOfWhatIsGone) {
  tp_register_with_module<BlockImpl, nn::DistributedTransformerLayerImpl>(block_hooks());
  run_local(2,
            [] {
              Stack net;
              set_tensor_parallelism(net->one);
              auto early = sgd(net->parameters());
              PlainLayer core = net->one->core;
              DistributedModel model(net);
              EXPECT_THAT(refusal<UsageError>(
                              [&] { DistributedOptimizer optimizer(model, std::move(early)); }),
                          AllOf(HasSubstr("parameter 'one.core.attention."),
                                HasSubstr("make the optimizer of model.parameters() after")));
              EXPECT_THAT(refusal<UsageError>([&] { DistributedModel again(core); }),
                          HasSubstr("has lost its values: as 'one.core."));
              DistributedOptimizer optimizer(model, sgd(model.parameters()));
            },
            config_of(2, 1), {1});
}

/// With dropout, evaluation of the replaced block gives the same each time, training does not.
TEST(ReplacementHooks, TakeTheTrainingModeOfTheOriginal) {
  tp_register_with_module<BlockImpl, nn::DistributedTransformerLayerImpl>(block_hooks(0.5));
  for (const int pp : {1, 2}) {
    run_local(2 * pp,
              [&] {
                torch::manual_seed(4);
                Stack net;
                set_tensor_parallelism(net->two);
                net->eval();
                DistributedModel model(net);
                model.set_partition("", 0);
                model.set_partition("two", pp - 1);
                auto sum = step([&](const at::Tensor& x) { return model(x).sum(); });
                const torch::NoGradGuard no_grad;
                const auto run = [&] { return sum(rows_of(0, 0)).reduce_sum().item<double>(); };
                const auto first = run();
                EXPECT_EQ(run(), first) << "on " << pp << " stages";
                model.train();
                EXPECT_NE(run(), first);
                model.eval();
                EXPECT_EQ(run(), first);
              },
              config_of(2, pp), {1});
  }
}

TEST(ReplacementHooks, AreAskedForWhereTypesDiffer) {
  const auto refused = [](auto&& without) {
    auto hooks = block_hooks();
    without(hooks);
    return refusal<UsageError>(
        [&] { tp_register_with_module<BlockImpl, nn::DistributedTransformerLayerImpl>(hooks); });
  };
  EXPECT_THAT(refused([](auto& hooks) { hooks.init = nullptr; }),
              AllOf(HasSubstr("BlockImpl"), HasSubstr("give the hook init")));
  EXPECT_THAT(refused([](auto& hooks) { hooks.forward = nullptr; }),
              HasSubstr("give the hook forward"));
  EXPECT_THAT(refused([](auto& hooks) { hooks.result = nullptr; }),
              HasSubstr("give the hook result"));
}

TEST(ReplacementHooks, SetWholeValuesOfAllParameters) {
  run_local(
      2,
      [] {
        nn::DistributedLinear layer(4, 3);
        const auto weight = torch::arange(12.).view({3, 4});
        EXPECT_THAT(refusal<UsageError>([&] {
                      set_whole_values(*layer, {{"weight", weight.to(torch::kDouble)},
                                                {"bias", torch::ones(4)}});
                    }),
                    HasSubstr("'bias' is [4], expected [3]"));
        EXPECT_EQ(layer->weight.scalar_type(), torch::kFloat) << "nothing is changed";
        const auto drawn = layer->origin("weight");
        const auto with = [&](const std::map<std::string, at::Tensor>& values) {
          return refusal<UsageError>([&] { set_whole_values(*layer, values); });
        };
        EXPECT_THAT(with({{"weight", weight}}),
                    HasSubstr("no value for parameter 'bias'; given are 'weight'"));
        EXPECT_THAT(with({{"weight", weight.narrow(1, 0, 2)}, {"bias", torch::ones(3)}}),
                    HasSubstr("'weight' is [3, 2], expected the whole, [3, 4]"));
        EXPECT_THAT(with({{"weight", weight}, {"bias", torch::ones(3)}, {"gain", torch::ones(3)}}),
                    HasSubstr("'gain' is none"));
        set_whole_values(*layer, {{"weight", weight.to(torch::kDouble)}, {"bias", torch::ones(3)}});
        EXPECT_EQ(layer->weight.scalar_type(), torch::kDouble);
        EXPECT_TRUE(at::equal(layer->weight.to(torch::kFloat), weight.narrow(1, 2 * tp_rank(), 2)));
        EXPECT_NE(layer->origin("weight"), 0u) << "what ranks compare";
        EXPECT_NE(layer->origin("weight"), drawn);
        EXPECT_TRUE(at::equal(layer->bias, torch::ones(3)));
      },
      config_of(2, 1), {1});
}

}  // namespace replacement_hooks_test
}  // namespace smp::tp
