// Several models in one program, whose first steps come one after another: each is placed by what a
// trial run of a step that uses it has shown, and all train as in one process.
#include <torch/optim/sgd.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/state/module_state_testing.h"
#include "smp/delayed_init.h"

namespace smp {
namespace later_models_test {

using module_state_test::batch;
using module_state_test::config_of;
using module_state_test::kMicrobatches;
using module_state_test::kWidth;
using module_state_test::linear;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using torch::Tensor;

// ---- models ------------------------------------------------------------------------------------

struct ChainImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return second(torch::tanh(first(x))); }
  nn::Linear first = register_module("first", linear());
  nn::Linear second = register_module("second", linear());
};
SMP_MODULE(Chain);

/// Weight normalisation: a member that its parent reads as well.
struct UpImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    if (!only_in_training || is_training()) weight = v / v.norm();
    return x.matmul(weight);
  }
  Tensor v = register_parameter("v", torch::randn({kWidth, kWidth}));
  Tensor weight;
  bool only_in_training = false;
};
SMP_MODULE(Up);

struct TiedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const auto y = torch::tanh(up(in(x)));
    return !up->only_in_training || is_training() ? y.matmul(up->weight.t()) : y;
  }
  nn::Linear in = register_module("in", linear());
  Up up = register_module("up", Up());
};
SMP_MODULE(Tied);

// ---- programs ----------------------------------------------------------------------------------

using Forward = std::function<Tensor(const Tensor&)>;
struct Forwards {
  Forward a, b, c;  ///< of a Chain and two Tied
};
using Body = std::function<Tensor(const Forwards&, const Tensor&)>;

Tensor use_a(const Forwards& models, const Tensor& x) { return models.a(x).pow(2).mean(); }
Tensor use_b(const Forwards& models, const Tensor& x) { return (models.b(x) - 1).pow(2).mean(); }
Tensor use_c(const Forwards& models, const Tensor& x) { return (models.c(x) + 1).pow(2).mean(); }

/// One step: of which function, and how.
struct Act {
  int body;
  bool trains = true;
};

struct Program {
  std::vector<Body> bodies;  // three at most
  std::vector<Act> acts;
  int makes_b_before = 0;  // an act
  bool delayed = false;
  bool only_in_training = false;
  std::function<void(int act)> before = [](int) {};  // an act, on every rank

  Tied make_tied() const {
    Tied net;
    net->up->only_in_training = only_in_training;
    net->to(torch::kDouble);
    if (only_in_training) net->up->weight = net->up->v.detach().clone();  // an evaluation is first
    return net;
  }
};

struct Outcome {
  std::vector<double> losses;
  std::map<std::string, Tensor> tensors;
};

void note(Outcome& outcome, const std::string& model,
          const DistributedModelBase::NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) outcome.tensors[model + name] = tensor.detach();
}

DistributedModelBase::NamedTensors all_of(const torch::nn::Module& module) {
  DistributedModelBase::NamedTensors all;
  for (const auto& item : module.named_parameters()) all.emplace_back(item.key(), item.value());
  return all;
}

/// LibTorch alone, on the batches of all replicas.
Outcome in_one_process(const Program& program, int replicas) {
  Outcome outcome;
  torch::manual_seed(11);
  Chain a;
  a->to(torch::kDouble);
  Tied b = program.make_tied(), c = program.make_tied();
  std::vector<std::unique_ptr<torch::optim::SGD>> optimizers;
  for (auto* net : std::vector<torch::nn::Module*>{&*a, &*b, &*c}) {
    optimizers.push_back(std::make_unique<torch::optim::SGD>(net->parameters(), 0.05));
  }
  const Forwards models{[&](const Tensor& x) { return a(x); },
                        [&](const Tensor& x) { return b(x); },
                        [&](const Tensor& x) { return c(x); }};
  for (int i = 0; i < static_cast<int>(program.acts.size()); ++i) {
    const auto& act = program.acts[i];
    program.before(i);
    for (auto* net : std::vector<torch::nn::Module*>{&*a, &*b, &*c}) net->train(act.trains);
    for (auto& optimizer : optimizers) optimizer->zero_grad();
    const torch::AutoGradMode grad(act.trains);
    double mean = 0;
    for (int r = 0; r < replicas; ++r) {
      for (const auto& x : batch(replicas * i + r).tensor_split(kMicrobatches)) {
        const auto loss = program.bodies[act.body](models, x) / (kMicrobatches * replicas);
        mean += loss.item<double>();
        if (act.trains) loss.backward();
      }
    }
    outcome.losses.push_back(mean);
    if (!act.trains) continue;
    for (auto& optimizer : optimizers) optimizer->step();
  }
  note(outcome, "a.", all_of(*a));
  note(outcome, "b.", all_of(*b));
  note(outcome, "c.", all_of(*c));
  return outcome;
}

