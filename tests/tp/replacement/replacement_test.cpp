// Replacement of marked modules: as one process with the weights of the original, and only where
// the four conditions hold.
#include "smp/tp/replacement.h"

#include <gmock/gmock.h>

#include "support/refusal.h"
#include "tp/training/sliced_training.h"

namespace smp::tp {
namespace replacement_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

Config config_of(int tp, int pp = 1) {
  Config config;
  config.tensor_parallel_degree = tp;
  config.pipeline_parallel_degree = pp;
  config.microbatches = 2;
  return config;
}

/// Layers of LibTorch, routed or not.
struct Routed {
  using Embedding = nn::Embedding;
  using Linear = nn::Linear;
  using LayerNorm = nn::LayerNorm;
};
struct Plain {
  using Embedding = torch::nn::Embedding;
  using Linear = torch::nn::Linear;
  using LayerNorm = torch::nn::LayerNorm;
};

template <class Layers>
struct TextImpl : torch::nn::Module {
  TextImpl()
      : embed(register_module("embed", typename Layers::Embedding(11, 8))),
        norm(register_module("norm", typename Layers::LayerNorm(torch::nn::LayerNormOptions({8})))),
        wide(register_module("wide", typename Layers::Linear(8, 16))),
        narrow(register_module("narrow", typename Layers::Linear(16, 3))) {
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    return narrow(torch::relu(wide(norm(embed(tokens))))).mean(1);
  }
  typename Layers::Embedding embed;
  typename Layers::LayerNorm norm;
  typename Layers::Linear wide, narrow;
};
using RoutedTextImpl = TextImpl<Routed>;
SMP_MODULE(RoutedText);

at::Tensor tokens_of(int step, int replica) {
  const auto n = at::arange(4 * 5, at::kLong);
  return at::remainder(n * n + 7 * step + 3 * replica, 11).view({4, 5});
}

template <class Make>
std::map<std::string, at::Tensor> train_in_one_process(int replicas, int steps, const Make& make) {
  torch::manual_seed(2);
  TextImpl<Plain> net;
  auto optimizer = make(net.parameters());
  for (int s = 0; s < steps; ++s) {
    optimizer.zero_grad();
    for (int replica = 0; replica < replicas; ++replica) {
      for (const auto& part : tokens_of(s, replica).chunk(2)) {
        (net.forward(part).square().sum() / (2 * replicas)).backward();
      }
    }
    optimizer.step();
  }
  std::map<std::string, at::Tensor> values;
  for (const auto& item : net.named_parameters()) values[item.key()] = item.value().detach();
  return values;
}

template <class Make>
void expect_as_in_one_process(int tp, int pp, int ranks, const Make& make) {
  constexpr int kManySteps = 4;
  const auto reference = train_in_one_process(ranks / pp, kManySteps, make);
  run_local(ranks,
            [&] {
              torch::manual_seed(2);
              RoutedText net;
              set_tensor_parallelism(net);
              set_tensor_parallelism(net->narrow, false);
              auto inner = make(net->parameters());  // made before the model is wrapped
              DistributedModel model(net);
              EXPECT_EQ(net->embed->weight.sizes(), at::IntArrayRef({11, 8 / tp}));
              EXPECT_EQ(net->norm->bias.sizes(), at::IntArrayRef({8 / tp}));
              EXPECT_EQ(net->wide->weight.sizes(), at::IntArrayRef({16, 8 / tp}));
              EXPECT_EQ(net->narrow->weight.sizes(), at::IntArrayRef({3, 16})) << "not marked";
              model.set_partition("", 0);
              model.set_partition("wide", pp - 1);
              model.set_partition("embed", pp - 1);
              DistributedOptimizer optimizer(model, std::move(inner));
              auto train = step([&](const at::Tensor& tokens) {
                const auto loss = model(tokens).square().sum();
                model.backward(loss);
                return loss;
              });
              for (int s = 0; s < kManySteps; ++s) {
                optimizer.zero_grad();
                train(tokens_of(s, dp_rank()));
                optimizer.step();
              }
              for (const auto& [name, value] : model.local_named_parameters()) {
                auto expected = reference.at(name);
                if (value.sizes() != expected.sizes()) {
                  expected = expected.chunk(tp, -1)[static_cast<std::size_t>(tp_rank())];
                }
                EXPECT_TRUE(torch::allclose(value, expected, 1e-12, 1e-13)) << name;
              }
            },
            config_of(tp, pp), {3});
}

TEST(Replacement, KeepsTheWeightsAndEqualsOneProcess) {
  const auto make = [](const std::vector<at::Tensor>& parameters) { return sgd(parameters); };
  expect_as_in_one_process(2, 1, 2, make);
  expect_as_in_one_process(4, 1, 4, make);
  expect_as_in_one_process(2, 2, 4, make);
  expect_as_in_one_process(2, 2, 8, make);
}

/// Adagrad's is there before the first step, of the shapes that parameters have then.
TEST(Replacement, SlicesStateThatTheOptimizerIsBuiltWith) {
  const auto make = [](const std::vector<at::Tensor>& parameters) {
    return torch::optim::Adagrad(parameters,
                                 torch::optim::AdagradOptions(0.1).initial_accumulator_value(0.01));
  };
  expect_as_in_one_process(2, 1, 2, make);
  expect_as_in_one_process(2, 2, 8, make);
}

// ---- conditions ----

/// What becomes of the marked modules of a model on two ranks, by path.
std::map<std::string, std::string> obstacles_of(
    const std::function<std::shared_ptr<torch::nn::Module>()>& make) {
  std::map<std::string, std::string> obstacles;
  run_local(2,
            [&] {
              const auto model = make();
              for (const auto& row : replace_marked_modules(*model)) {
                if (row.marked) obstacles[row.path] = row.obstacle;
                EXPECT_TRUE(row.marked || row.obstacle.starts_with("not marked")) << row.path;
              }
            },
            config_of(2), {1});
  return obstacles;
}

TEST(Replacement, NeedsAMark) {
  EXPECT_THAT(obstacles_of([] { return RoutedText().ptr(); }), IsEmpty());
  const auto marked = obstacles_of([] {
    const tensor_parallelism spread;
    const tensor_parallelism not_here(false);
    RoutedText net;
    set_tensor_parallelism(net->wide);
    return net.ptr();
  });
  EXPECT_EQ(marked, (std::map<std::string, std::string>{{"wide", ""}}));
  EXPECT_EQ(obstacles_of([] {
              const tensor_parallelism spread;
              return RoutedText().ptr();
            }).size(),
            4u)
      << "a scope marks what is made in it";
}

TEST(Replacement, RefusesToMarkWhatCannotBe) {
  torch::nn::Linear plain(4, 4);
  EXPECT_THROW(set_tensor_parallelism(plain), UsageError);
  set_tensor_parallelism(plain, false);
  torch::nn::ReLU without_weights;
  set_tensor_parallelism(without_weights);
  torch::nn::Sequential holder(nn::Linear(4, 4));
  set_tensor_parallelism(holder);
}

/// Marks that come too late, or go.
TEST(Replacement, RefusesMarksAfterTheModelWasWrapped) {
  for (const bool placed : {false, true}) {
    for (const bool added : {true, false}) {
      SCOPED_TRACE(testing::Message() << (placed ? "placed, " : "") << (added ? "added" : "gone"));
      std::string said;
      run_local(2,
                [&] {
                  RoutedText net;
                  set_tensor_parallelism(net->embed, !added);
                  DistributedModel model(net);
                  if (placed) model.place();
                  const auto text = refusal([&] {
                    set_tensor_parallelism(net->embed, added);
                    model.place();
                  });
                  if (tp_rank() == 0) said = text;
                },
                config_of(2), {1});
      EXPECT_THAT(said,
                  AllOf(HasSubstr("'embed'"), HasSubstr(placed ? "placed already" : "wrapped")));
      if (!placed) {
        EXPECT_THAT(said, HasSubstr(added ? "would stay whole" : "would stay spread"));
      }
    }
  }
}

/// The same mark again changes nothing.
TEST(Replacement, TakesAMarkThatIsThereAlready) {
  run_local(2,
            [&] {
              RoutedText net;
              set_tensor_parallelism(net);
              DistributedModel model(net);
              set_tensor_parallelism(net);
              model.place();
              set_tensor_parallelism(net);
              EXPECT_EQ(net->embed->weight.sizes(), at::IntArrayRef({11, 4}));
            },
            config_of(2), {1});
}

TEST(Replacement, KnowsWhatCouldBeMarked) {
  std::map<std::string, std::string> unmarked;
  run_local(3,
            [&] {
              RoutedText net;
              set_tensor_parallelism(net->wide, false);
              for (const auto& row : replace_marked_modules(*net)) {
                if (rank() == 0 && !row.marked) unmarked[row.path] = row.obstacle;
              }
            },
            config_of(3), {1});
  EXPECT_THAT(unmarked.at("embed"), HasSubstr("not marked, and "));
  EXPECT_THAT(unmarked.at("embed"), HasSubstr("8 cannot be divided by 3"));
  EXPECT_EQ(unmarked.size(), 4u) << "a class with a distributed implementation each";
  run_local(2,
            [&] {
              RoutedText net;
              set_tensor_parallelism(net->wide);
              for (const auto& row : replace_marked_modules(*net)) {
                EXPECT_EQ(row.obstacle, row.path == "wide" ? "" : "not marked") << row.path;
              }
            },
            config_of(2), {1});
}

TEST(Replacement, ListsModulesThatWereBuiltDistributed) {
  run_local(2,
            [] {
              nn::Sequential net(nn::DistributedLinear(4, 4), nn::Linear(4, 4));
              set_tensor_parallelism(net);
              const auto rows = replace_marked_modules(*net);
              ASSERT_EQ(rows.size(), 2u);
              EXPECT_TRUE(rows[0].built && rows[0].path == "0" && rows[0].obstacle.empty())
                  << rows[0].obstacle;
              EXPECT_THAT(rows[0].type, HasSubstr("DistributedLinearImpl"));
              EXPECT_FALSE(rows[1].built);
            },
            config_of(2), {1});
}

/// A distributed module of the user's, with an ordinary layer in it.
struct GatedImpl : DistributedModule {
  GatedImpl() : inner(register_module("inner", nn::Linear(4, 4))) {
    gate = register_slice("gate", torch::ones({4}), 0);
  }
  at::Tensor forward(const at::Tensor& x) { return inner(x); }
  nn::Linear inner;
  at::Tensor gate;
};
SMP_MODULE(Gated);

TEST(Replacement, LooksIntoModulesThatWereBuiltDistributed) {
  run_local(2,
            [] {
              Gated net;
              set_tensor_parallelism(net);
              const auto rows = replace_marked_modules(*net);
              ASSERT_EQ(rows.size(), 2u);
              EXPECT_TRUE(rows[0].built);
              EXPECT_EQ(rows[1].path, "inner");
              EXPECT_EQ(rows[1].obstacle, "");
              EXPECT_EQ(net->inner->weight.sizes(), at::IntArrayRef({4, 2})) << "it is a slice now";
            },
            config_of(2), {1});
}

struct MixtureImpl : torch::nn::Module {
  explicit MixtureImpl(int frozen)
      : experts(register_module("experts", nn::MixtureOfExperts(nn::MixtureOfExpertsOptions(
                                               nn::GatedMlpOptions(4, 3), 3, 1)))) {
    for (int i = 0; i < frozen; ++i) freeze(*experts->experts[static_cast<std::size_t>(i)]);
    set_tensor_parallelism(experts);
  }
  static void freeze(const torch::nn::Module& expert) {
    for (const auto& parameter : expert.parameters()) parameter.requires_grad_(false);
  }
  nn::MixtureOfExperts experts;
};

TEST(Replacement, LeavesFrozenExpertsFrozen) {
  run_local(
      2,
      [] {
        for (const int frozen : {0, 3}) {
          MixtureImpl net(frozen);
          EXPECT_EQ(replace_marked_modules(net).at(0).obstacle, "");
          const auto parameters = net.named_parameters();
          EXPECT_TRUE(parameters["experts.gate.weight"].requires_grad());
          for (const auto* name : {"gate_proj", "up_proj", "down_proj"}) {
            EXPECT_EQ(parameters[std::string("experts.experts.") + name].requires_grad(),
                      frozen == 0)
                << name;
          }
        }
        MixtureImpl net(1);
        const auto rows = replace_marked_modules(net);
        EXPECT_THAT(rows.at(0).obstacle, HasSubstr("some of its experts are frozen"));
        for (const auto& row : rows) {
          const bool of_expert = row.path.starts_with("experts.experts.");
          EXPECT_EQ(row.obstacle.empty(), row.path == "experts.gate") << row.path;
          EXPECT_EQ(row.obstacle.find("another number of tokens") != std::string::npos, of_expert)
              << row.path << ": " << row.obstacle;
        }
      },
      config_of(2), {1});
}

/// Keys that are values, too: the one weight of both would be cut twice.
TEST(Replacement, LeavesModulesAloneThatHaveAParameterTwice) {
  const auto obstacles = obstacles_of([] {
    const tensor_parallelism spread;
    nn::GroupedQueryAttention attention(nn::GroupedQueryAttentionOptions(8, 2));
    attention->v_proj = attention->replace_module("v_proj", attention->k_proj);
    return nn::Sequential(attention).ptr();
  });
  EXPECT_THAT(obstacles.at("0"),
              AllOf(HasSubstr("'k_proj.weight' and 'v_proj.weight'"), HasSubstr("are one tensor")));
}

/// LibTorch registers nothing where a layer is given the weight of another one.
TEST(Replacement, LeavesModulesAloneThatTookAWeightOfAnother) {
  const auto obstacles = obstacles_of([] {
    const tensor_parallelism spread;
    nn::Embedding table(6, 8);
    nn::Linear head(nn::LinearOptions(8, 6).bias(false)), other(8, 6);
    head->weight = table->weight;
    nn::GatedMlp mlp(nn::GatedMlpOptions(8, 4));
    mlp->up_proj->weight = mlp->gate_proj->weight;
    return nn::Sequential(table, head, other, mlp).ptr();
  });
  EXPECT_THAT(obstacles.at("0"), HasSubstr("it shares parameter 'weight'"));
  EXPECT_THAT(obstacles.at("1"), HasSubstr("it shares parameter 'weight'"));
  EXPECT_EQ(obstacles.at("2"), "");
  EXPECT_THAT(obstacles.at("3"), HasSubstr("'gate_proj.weight' and 'up_proj.weight'"));
}

TEST(Replacement, LeavesSizesAloneThatCannotBeDivided) {
  const auto obstacles = obstacles_of([] {
    const tensor_parallelism spread;
    return nn::Sequential(nn::Linear(3, 4), nn::Embedding(4, 5),
                          nn::LayerNorm(torch::nn::LayerNormOptions({7})),
                          nn::Embedding(torch::nn::EmbeddingOptions(4, 4).max_norm(1).norm_type(0)),
                          nn::Linear(4, 3))
        .ptr();
  });
  EXPECT_THAT(obstacles.at("0"), HasSubstr("in_features 3 cannot be divided by 2"));
  EXPECT_THAT(obstacles.at("1"), HasSubstr("embedding_dim 5 cannot be divided by 2"));
  EXPECT_THAT(obstacles.at("2"), HasSubstr("size 7 cannot be divided by 2"));
  EXPECT_THAT(obstacles.at("3"), HasSubstr("norm_type 0"));
  EXPECT_EQ(obstacles.at("4"), "");
}

struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : one(register_module("one", nn::Linear(4, 4))),
        two(register_module("two", nn::Linear(4, 4))) {
    two->weight = two->register_parameter("tied", one->weight);
  }
  nn::Linear one, two;
};

