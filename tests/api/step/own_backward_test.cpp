// Backward passes of LibTorch's own engine that modules, hooks and nodes begin: what they give can
// be read at once, and is added in an order that timing cannot change.
#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "api/two_ranks.h"

namespace smp {
namespace own_backward_test {

void on_some_ranks(int ranks, const std::function<void()>& rank_main, int microbatches = 2,
                   std::uint64_t seed = 1) {
  Config config;
  config.microbatches = microbatches;
  config.plan_cache = "off";
  run_local(ranks, rank_main, config, {.seed = seed});
}

constexpr int kWidth = 3;

/// x * w; `inside` runs in each forward with w, `w` itself has a gradient of the loss, too.
struct ScaleImpl : torch::nn::Module {
  using Inside = std::function<void(const at::Tensor& w, const at::Tensor& x)>;
  explicit ScaleImpl(Inside what)
      : inside(std::move(what)),
        w(register_parameter("w", torch::linspace(0.5, 1.5, kWidth, torch::kDouble))) {}
  at::Tensor forward(const at::Tensor& x) {
    if (at::GradMode::is_enabled()) inside(w, x.detach());
    return x * w;
  }
  const Inside inside;
  at::Tensor w;
};
SMP_MODULE(Scale);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const ScaleImpl::Inside& inside)
      : first(register_module("first", nn::Linear(kWidth, kWidth))),
        scale(register_module("scale", Scale(inside))) {
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return scale(first(x)).square(); }
  nn::Linear first;
  Scale scale;
};
SMP_MODULE(Net);

at::Tensor rows_of(int count) {
  return at::sin(at::arange(count * kWidth, at::kDouble)).view({count, kWidth});
}

using Gradients = std::map<std::string, at::Tensor>;

/// Of `steps` steps without zero_grad() in between.
Gradients train(int ranks, int microbatches, const ScaleImpl::Inside& inside,
                std::uint64_t seed = 1, int steps = 2) {
  Gradients gradients;
  on_some_ranks(
      ranks,
      [&] {
        torch::manual_seed(2);
        Net net(inside);
        DistributedModel<Net> model(net);
        model.set_partition("", 0);
        model.set_partition("scale", size() - 1);
        auto train = smp::step([&](const at::Tensor& x) { model.backward(model(x).mean()); });
        for (int step = 0; step < steps; ++step) train(rows_of(4));
        for (const auto& [name, parameter] : model.local_named_parameters()) {
          gradients[name] = parameter.grad().clone();
        }
      },
      microbatches, seed);
  return gradients;
}

Gradients in_one_process(int microbatches, const ScaleImpl::Inside& inside, int steps = 2) {
  torch::manual_seed(2);
  NetImpl net(inside);
  for (int step = 0; step < steps; ++step) {
    for (const auto& part : rows_of(4).chunk(microbatches)) {
      (net.forward(part).mean() / microbatches).backward();
    }
  }
  Gradients gradients;
  for (const auto& item : net.named_parameters()) gradients[item.key()] = item.value().grad();
  return gradients;
}

void expect_equal(const Gradients& got, const Gradients& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, gradient] : expected) {
    EXPECT_TRUE(at::allclose(got.at(name), gradient, 1e-12, 1e-14)) << name << "\n"
                                                                    << got.at(name) << gradient;
  }
}

void expect_as_in_one_process(const ScaleImpl::Inside& inside) {
  for (const int microbatches : {1, 2, 4}) {
    const auto expected = in_one_process(microbatches, inside);
    for (const int ranks : {1, 2}) {
      for (const std::uint64_t seed : {1, 2, 3}) {
        SCOPED_TRACE(testing::Message() << microbatches << " microbatches, " << ranks << " ranks");
        expect_equal(train(ranks, microbatches, inside, seed), expected);
      }
    }
  }
}

at::Tensor penalty(const at::Tensor& w, const at::Tensor& x) {
  return (w.pow(3) * x.mean(0)).sum();
}

TEST(OwnBackward, OfAModuleIsAdded) {
  expect_as_in_one_process(
      [](const at::Tensor& w, const at::Tensor& x) { penalty(w, x).backward(); });
}

TEST(OwnBackward, SeveralTimesInOneCall) {
  expect_as_in_one_process([](const at::Tensor& w, const at::Tensor& x) {
    penalty(w, x).backward();
    (2 * penalty(w, x)).backward();
  });
}

