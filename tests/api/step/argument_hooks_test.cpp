// Hooks that a module of another rank registers on its arguments: they see what they would see in
// one process, or the step is refused.
#include <torch/types.h>

#include <vector>

#include "api/two_ranks.h"

namespace smp {
namespace argument_hooks_test {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;

/// Scales the gradients of its first argument.
struct HookingImpl : torch::nn::Module {
  Tensor forward(const Tensor& x, const Tensor& y) {
    x.register_hook([](const Tensor& gradient) { return gradient * 3; });
    return linear(x) * y;
  }
  nn::Linear linear = register_module("linear", nn::Linear(4, 4));
};
SMP_MODULE(Hooking);

enum class Use { kOnce, kOfAnother, kOfTheHooked, kOfTheHookedAlone };

struct NetImpl : torch::nn::Module {
  Tensor forward(const Tensor& input) {
    const auto x = first(input);
    const auto y = second(input);
    auto out = far(x, y);
    if (use == Use::kOfAnother) out = out + y;
    if (use == Use::kOfTheHooked) out = out + x;
    if (use == Use::kOfTheHookedAlone) out = x + y;
    return out;
  }
  nn::Linear first = register_module("first", nn::Linear(4, 4));
  nn::Linear second = register_module("second", nn::Linear(4, 4));
  Hooking far = register_module("far", Hooking());
  Use use = Use::kOnce;
};
SMP_MODULE(Net);

Net make_net(Use use) {
  torch::manual_seed(5);
  Net net;
  net->to(torch::kDouble);
  net->use = use;
  return net;
}

Tensor batch() { return torch::linspace(-1, 1, 16, torch::kDouble).reshape({4, 4}); }

/// Of the first layer's weight.
Tensor gradient_in_one_process(Use use) {
  auto net = make_net(use);
  for (const auto& x : batch().chunk(2)) (net(x).pow(2).mean() / 2).backward();
  return net->first->weight.grad();
}

void train(Net& net, DistributedModel<Net>& model) {
  auto step = smp::step([&](const Tensor& x) {
    const auto loss = net(x).pow(2).mean();
    model.backward(loss);
    return loss.detach();
  });
  step(batch());
}

TEST(ArgumentHooks, SeeTheGradientOfOneProcess) {
  for (const auto use : {Use::kOnce, Use::kOfAnother}) {
    const auto expected = gradient_in_one_process(use);
    on_ranks(2, [&] {
      auto net = make_net(use);
      DistributedModel<Net> model(net);
      model.set_partition("", 0);
      model.set_partition("first", 0);
      model.set_partition("far", 1);
      train(net, model);
      if (rank() != 0) return;
      EXPECT_TRUE(at::allclose(net->first->weight.grad(), expected, 1e-12, 1e-12))
          << static_cast<int>(use);
    });
  }
}

TEST(ArgumentHooks, OfATensorThatOthersUseAreRefused) {
  for (const auto use : {Use::kOfTheHooked, Use::kOfTheHookedAlone}) {
    on_ranks(2, [&] {
      auto net = make_net(use);
      DistributedModel<Net> model(net);
      model.set_partition("", 0);
      model.set_partition("far", 1);
      EXPECT_THAT(refused_step<UsageError>(0, [&] { train(net, model); }),
                  AllOf(HasSubstr("module 'far'"), HasSubstr("registered a hook on tensor 0"),
                        HasSubstr("x.view_as(x)")));
    });
  }
}

/// Returns what it hooks, twice.
struct ReturningImpl : torch::nn::Module {
  std::vector<Tensor> forward(const Tensor& x) {
    x.register_hook([](const Tensor& gradient) { return gradient * 3; });
    return {x, x};
  }
};
SMP_MODULE(Returning);

struct ReturnedImpl : torch::nn::Module {
  Tensor forward(const Tensor& input) {
    const auto outputs = far(first(input));
    return (again ? far(outputs[0])[0] : outputs[0]) + outputs[1];
  }
  nn::Linear first = register_module("first", nn::Linear(4, 4));
  Returning far = register_module("far", Returning());
  bool again = false;
};
SMP_MODULE(Returned);

TEST(ArgumentHooks, OfACallWhoseResultNobodyUses) {
  on_ranks(2, [&] {
    torch::manual_seed(5);
    Returned net;
    net->to(torch::kDouble);
    DistributedModel<Returned> model(net);
    model.set_partition("", 0);
    model.set_partition("first", 0);
    model.set_partition("far", 1);
    auto step = smp::step([&](const Tensor& x) {
      const auto outputs = net->far(net->first(x) * 1);
      net->far(outputs[0]);
      model.backward((outputs[0] + outputs[1]).pow(2).mean());
    });
    EXPECT_THAT(refused_step<UsageError>(0, [&] { step(batch()); }),
                HasSubstr("registered a hook on tensor 0"));
  });
}

/// Trains nets that `make(is_refused)` makes on two ranks: one as in one process, one is refused.
template <class Net, class Make>
void expect_one_trained_and_one_refused(const Make& make) {
  auto reference = make(false);
  for (const auto& x : batch().chunk(2)) (reference(x).pow(2).mean() / 2).backward();
  for (const bool is_refused : {false, true}) {
    on_ranks(2, [&] {
      Net net = make(is_refused);
      DistributedModel<Net> model(net);
      model.set_partition("", 0);
      model.set_partition("first", 0);
      model.set_partition("far", 1);
      auto step = smp::step([&](const Tensor& x) { model.backward(net(x).pow(2).mean()); });
      if (is_refused) {
        EXPECT_THAT(refused_step<UsageError>(0, [&] { step(batch()); }),
                    HasSubstr("registered a hook on tensor 0"));
        return;
      }
      step(batch());
      if (rank() != 0) return;
      EXPECT_TRUE(
          at::allclose(net->first->weight.grad(), reference->first->weight.grad(), 1e-12, 1e-12));
    });
  }
}

/// Hooked again, it is a tensor that its caller uses elsewhere too: under its other name.
TEST(ArgumentHooks, OfATensorThatIsReturnedTwice) {
  expect_one_trained_and_one_refused<Returned>([](bool again) {
    torch::manual_seed(5);
    Returned net;
    net->to(torch::kDouble);
    net->again = again;
    return net;
  });
}

/// The tensor needs a gradient whatever the mode: it is hooked for the caller's other uses of it.
TEST(ArgumentHooks, OfACallWithoutGradModeAreSeenToo) {
  on_ranks(2, [&] {
    torch::manual_seed(5);
    Returned net;
    net->to(torch::kDouble);
    DistributedModel<Returned> model(net);
    model.set_partition("", 0);
    model.set_partition("first", 0);
    model.set_partition("far", 1);
    auto step = smp::step([&](const Tensor& x) {
      const auto y = net->first(x) * 1;
      {
        const at::NoGradGuard no_grad;
        net->far(y);
      }
      model.backward(y.pow(2).mean());
    });
    EXPECT_THAT(refused_step<UsageError>(0, [&] { step(batch()); }),
                AllOf(HasSubstr("module 'far'"), HasSubstr("registered a hook on tensor 0")));
  });
}

/// Hooks its argument and writes it, which then forgets the hook; its gradient before does not.
struct WritingImpl : torch::nn::Module {
  Tensor forward(Tensor x) {
    x.register_hook([](const Tensor& gradient) { return gradient * 3; });
    x.narrow(1, 0, 2).add_(1);
    return linear(x);
  }
  nn::Linear linear = register_module("linear", nn::Linear(4, 4));
};
SMP_MODULE(Writing);

struct WrittenImpl : torch::nn::Module {
  Tensor forward(const Tensor& input) {
    const auto x = first(input);
    const auto before = used_before ? x * 2 : torch::zeros_like(x);
    return far(x) + before;
  }
  nn::Linear first = register_module("first", nn::Linear(4, 4));
  Writing far = register_module("far", Writing());
  bool used_before = false;
};
SMP_MODULE(Written);

/// A caller that uses the tensor before the call has a gradient that the hook would change.
TEST(ArgumentHooks, OfATensorThatIsWrittenThen) {
  expect_one_trained_and_one_refused<Written>([](bool used_before) {
    torch::manual_seed(5);
    Written net;
    net->to(torch::kDouble);
    net->used_before = used_before;
    return net;
  });
}

}  // namespace argument_hooks_test
}  // namespace smp