TEST(Replacement, LeavesSharedParametersAlone) {
  const auto obstacles = obstacles_of([] {
    const tensor_parallelism spread;
    return std::make_shared<TiedImpl>();
  });
  EXPECT_THAT(obstacles.at("one"), HasSubstr("shares parameter 'weight' with another module"));
  EXPECT_THAT(obstacles.at("two"), HasSubstr("shares parameter 'tied' with another module"));
}

TEST(Replacement, SaysWhatIsNotRegistered) {
  const auto obstacles = obstacles_of([] {
    const tensor_parallelism spread;
    return nn::Sequential(nn::Bilinear(4, 4, 4), nn::ReLU()).ptr();
  });
  EXPECT_EQ(obstacles.size(), 1u) << "nothing to say of a layer without parameters";
  EXPECT_THAT(obstacles.at("0"), HasSubstr("no distributed implementation"));
}

/// A module of the user's, with one of the library's below it.
struct ScaledImpl : torch::nn::Module {
  ScaledImpl()
      : factor(register_parameter("factor", torch::arange(1., 5., torch::kDouble))),
        below(register_module("below", nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return x * factor; }
  at::Tensor factor;
  nn::Linear below;
};
SMP_MODULE(Scaled);

struct DistributedScaledImpl : DistributedModule {
  explicit DistributedScaledImpl(ScaledImpl& original) {
    factor = adopt_slice("factor", original.factor, 0);
  }
  static std::string obstacle(const ScaledImpl& original, int ranks) {
    return original.factor.size(0) % ranks == 0 ? "" : "odd";
  }
  at::Tensor forward(const at::Tensor& x) {
    return scatter_and_merge_for_tp(scatter_and_merge_for_tp(x, 1, 0) * factor, 0, 1);
  }
  at::Tensor factor;
};

TEST(Replacement, TakesRulesOfTheUsersAndLeavesWhatIsBelow) {
  tp_register_with_module<ScaledImpl, DistributedScaledImpl>();
  const auto rows = obstacles_of([] {
    const tensor_parallelism spread;
    return Scaled().ptr();
  });
  EXPECT_EQ(rows, (std::map<std::string, std::string>{{"", ""}}));
  run_local(
      2,
      [] {
        const tensor_parallelism spread;
        Scaled net;
        DistributedModel model(net);
        EXPECT_EQ(net->factor.sizes(), at::IntArrayRef({2}));
        auto train = step([&](const at::Tensor& x) {
          const auto loss = model(x).sum();
          model.backward(loss);
          return loss;
        });
        const auto x = torch::ones({4, 4}, torch::kDouble) * (1 + rank());
        EXPECT_NEAR(train(x).reduce_mean().item<double>(), 20. * (1 + rank()), 1e-12);
        EXPECT_TRUE(torch::allclose(net->factor.grad(), torch::full({2}, 3., torch::kDouble)));
      },
      config_of(2), {1});
}

/// In training mode all is dropped.
struct DroppedImpl : torch::nn::Module {
  DroppedImpl() : factor(register_parameter("factor", torch::ones({4}, torch::kDouble))) {}
  at::Tensor forward(const at::Tensor& x) { return torch::dropout(x * factor, 1, is_training()); }
  at::Tensor factor;
};
SMP_MODULE(Dropped);

struct DistributedDroppedImpl : DistributedModule {
  explicit DistributedDroppedImpl(DroppedImpl& original)
      : drop(register_module("drop", torch::nn::Dropout(1.0))) {
    factor = adopt_slice("factor", original.factor, 0);
  }
  static std::string obstacle(const DroppedImpl&, int) { return ""; }
  at::Tensor forward(const at::Tensor& x) {
    return drop(batch_of_slices_for_tp(slices_of_batch_for_tp(x, 1) * factor, 1));
  }
  at::Tensor factor;
  torch::nn::Dropout drop;
};

TEST(Replacement, TrainsAndEvaluatesWithTheModuleItStandsInFor) {
  tp_register_with_module<DroppedImpl, DistributedDroppedImpl>();
  for (const int pp : {1, 2}) {
    run_local(2 * pp,
              [&] {
                nn::Sequential net{nn::Identity(), Dropped()};
                set_tensor_parallelism(*net.ptr());
                DistributedModel model(net);
                model.set_partition("", 0);
                model.set_partition("1", pp - 1);
                auto sum = step([&](const at::Tensor& x) { return model(x).sum(); });
                const torch::NoGradGuard no_grad;
                const auto x = torch::ones({4, 4}, torch::kDouble);
                for (const bool training : {true, false, true, false}) {
                  model.train(training);
                  EXPECT_EQ(sum(x).reduce_sum().item<double>(), training ? 0. : 16.)
                      << "on " << pp << " stages";
                }
              },
              config_of(2, pp), {1});
  }
}

/// A layer that is spread calls parts of its own, not those that were marked.
TEST(Replacement, LosesNoMarkOfWhatIsComputedAgain) {
  const auto wrap = [](bool all) {
    nn::DecoderLayer layer(nn::DecoderLayerOptions(
        nn::GroupedQueryAttentionOptions(8, 2), nn::GatedMlpOptions(8, 4), nn::RMSNormOptions(8)));
    set_tensor_parallelism(layer);
    if (all) {
      set_activation_checkpointing(layer);
    } else {
      set_activation_checkpointing(layer->self_attn);
    }
    DistributedModel model(layer);
    return model.distributed_modules().size();
  };
  run_local(2,
            [&] {
              EXPECT_GT(wrap(true), 0u);
              EXPECT_THAT(
                  refusal<UnsupportedError>([&] { wrap(false); }),
                  testing::AllOf(HasSubstr("'self_attn' is marked"), HasSubstr("DecoderLayer"),
                                 HasSubstr("mark '<root>' itself")));
            },
            config_of(2), {1});
}

/// Those that a call leaves out are the defaults of the layer that stands in.
TEST(Replacement, TakesCallsThatLeaveOutArguments) {
  std::vector<double> sums(2);
  for (const int ranks : {1, 2}) {
    run_local(
        ranks,
        [&] {
          torch::manual_seed(3);
          nn::GroupedQueryAttention layer(nn::GroupedQueryAttentionOptions(8, 2));
          layer->to(torch::kDouble);
          set_tensor_parallelism(layer);
          DistributedModel model(layer);
          const auto x = at::arange(48, at::kDouble).view({2, 3, 8}).sin();
          const auto positions = at::arange(3) + 1;
          auto run = step([&](const at::Tensor& rows) {
            const auto all = model(rows, positions, at::Tensor());
            return model(rows).sum() + 2 * model(rows, positions).sum() + 4 * all.sum();
          });
          const auto sum = run(x).reduce_sum().item<double>();
          if (rank() == 0) sums[static_cast<std::size_t>(ranks - 1)] = sum;
        },
        [&] {
          auto config = config_of(ranks);
          config.prescaled_batch = ranks > 1;
          return config;
        }(),
        {1});
  }
  EXPECT_NEAR(sums[0], sums[1], 1e-12 * std::abs(sums[0]));
}

TEST(Replacement, DoesNothingOnOneRankOfAGroup) {
  run_local(2,
            [] {
              const tensor_parallelism spread;
              RoutedText net;
              DistributedModel model(net);
              EXPECT_EQ(net->embed->weight.sizes(), at::IntArrayRef({11, 8}));
            },
            config_of(1, 1), {1});
}

}  // namespace replacement_test
}  // namespace smp::tp