// What others have given so far is unknown, but what this pass adds is not.
TEST(OwnBackward, CanBeReadAtOnce) {
  expect_as_in_one_process([](const at::Tensor& w, const at::Tensor& x) {
    const auto before = w.grad().defined() ? w.grad().clone() : at::zeros_like(w);
    penalty(w, x).backward();
    const auto expected = before + 3 * w.detach().square() * x.mean(0);
    EXPECT_TRUE(at::allclose(w.grad(), expected, 1e-12, 1e-14));
    w.grad().mul_(1);  // is the program's from here on
  });
}

// As code does that wants a gradient for itself, and leaves `.grad` as it was.
TEST(OwnBackward, CanBeTakenOutAgain) {
  const auto taking = [](const at::Tensor& w, const at::Tensor& x) {
    const auto before = w.grad();
    w.mutable_grad().reset();
    penalty(w, x).backward();
    EXPECT_TRUE(at::allclose(w.grad(), 3 * w.detach().square() * x.mean(0), 1e-12, 1e-14));
    w.mutable_grad() = before;
  };
  expect_as_in_one_process(taking);
  const auto nothing = in_one_process(2, [](const at::Tensor&, const at::Tensor&) {});
  expect_equal(train(2, 2, taking), nothing);
}

TEST(OwnBackward, WithAGraphOfItsGradientsIsLibTorchs) {
  expect_as_in_one_process([](const at::Tensor& w, const at::Tensor& x) {
    penalty(w, x).backward({}, /*retain_graph=*/true, /*create_graph=*/true);
    w.mutable_grad() = w.grad().detach();
  });
}

// Terms of very different size: any other order has other bits.
TEST(OwnBackward, HasTheSameBitsWhateverTheTiming) {
  const auto inside = [](const at::Tensor& w, const at::Tensor& x) {
    const double scale = std::pow(10.0, (5 * current_microbatch()) % 7);
    (penalty(w, x) * scale / 3).backward();
  };
  for (const int ranks : {1, 2}) {
    const auto first = train(ranks, 4, inside, 1);
    for (std::uint64_t seed = 2; seed < 15; ++seed) {
      const auto other = train(ranks, 4, inside, seed);
      for (const auto& [name, gradient] : first) {
        EXPECT_TRUE(at::equal(gradient, other.at(name))) << name << ", seed " << seed;
      }
    }
  }
}

// ---- of hooks ----------------------------------------------------------------------------------

/// A hook of one parameter begins a pass that reaches another.
Gradients train_with_hook(int ranks, std::uint64_t seed) {
  Gradients gradients;
  on_some_ranks(
      ranks,
      [&] {
        torch::manual_seed(2);
        Net net([](const at::Tensor&, const at::Tensor&) {});
        const auto w = net->scale->w;
        const auto bias = net->first->bias;
        DistributedModel<Net> model(net);
        model.set_partition("", 0);  // a hook reaches parameters of its rank
        bias.register_hook([w](const at::Tensor& gradient) {
          const at::AutoGradMode grad(true);
          const double scale = std::pow(10.0, (5 * current_microbatch()) % 7);
          (w.pow(3).sum() * microbatch_weight() * scale / 3).backward();
          return gradient;
        });
        auto train = smp::step([&](const at::Tensor& x) { model.backward(model(x).mean()); });
        for (int step = 0; step < 2; ++step) train(rows_of(4));
        for (const auto& [name, parameter] : model.local_named_parameters()) {
          gradients[name] = parameter.grad().clone();
        }
      },
      4, seed);
  return gradients;
}

TEST(OwnBackward, OfAHookOfAParameterIsOfTheMicrobatchWhoseGradientItIs) {
  auto expected = in_one_process(4, [](const at::Tensor&, const at::Tensor&) {});
  const auto w = torch::linspace(0.5, 1.5, kWidth, torch::kDouble);
  for (int step = 0; step < 2; ++step) {
    for (int m = 0; m < 4; ++m) {
      expected["scale.w"] += 3 * w.square() * 0.25 * std::pow(10.0, (5 * m) % 7) / 3;
    }
  }
  const auto first = train_with_hook(1, 1);
  expect_equal(first, expected);
  for (std::uint64_t seed = 2; seed < 10; ++seed) {
    for (const auto& [name, gradient] : train_with_hook(1, seed)) {
      EXPECT_TRUE(at::equal(gradient, first.at(name))) << name << ", seed " << seed;
    }
  }
}

}  // namespace own_backward_test
}  // namespace smp
