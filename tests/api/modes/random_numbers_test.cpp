// Random numbers of bodies and modules: keyed by what is computed, so that masks depend on neither
// timing nor placement and never repeat; with the masks that were drawn, training equals plain
// LibTorch (docs/design.md, Random numbers).
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <map>
#include <set>

#include "api/modes/ways.h"
#include "api/two_ranks.h"

namespace smp {
namespace random_numbers_test {

constexpr int kMicrobatches = 4;
constexpr double kDrop = 0.4;

/// Which mask: step, microbatch, module, and the how-manieth call of it for that microbatch.
using MaskKey = std::tuple<int, int, std::string, int>;

/// Of one run. All ranks live in this process, one at a time.
struct Masks {
  std::map<MaskKey, at::Tensor> drawn;
  std::map<std::tuple<int, int, std::string>, int> calls;
  int step = 0;
  int microbatch = 0;  // of the reference, which runs one after the other
  bool inject = false;

  at::Tensor next(const std::string& module, const at::Tensor& like, bool training) {
    const int now = inject ? microbatch : current_microbatch();
    if (!inject && is_tracing()) return at::dropout(at::ones_like(like), kDrop, training);
    const MaskKey key{step, now, module, calls[{step, now, module}]++};
    if (inject) return drawn.at(key);
    return drawn[key] = at::dropout(at::ones_like(like), kDrop, training);
  }
};
Masks* masks = nullptr;

/// LibTorch's dropout, by a mask that is written down.
struct MaskedImpl : torch::nn::Module {
  explicit MaskedImpl(std::string called) : id(std::move(called)) {}
  at::Tensor forward(const at::Tensor& x) { return x * masks->next(id, x, is_training()); }
  std::string id;
};
SMP_MODULE(Masked);

struct MaskedLayerImpl : torch::nn::Module {
  explicit MaskedLayerImpl(const std::string& id)
      : linear(register_module("linear", nn::Linear(6, 6))),
        drop(register_module("drop", Masked(id + ".drop"))) {}
  at::Tensor forward(const at::Tensor& x) { return drop(linear(x).tanh()) + drop(x); }
  nn::Linear linear;
  Masked drop;
};
SMP_MODULE(MaskedLayer);

struct MaskedNetImpl : torch::nn::Module {
  explicit MaskedNetImpl(const std::string& id = "net") {
    for (int i = 0; i < 3; ++i) {
      layers.push_back(
          register_module("layer" + std::to_string(i), MaskedLayer(id + std::to_string(i))));
    }
    to(torch::kDouble);
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return layers[1](x);  // once more
  }
  std::vector<MaskedLayer> layers;
};
SMP_MODULE(MaskedNet);

MaskedNet make_net(const std::string& id = "net") {
  torch::manual_seed(3);
  return MaskedNet(id);
}

at::Tensor batch(int step) {
  return torch::linspace(-1, 1 + step, 8 * 6, torch::kDouble).reshape({8, 6});
}

/// Layer i lives on rank (i + turn) % ranks.
std::vector<Way> ways() {
  std::vector<Way> all;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto* pipeline : {"simple", "interleaved"}) {
      for (const int turn : {0, 1}) {
        all.push_back({ranks, pipeline, static_cast<std::uint64_t>(10 * ranks + turn), turn});
      }
    }
  }
  return all;
}

struct Rank {
  explicit Rank(const Way& way, const std::string& id = "net") : net(make_net(id)), model(net) {
    model.set_partition("", 0);
    for (int i = 0; i < 3; ++i) {
      model.set_partition("layer" + std::to_string(i), (i + way.turn) % size());
    }
  }
  at::Tensor loss(const at::Tensor& x) {
    auto value = model(x).pow(2).mean();
    model.backward(value);
    return value.detach();
  }
  MaskedNet net;
  DistributedModel<MaskedNet> model;
};

constexpr int kSteps = 3;

struct Result {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> parameters;
};

Result train(const Way& way, Masks& record) {
  masks = &record;
  Result result;
  run_in(way, kMicrobatches, [&] {
    Rank own(way);
    DistributedOptimizer optimizer(
        own.model,
        torch::optim::SGD(own.net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5)));
    auto step = smp::step([&](const at::Tensor& x) { return own.loss(x); });
    for (int i = 0; i < kSteps; ++i) {
      barrier();
      record.step = i;
      optimizer.zero_grad();
      const double loss = step(batch(i)).reduce_mean().item<double>();
      if (rank() == 0) result.losses.push_back(loss);
      optimizer.step();
    }
    for (const auto& [name, tensor] : own.model.local_named_parameters()) {
      result.parameters[name] = tensor.detach().clone();
    }
  });
  return result;
}