/// A step function of a type of its own.
template <int kNumber>
struct StepBody {
  const Program* program;
  const Forwards* models;
  DistributedModelBase* model;
  Tensor operator()(const Tensor& x) const {
    auto loss = program->bodies[kNumber](*models, x);
    if (torch::GradMode::is_enabled()) model->backward(loss);
    return loss;
  }
};

/// A model and its optimizer.
template <class Net>
struct Trained {
  explicit Trained(Net net)
      : model(std::move(net)), optimizer(model, torch::optim::SGD(model.parameters(), 0.05)) {}
  DistributedModel<Net> model;
  DistributedOptimizer<torch::optim::SGD> optimizer;
};

/// One rank's part.
Outcome on_this_rank(const Program& program) {
  Outcome outcome;
  torch::manual_seed(11);
  std::optional<delay_param_initialization> delay;
  if (program.delayed) delay.emplace();
  Chain net_a;
  net_a->to(torch::kDouble);
  Tied net_b = program.make_tied(), net_c = program.make_tied();
  delay.reset();
  Trained<Chain> a(net_a);
  std::optional<Trained<Tied>> b, c;
  const Forwards models{[&](const Tensor& x) { return a.model(x); },
                        [&](const Tensor& x) { return b->model(x); },
                        [&](const Tensor& x) { return c->model(x); }};
  auto first = smp::step(StepBody<0>{&program, &models, &a.model});
  auto second = smp::step(StepBody<1>{&program, &models, &a.model});
  auto third = smp::step(StepBody<2>{&program, &models, &a.model});
  for (int i = 0; i < static_cast<int>(program.acts.size()); ++i) {
    const auto& act = program.acts[i];
    if (i == program.makes_b_before) {
      b.emplace(net_b);
      c.emplace(net_c);
    }
    program.before(i);
    for (auto* net : std::vector<torch::nn::Module*>{&*net_a, &*net_b, &*net_c}) {
      net->train(act.trains);
    }
    a.optimizer.zero_grad();
    if (b) b->optimizer.zero_grad();
    if (c) c->optimizer.zero_grad();
    const torch::AutoGradMode grad(act.trains);
    const auto x = batch(dp_size() * i + dp_rank());
    const auto losses = act.body == 0 ? first(x) : act.body == 1 ? second(x) : third(x);
    outcome.losses.push_back(losses.reduce_mean().item<double>());
    if (!act.trains) continue;
    a.optimizer.step();
    if (b) b->optimizer.step();
    if (c) c->optimizer.step();
  }
  note(outcome, "a.", a.model.local_named_parameters());
  if (b) note(outcome, "b.", b->model.local_named_parameters());
  if (c) note(outcome, "c.", c->model.local_named_parameters());
  return outcome;
}

