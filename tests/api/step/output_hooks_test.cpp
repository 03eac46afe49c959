// Gradients of results of remote modules, as hooks, retain_grad() and smp::grad() see them at the
// caller: those of one process, or refused where a part of them stays at the owner.
#include <torch/types.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "api/far_model.h"
#include "api/two_ranks.h"

namespace smp {
namespace output_hooks_test {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;
using Pair = std::pair<Tensor, Tensor>;

/// How the second result hangs together with the first.
enum class Made { kApart, kFirstOfSecond, kSecondOfFirst, kViewOfArgument, kHookedArgument };

struct TwoImpl : torch::nn::Module {
  explicit TwoImpl(Made made)
      : weight(register_parameter("weight", torch::linspace(0.5, 1.5, 3, torch::kDouble))),
        made_(made) {}
  Pair forward(const Tensor& x) {
    const auto h = x * weight;
    switch (made_) {
      case Made::kApart:
        return {h, (x * 3).tanh()};
      case Made::kFirstOfSecond:
        return {h * 2, h};
      case Made::kSecondOfFirst:
        return {h, h * 2};
      case Made::kViewOfArgument: {
        const auto view = x.view({-1});
        return {view * 2, view};
      }
      case Made::kHookedArgument:
        x.register_hook([](const Tensor& gradient) { return gradient * 5; });
        return {h, x};
    }
    return {};
  }
  Tensor weight;

 private:
  Made made_;
};
SMP_MODULE(Two);

/// Calls it from another rank than the body's.
struct BetweenImpl : torch::nn::Module {
  explicit BetweenImpl(Made made) : two(register_module("two", Two(made))) {}
  Pair forward(const Tensor& x) { return two(x); }
  Two two;
};
SMP_MODULE(Between);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(Made made) : between(register_module("between", Between(made))) {}
  Tensor forward(const Tensor& x) {
    auto [first, second] = between(x * weight);
    if (look) look(first, second);
    return first.sum() + second.pow(2).sum();
  }
  Tensor weight = register_parameter("weight", torch::ones({3}, torch::kDouble));
  Between between;
  std::function<void(Tensor& first, Tensor& second)> look;
};
TORCH_MODULE(Net);

using Look = std::function<void(Tensor& first, Tensor& second)>;

Tensor times_three(const Tensor& gradient) { return gradient * 3; }

Tensor alone(Made made, const Look& look) {
  Net net(made);
  net->look = look;
  net->forward(rows(2)).backward();
  return net->weight.grad();
}

void on_three_ranks(Made made, const Look& look, int between,
                    const std::function<void(const std::function<void()>& step, Net& net)>& check) {
  Config config;
  config.microbatches = 1;
  config.plan_cache = "off";
  run_local(
      3,
      [&] {
        Net net(made);
        net->look = look;
        DistributedModel<Net> model(net);
        model.set_partition("", 0);
        model.set_partition("between", between);
        model.set_partition("between.two", 2);
        auto train = smp::step([&](const Tensor& x) {
          const auto loss = net->forward(x);
          model.backward(loss);
          return loss.detach();
        });
        check([&] { train(rows(2)); }, net);
      },
      config);
}

/// In the first step, and when calls are promised.
void expect_as_alone(Made made, const Look& look) {
  const auto expected = alone(made, look);
  for (const int between : {1, 2}) {
    on_three_ranks(made, look, between, [&](const std::function<void()>& step, Net& net) {
      for (int i = 0; i < 4; ++i) {
        net->weight.mutable_grad().reset();
        step();
        if (rank() != 0) continue;
        EXPECT_TRUE(at::allclose(net->weight.grad(), expected, 1e-12, 1e-12))
            << static_cast<int>(made) << ", step " << i << "\n"
            << net->weight.grad() << "\n"
            << expected;
      }
    });
  }
}

void expect_refused(Made made, const Look& look, const char* module) {
  for (const int between : {0, 1, 2}) {
    on_three_ranks(made, look, between, [&](const std::function<void()>& step, Net&) {
      EXPECT_THAT(refusal<std::exception>([&] { step(); }),
                  AllOf(HasSubstr(module), HasSubstr("has used tensor"), HasSubstr("view_as")))
          << static_cast<int>(made) << ", " << between;
    });
  }
}

const Look kHookFirst = [](Tensor& first, Tensor&) { first.register_hook(times_three); };
const Look kHookSecond = [](Tensor&, Tensor& second) { second.register_hook(times_three); };
const Look kRetainSecond = [](Tensor&, Tensor& second) { second.retain_grad(); };

TEST(OutputHooks, SeeWhatTheyWouldSeeInOneProcess) {
  expect_as_alone(Made::kApart, kHookFirst);
  expect_as_alone(Made::kApart, kHookSecond);
  expect_as_alone(Made::kFirstOfSecond, kHookFirst);
  expect_as_alone(Made::kSecondOfFirst, kHookSecond);
  for (const auto made : {Made::kApart, Made::kFirstOfSecond, Made::kSecondOfFirst,
                          Made::kViewOfArgument, Made::kHookedArgument}) {
    expect_as_alone(made, {});
  }
}

TEST(OutputHooks, OfWhatTheModuleHasUsedItselfAreRefused) {
  expect_refused(Made::kFirstOfSecond, kHookSecond, "between");
  expect_refused(Made::kSecondOfFirst, kHookFirst, "between");
  expect_refused(Made::kFirstOfSecond, kRetainSecond, "between");
  expect_refused(Made::kViewOfArgument, kHookSecond, "between");
  expect_refused(Made::kHookedArgument, kHookSecond, "between");
}

/// Its gradient is there, but only within the module.
TEST(OutputHooks, EvenIfTheCallerDoesNothingElseWithIt) {
  const Look hook_and_forget = [](Tensor&, Tensor& second) {
    second.register_hook(times_three);
    second = second.detach();
  };
  expect_refused(Made::kFirstOfSecond, hook_and_forget, "between");
}

TEST(OutputHooks, NeitherIsItsGradientGiven) {
  for (const auto made : {Made::kApart, Made::kFirstOfSecond}) {
    Tensor found;
    const auto ask = [&](Net& net, const Tensor& x) {
      auto [first, second] = net->between(x * net->weight);
      const auto loss = (first.sum() + second.pow(2).sum()) * 1;
      found = smp::grad({loss}, {second}).at(0);
    };
    on_three_ranks(made, {}, 1, [&](const std::function<void()>&, Net& net) {
      auto step = smp::step([&](const Tensor& x) {
        ask(net, x);
        return found.detach();
      });
      if (made == Made::kApart) {
        EXPECT_NO_THROW(step(rows(2)));
      } else {
        EXPECT_THAT(refusal<std::exception>([&] { step(rows(2)); }), HasSubstr("has used tensor"));
      }
    });
  }
}

}  // namespace output_hooks_test
}  // namespace smp