Result plain(Masks& record) {
  masks = &record;
  record.inject = true;
  record.calls.clear();
  Result result;
  auto net = make_net();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
  for (int i = 0; i < kSteps; ++i) {
    record.step = i;
    optimizer.zero_grad();
    double sum = 0;
    const auto rows = batch(i).chunk(kMicrobatches);
    for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
      record.microbatch = microbatch;
      const auto loss = net(rows[static_cast<std::size_t>(microbatch)]).pow(2).mean();
      (loss / kMicrobatches).backward();
      sum += loss.item<double>() / kMicrobatches;
    }
    result.losses.push_back(sum);
    optimizer.step();
  }
  for (const auto& item : net->named_parameters()) {
    result.parameters[item.key()] = item.value().detach().clone();
  }
  return result;
}

TEST(RandomNumbers, WithTheMasksThatWereDrawnTrainingEqualsPlainLibTorch) {
  Masks first;
  train({1, "simple", 1, 0}, first);
  EXPECT_EQ(first.drawn.size(), kSteps * kMicrobatches * 3 * 2 + kSteps * kMicrobatches * 2u);
  for (const auto& way : ways()) {
    SCOPED_TRACE(testing::Message()
                 << way.ranks << " ranks, " << way.pipeline << ", turned by " << way.turn);
    Masks own;
    const auto ours = train(way, own);
    ASSERT_EQ(own.drawn.size(), first.drawn.size());
    for (const auto& [key, mask] : own.drawn) {
      ASSERT_TRUE(at::equal(mask, first.drawn.at(key))) << std::get<2>(key);
    }
    const auto theirs = plain(own);
    ASSERT_EQ(ours.losses.size(), theirs.losses.size());
    for (std::size_t i = 0; i < theirs.losses.size(); ++i) {
      EXPECT_NEAR(ours.losses[i], theirs.losses[i], 1e-12);
    }
    ASSERT_EQ(ours.parameters.size(), theirs.parameters.size());
    for (const auto& [name, tensor] : theirs.parameters) {
      EXPECT_TRUE(at::allclose(ours.parameters.at(name), tensor, 1e-12, 1e-12)) << name;
    }
  }
}

// ---- what a body draws -------------------------------------------------------------------------

/// One routed module, whose result is what it draws.
struct NoiseImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    if (seeded) torch::manual_seed(11);
    return at::rand(x.sizes(), x.options());
  }
  bool seeded = false;
};
SMP_MODULE(Noise);

struct NoisesImpl : torch::nn::Module {
  NoisesImpl() : near(register_module("near", Noise())), far(register_module("far", Noise())) {}
  at::Tensor forward(const at::Tensor& x) { return near(x); }
  Noise near, far;
};
SMP_MODULE(Noises);

struct TwoModels {
  TwoModels() : a(first), b(second) {
    for (auto* model : {&a, &b}) {
      model->set_partition("", 0);
      model->set_partition("far", size() - 1);
    }
  }
  Noises first, second;
  DistributedModel<Noises> a, b;
};

/// Everything that is drawn, row by row.
at::Tensor draw(TwoModels& own, const at::Tensor& x) {
  std::vector<at::Tensor> drawn;
  for (auto* net : {&own.first, &own.second}) {
    drawn.push_back((*net)->near(x));
    drawn.push_back((*net)->far(x));
    drawn.push_back((*net)->far(x));
    drawn.push_back((*net)->near(x));
  }
  drawn.push_back(at::rand(x.sizes(), x.options()));
  drawn.push_back(at::rand(x.sizes(), x.options()));
  return at::stack(drawn);
}

constexpr int kDrawn = 10;
constexpr int kWidth = 2000;