void expect_as_in_one_process(const Program& program, int stages, int replicas) {
  SCOPED_TRACE(testing::Message() << stages << " stages, " << replicas << " replicas");
  const auto reference = in_one_process(program, replicas);
  auto config = config_of("interleaved");
  config.pipeline_parallel_degree = stages;
  std::vector<double> losses(program.acts.size());
  run_local(stages * replicas,
            [&] {
              const auto ours = on_this_rank(program);
              for (const auto& [name, tensor] : ours.tensors) {
                EXPECT_TRUE(torch::allclose(tensor, reference.tensors.at(name), 1e-12, 1e-12))
                    << name;
              }
              if (pp_rank() != 0) return;
              for (std::size_t i = 0; i < losses.size(); ++i)
                losses[i] += ours.losses[i] / replicas;
            },
            config, {.seed = 3, .mean_delay = 1e-4});
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], reference.losses[i], 1e-12) << "step " << i;
  }
}

void expect_as_in_one_process(const Program& program) {
  for (const int stages : {1, 2}) expect_as_in_one_process(program, stages, 1);
  expect_as_in_one_process(program, 2, 2);
}

const std::vector<Act> kOneAfterAnother{{0}, {0}, {1}, {1}, {0}, {2}, {1}};

TEST(LaterModels, WaitForAStepThatUsesThem) {
  expect_as_in_one_process({{use_a, use_b, use_c}, kOneAfterAnother});
}

TEST(LaterModels, MayBeMadeBetweenSteps) {
  Program program{{use_a, use_b, use_c}, kOneAfterAnother};
  program.makes_b_before = 2;
  expect_as_in_one_process(program);
}

TEST(LaterModels, MayHaveDelayedInitialisation) {
  Program program{{use_a, use_b, use_c}, kOneAfterAnother};
  program.delayed = true;
  expect_as_in_one_process(program);
  program.makes_b_before = 2;
  expect_as_in_one_process(program);
}

/// Its trial needs values of the first, which are on other ranks, and has none of its own.
TEST(LaterModels, MayHaveDelayedInitialisationAndUseAPlacedOne) {
  const auto both = [](const Forwards& models, const Tensor& x) {
    return models.b(models.a(x)).pow(2).mean();
  };
  Program program{{use_a, both, use_c}, kOneAfterAnother};
  program.delayed = true;
  testing::internal::CaptureStderr();
  expect_as_in_one_process(program);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::Not(HasSubstr("could not be run in advance")));
}

TEST(LaterModels, MayComeWithAnEvaluation) {
  const std::vector<Act> acts{{0, false}, {0}, {1, false}, {1}, {2, false}, {1}, {2}};
  expect_as_in_one_process({{use_a, use_b, use_c}, acts});
}

/// What the evaluation's trial does not show, a run of it in training mode does.
TEST(LaterModels, MayKeepStateInTrainingOnly) {
  const std::vector<Act> acts{{1, false}, {1}, {1}, {0}, {2, false}, {2}, {2}};
  Program program{{use_a, use_b, use_c}, acts};
  program.only_in_training = true;
  expect_as_in_one_process(program);
}

/// A step whose trial needs values that are on other ranks, as the first model is placed there.
TEST(LaterModels, MayUseEarlierOnes) {
  const auto use_both = [](const Forwards& models, const Tensor& x) {
    return (models.b(models.a(x)) - models.a(x)).pow(2).mean();
  };
  const auto use_all = [](const Forwards& models, const Tensor& x) {
    return (models.c(torch::tanh(models.b(x))) - models.a(x)).pow(2).mean();
  };
  expect_as_in_one_process({{use_a, use_both, use_all}, kOneAfterAnother});
}

/// One function, which does what a variable says.
TEST(LaterModels, MayBeUsedByAFunctionThatDidNotBefore) {
  const auto turn = std::make_shared<int>(0);
  const auto use_one = [turn](const Forwards& models, const Tensor& x) {
    return *turn < 2 ? use_a(models, x) : *turn < 4 ? use_b(models, x) : use_c(models, x);
  };
  Program program{{use_one, use_a, use_a}, {{0}, {0}, {0}, {0}, {0}, {0}, {1}}};
  program.before = [turn](int act) { *turn = act; };
  expect_as_in_one_process(program);
}