std::vector<at::Tensor> all_that_is_drawn(const Way& way) {
  std::vector<at::Tensor> all;
  run_in(way, kMicrobatches, [&] {
    TwoModels own;
    const auto x = at::zeros({kMicrobatches, kWidth}, at::kDouble);
    const auto keep = [&](const StepOutput<at::Tensor>& output) {
      if (rank() != 0) return;
      for (const auto& of_microbatch : output.outputs()) {
        for (const auto& row : of_microbatch.unbind()) all.push_back(row.flatten().clone());
      }
    };
    auto train = smp::step([&](const at::Tensor& rows) { return draw(own, rows); });
    auto evaluate = smp::step([&](const at::Tensor& rows) {
      const at::NoGradGuard no_grad;
      return draw(own, rows);
    });
    keep(train(x));
    keep(evaluate(x));
    keep(train(x));
    for (int i = 0; i < 2; ++i) {
      auto anew = smp::step([&](const at::Tensor& rows) { return draw(own, rows); });
      keep(anew(x));
    }
  });
  return all;
}

TEST(RandomNumbers, NothingIsDrawnTwice) {
  const auto all = all_that_is_drawn({2, "interleaved", 1, 0});
  ASSERT_EQ(all.size(), 5u * kMicrobatches * kDrawn);
  std::set<double> firsts;
  for (const auto& drawn : all) firsts.insert(drawn[0].item<double>());
  EXPECT_EQ(firsts.size(), all.size());
  // Neither equal, nor shifted, nor related: correlations are those of independent numbers.
  const auto rows = at::stack(all);
  const auto centred = (rows - 0.5) * std::sqrt(12.0);
  const auto correlation = centred.matmul(centred.t()) / kWidth;
  const auto off = correlation - at::diag(correlation.diag());
  EXPECT_LT(off.abs().max().item<double>(), 6 / std::sqrt(kWidth));
  EXPECT_LT((rows.mean(1) - 0.5).abs().max().item<double>(), 6 / std::sqrt(12.0 * kWidth));
  EXPECT_NEAR(rows.mean().item<double>(), 0.5,
              6 / std::sqrt(12.0 * kWidth * static_cast<double>(all.size())));
}

TEST(RandomNumbers, NeitherRanksNorScheduleNorTimingMatter) {
  const auto expected = at::stack(all_that_is_drawn({1, "simple", 1, 0}));
  for (const auto& way : ways()) {
    EXPECT_TRUE(at::equal(at::stack(all_that_is_drawn(way)), expected)) << way.ranks;
  }
}

/// What a job draws in `steps` steps after `before`.
std::vector<at::Tensor> drawn_after(std::int64_t before, int steps) {
  std::vector<at::Tensor> all;
  on_ranks(2, [&] {
    TwoModels own;
    if (before > 0) set_step_count(before);
    auto train = smp::step([&](const at::Tensor& x) { return draw(own, x); });
    for (int i = 0; i < steps; ++i) {
      EXPECT_EQ(step_count(), before + i);
      const auto drawn = train(at::zeros({2, 8}, at::kDouble)).concat(1);
      if (rank() == 0) all.push_back(drawn);
    }
  });
  return all;
}

TEST(RandomNumbers, OfAJobThatGoesOnAreThoseThatTheOtherWouldHaveDrawn) {
  const auto whole = drawn_after(0, 5);
  const auto rest = drawn_after(3, 2);
  ASSERT_EQ(rest.size(), 2U);
  EXPECT_TRUE(at::equal(rest[0], whole[3]));
  EXPECT_TRUE(at::equal(rest[1], whole[4]));
  EXPECT_FALSE(at::equal(rest[0], whole[0]));
}

TEST(RandomNumbers, ACountOfStepsIsTheSameOnAllRanks) {
  on_ranks(2, [] {
    EXPECT_THAT(refusal<UsageError>([] { set_step_count(3 + rank()); }),
                testing::HasSubstr("the count given to smp::set_step_count"));
    EXPECT_THAT(refusal<UsageError>([] { set_step_count(-1); }),
                testing::HasSubstr("steps count from 0"));
    EXPECT_EQ(step_count(), 0);
    auto inside = smp::step([] { set_step_count(7); });
    EXPECT_THAT(refused_step<UsageError>(0, inside), testing::HasSubstr("inside a step"));
    EXPECT_EQ(step_count(), 1);
    set_step_count(9);
    EXPECT_EQ(step_count(), 9);
  });
}

/// Asks a module that others ask too.
struct AskerImpl : torch::nn::Module {
  explicit AskerImpl(nn::Dropout shared) : drop(register_module("drop", std::move(shared))) {}
  at::Tensor forward(const at::Tensor& x) { return drop(x); }
  nn::Dropout drop;
};
SMP_MODULE(Asker);

struct AskersImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return at::stack({first(x), second(x)}); }
  nn::Dropout drop = register_module("drop", nn::Dropout(0.5));
  Asker first = register_module("first", Asker(drop));
  Asker second = register_module("second", Asker(drop));
};
SMP_MODULE(Askers);

/// Each asks it first of all.
TEST(RandomNumbers, OfOneModuleAskedByTwoOthersDiffer) {
  on_ranks(1, [] {
    Askers net;
    DistributedModel<Askers> model(net);
    auto run = smp::step([&](const at::Tensor& x) { return model(x); });
    const auto drawn_twice = run(torch::ones({8, 16}));
    for (const auto& drawn : drawn_twice.outputs()) {
      EXPECT_FALSE(at::equal(drawn[0], drawn[1]));
    }
  });
}

// ---- generators of the user --------------------------------------------------------------------

TEST(RandomNumbers, TheUsersGeneratorIsNotTouched) {
  torch::manual_seed(21);
  const auto expected = at::rand({50});
  for (const auto& way : ways()) {
    std::vector<at::Tensor> got;
    run_in(way, kMicrobatches, [&] {
      Rank own(way);
      auto step = smp::step([&](const at::Tensor& x) {
        at::rand({3});
        return own.loss(x);
      });
      Masks record;
      masks = &record;
      barrier();
      // One process has one generator, and its ranks take turns.
      if (rank() == 0) torch::manual_seed(21);
      barrier();
      step(batch(0));  // trial run, placement, step
      step(batch(1));
      barrier();
      if (rank() == 0) got.push_back(at::rand({50}));
      barrier();
    });
    ASSERT_EQ(got.size(), 1u);
    EXPECT_TRUE(at::equal(got[0], expected)) << way.ranks;
  }
}

TEST(RandomNumbers, AModuleThatSeedsDrawsTheSameEveryTime) {
  torch::manual_seed(11);
  const auto expected = at::rand({1, 7}, at::kDouble);
  for (const int ranks : {1, 2}) {
    run_in({ranks, "interleaved", 1, 0}, kMicrobatches, [&] {
      TwoModels own;
      own.first->far->seeded = true;
      auto step = smp::step([&](const at::Tensor& rows) { return own.first->far(rows); });
      const auto drawn = step(at::zeros({kMicrobatches, 7}, at::kDouble));
      for (const auto& of_microbatch : drawn.outputs()) {
        EXPECT_TRUE(at::equal(of_microbatch, expected));
      }
    });
  }
}

// ---- backward ----------------------------------------------------------------------------------

at::Tensor with_noise(const at::Tensor& gradient) {
  return gradient + at::rand(gradient.sizes(), gradient.options());
}

struct NoisyFunction : torch::autograd::Function<NoisyFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    return {with_noise(gradients[0])};
  }
};

/// What draws during backward: a hook on what the module computes, or a function of the user's.
enum class DrawnBy { kHook, kFunction };
DrawnBy drawn_by = DrawnBy::kHook;

struct NoisyImpl : torch::nn::Module {
  NoisyImpl() : linear(register_module("linear", nn::Linear(6, 6))) { to(torch::kDouble); }
  at::Tensor forward(const at::Tensor& x) {
    auto y = linear(x);
    if (drawn_by == DrawnBy::kFunction) return NoisyFunction::apply(y);
    if (y.requires_grad()) y.register_hook(with_noise);
    return y;
  }
  nn::Linear linear;
};
SMP_MODULE(Noisy);

struct HookedImpl : torch::nn::Module {
  HookedImpl() : far(register_module("far", Noisy())) {}
  at::Tensor forward(const at::Tensor& x) { return far(x); }
  Noisy far;
};
SMP_MODULE(Hooked);

/// Gradients of `steps` steps, and what the user's generator gives then.
std::vector<at::Tensor> noisy_gradients(const Way& way, int steps) {
  std::vector<at::Tensor> all;
  run_in(way, kMicrobatches, [&] {
    if (rank() == 0) torch::manual_seed(3);
    barrier();
    Hooked net;
    {
      const at::NoGradGuard no_grad;
      for (auto& parameter : net->parameters()) parameter.fill_(0.25);
    }
    DistributedModel model(net);
    model.set_partition("", 0);
    model.set_partition("far", size() - 1);
    auto train = smp::step([&](const at::Tensor& x) { model.backward(model(x).sum()); });
    barrier();
    if (rank() == 0) torch::manual_seed(4);
    barrier();
    for (int i = 0; i < steps; ++i) {
      model.zero_grad();
      train(batch(0));
      if (rank() == size() - 1) all.push_back(net->far->linear->bias.grad().clone());
      barrier();
    }
    barrier();
    if (rank() == 0) all.push_back(at::rand({6}, at::kDouble));
    barrier();
  });
  return all;
}