/// A regulariser may be all that reads it.
TEST(LaterModels, AreUsedByReadsOfTheirWeightsToo) {
  run_local(
      2,
      [] {
        torch::manual_seed(11);
        Chain a;
        Tied b;
        DistributedModel model_a(a);
        DistributedModel model_b(b);
        model_b.set_partition("", 0);  // with the body, which reads it
        auto train = smp::step([&](const Tensor& x) {
          model_a.backward(model_a(x).mean() + b->in->weight.pow(2).sum());
        });
        train(torch::ones({4, kWidth}));
        EXPECT_TRUE(model_b.partitioned());
        if (model_b.owns(b->in->weight)) {
          EXPECT_TRUE(torch::allclose(b->in->weight.grad(), 2 * b->in->weight));
        }
      },
      config_of("interleaved"));
}

TEST(LaterModels, AreThereOnEveryRankWhileTheyWait) {
  run_local(
      4,
      [] {
        torch::manual_seed(11);
        Chain a;
        Tied b;
        DistributedModel model_a(a);
        DistributedModel model_b(b);
        auto train = smp::step([&](const Tensor& x) {
          const auto loss = model_a(x).mean();
          if (loss.requires_grad()) model_a.backward(loss);
          return loss;
        });
        for (int step = 0; step < 4; ++step) train(torch::ones({4, kWidth}));
        EXPECT_TRUE(model_a.partitioned());
        EXPECT_FALSE(model_b.partitioned());
        EXPECT_GT(parameter_norm(model_a), 0);
        EXPECT_EQ(state_dict(*b).size(), 3);
        // A replica may evaluate by itself all the same.
        if (dp_rank() == 1) {
          const torch::NoGradGuard no_grad;
          train(torch::ones({4, kWidth}));
        }
        train(torch::ones({4, kWidth}));
        // A step of the function may use it at any time, so it does not wait for ever.
        for (int step = 0; step < 8; ++step) train(torch::ones({4, kWidth}));
        EXPECT_TRUE(model_b.partitioned());
      },
      [] {
        auto config = config_of("interleaved");
        config.pipeline_parallel_degree = 2;
        return config;
      }());
}

/// What the trial does not show.
TEST(LaterModels, ThatComeUnexpectedAreRefusedOrPlacedByHand) {
  for (const bool by_hand : {false, true}) {
    run_local(
        2,
        [by_hand] {
          torch::manual_seed(11);
          Chain a, b;
          DistributedModel model_a(a);
          DistributedModel model_b(b);
          bool both = false;
          auto train = smp::step([&](const Tensor& x) {
            auto loss = model_a(x).mean();
            if (both && !is_tracing()) loss = loss + model_b(x).mean();
            model_a.backward(loss);
          });
          for (int step = 0; step < 3; ++step) train(torch::ones({4, kWidth}));
          both = true;
          if (by_hand) {
            model_b.place();
            return train(torch::ones({4, kWidth})), void();
          }
          const auto text = refused_step<UsageError>(0, [&] { train(torch::ones({4, kWidth})); });
          EXPECT_THAT(text,
                      AllOf(HasSubstr("ChainImpl) was called in a step"), HasSubstr("place()")));
        },
        config_of("interleaved"));
  }
}

/// Without a trial nobody knows that the parent reads what `up` sets on another rank.
TEST(LaterModels, MembersThatAreUndefinedHereAreNamed) {
  auto config = config_of("interleaved");
  config.skip_tracing = true;
  run_local(
      2,
      [] {
        torch::manual_seed(11);
        Tied net;
        DistributedModel model(net);
        model.set_partition("up", 1);
        auto train = smp::step([&](const Tensor& x) { model.backward(model(x).mean()); });
        std::string text;
        try {
          train(torch::ones({4, kWidth}));
        } catch (const std::exception& error) {
          text = error.what();
        }
        EXPECT_THAT(text, HasSubstr("undefined Tensor"));
        if (rank() != 1) return;
        EXPECT_THAT(text, ContainsRegex("'up' \\([a-z_:]*UpImpl, byte "));
      },
      config);
}

}  // namespace later_models_test
}  // namespace smp