void expect_a_stream_of_its_own() {
  const auto first = noisy_gradients({2, "simple", 1, 0}, 2);
  torch::manual_seed(4);
  EXPECT_TRUE(at::equal(first.back(), at::rand({6}, at::kDouble)));
  EXPECT_FALSE(at::equal(first[0], first[1]));
  for (const int ranks : {2, 3, 4}) {
    for (const auto* pipeline : {"simple", "interleaved"}) {
      for (const std::uint64_t seed : {1, 2, 3}) {
        const auto again = noisy_gradients({ranks, pipeline, seed, 0}, 2);
        for (std::size_t i = 0; i < first.size(); ++i) {
          EXPECT_TRUE(at::equal(again[i], first[i])) << ranks << pipeline << seed;
        }
      }
    }
  }
}

TEST(RandomNumbers, HooksOfARemoteBackwardDrawFromAStreamOfTheirOwn) {
  drawn_by = DrawnBy::kHook;
  expect_a_stream_of_its_own();
}

TEST(RandomNumbers, SoDoFunctionsOfTheUser) {
  drawn_by = DrawnBy::kFunction;
  expect_a_stream_of_its_own();
}

struct LeavesImpl : torch::nn::Module {
  LeavesImpl()
      : near(register_module("near", nn::Linear(6, 6))),
        far(register_module("far", nn::Linear(6, 6))) {
    to(torch::kDouble);
    const at::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.fill_(0.25);
  }
  at::Tensor forward(const at::Tensor& x) { return far(near(x)); }
  nn::Linear near, far;
};
SMP_MODULE(Leaves);

/// Gradients of parameters whose hooks add noise, by step and name; and what the user's generators
/// give at the end.
std::map<std::string, at::Tensor> noisy_leaves(const Way& way) {
  std::map<std::string, at::Tensor> all;
  run_in(way, kMicrobatches, [&] {
    Leaves net;
    DistributedModel model(net);
    model.set_partition("", 0);
    model.set_partition("far", size() - 1);
    for (auto& parameter : net->parameters()) parameter.register_hook(with_noise);
    auto train = smp::step([&](const at::Tensor& x) { model.backward(model(x).sum()); });
    train(batch(0));
    barrier();
    if (rank() == 0) torch::manual_seed(4);
    barrier();
    for (const char* step : {"1 ", "2 "}) {
      model.zero_grad();
      train(batch(0));
      for (const auto& [name, parameter] : model.local_named_parameters()) {
        all[step + name] = parameter.grad().clone();
      }
    }
    barrier();
    if (rank() == 0) all["the user's"] = at::rand({6}, at::kDouble);
    barrier();
  });
  return all;
}

/// Which backward completes the gradient of a parameter, or whether the end of the step does, is a
/// matter of timing.
TEST(RandomNumbers, SoDoHooksOfParameters) {
  const auto first = noisy_leaves({1, "simple", 1, 0});
  torch::manual_seed(4);
  EXPECT_TRUE(at::equal(first.at("the user's"), at::rand({6}, at::kDouble)));
  EXPECT_FALSE(at::equal(first.at("1 far.bias"), first.at("2 far.bias")));
  // All weights are 1/4, so what goes on from the one bias is 3/2 of what comes to the other.
  const auto noise = [&](const char* bias, double gradient) { return first.at(bias) - gradient; };
  EXPECT_FALSE(at::allclose(noise("1 near.bias", 3), noise("1 far.bias", 2)));
  for (const auto& way : ways()) {
    const auto again = noisy_leaves(way);
    ASSERT_EQ(again.size(), first.size());
    for (const auto& [name, tensor] : first) {
      EXPECT_TRUE(at::equal(again.at(name), tensor))
          << name << ": " << way.ranks << way.pipeline << way.seed;
    }
  }
}

}  // namespace random_numbers_test
}  // namespace smp
