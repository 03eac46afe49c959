// How things end: exceptions of remote modules by their own types, fibers that cannot be made,
// calls inside of autograd nodes, and mistakes that are said in a sentence.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>

#include "api/far_model.h"
#include "api/two_ranks.h"

namespace smp {
namespace ends_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// ---- exceptions by their types -----------------------------------------------------------------

/// Ranks of run_local share one thread, so that a test can set this for all.
std::function<void()> thrown;

struct ThrowerImpl : torch::nn::Module {
  ThrowerImpl() : linear(register_module("linear", nn::Linear(3, 3))) { to(torch::kDouble); }
  at::Tensor forward(const at::Tensor& x) {
    if (!is_tracing() && thrown) thrown();
    return linear(x);
  }
  nn::Linear linear;
};
SMP_MODULE(Thrower);

struct CarefulImpl : torch::nn::Module {
  CarefulImpl() : thrower(register_module("thrower", Thrower())) {}
  at::Tensor forward(const at::Tensor& x) { return thrower(x); }
  Thrower thrower;
};
SMP_MODULE(Careful);

/// Catches `Caught` from its remote child, as in one process.
template <class Caught>
bool caught_around_the_call(std::function<void()> raise) {
  thrown = std::move(raise);
  int caught = 0;
  on_ranks(3, [&] {
    Careful net;
    DistributedModel model(net);
    model.set_partition("", 0);
    model.set_partition("thrower", 2);
    auto run = step([&](at::Tensor x) {
      if (is_tracing()) return model(x);
      try {
        return model(x);
      } catch (const Caught&) {
        ++caught;
        return x;
      }
    });
    run(rows(4));
  });
  thrown = nullptr;
  return caught == 2;  // microbatches
}

struct OwnError : std::length_error {
  using std::length_error::length_error;
};

TEST(Ends, ARemoteExceptionIsCaughtByItsOwnType) {
  const auto out_of_range = [] { throw std::out_of_range("index 7"); };
  EXPECT_TRUE(caught_around_the_call<std::out_of_range>(out_of_range));
  EXPECT_TRUE(caught_around_the_call<std::exception>(out_of_range));
  EXPECT_TRUE(caught_around_the_call<RemoteError>(out_of_range));
  EXPECT_TRUE(caught_around_the_call<std::invalid_argument>([] { std::stoi("x"); }));
  EXPECT_TRUE(caught_around_the_call<c10::Error>([] { at::ones({2, 3}).matmul(at::ones({2})); }));
  EXPECT_TRUE(caught_around_the_call<c10::IndexError>([] { at::ones({2}).select(0, 5); }));
  EXPECT_TRUE(caught_around_the_call<std::length_error>([] { throw OwnError("mine"); }));
  EXPECT_TRUE(caught_around_the_call<RemoteError>([] { throw 42; }));
}

TEST(Ends, TheStepThrowsTheTypeOnEveryRank) {
  thrown = [] { throw std::out_of_range("index 7"); };
  on_ranks(3, [&] {
    Careful net;
    DistributedModel model(net);
    model.set_partition("", 0);
    model.set_partition("thrower", 2);
    auto run = step([&](at::Tensor x) { return model(x); });
    const auto text = refusal<std::out_of_range>([&] { run(rows(4)); });
    EXPECT_THAT(text, HasSubstr("index 7"));
    EXPECT_THAT(text, HasSubstr("rank 2, module"));
  });
  thrown = nullptr;
}

// ---- fibers that cannot be made ----------------------------------------------------------------

TEST(Ends, AFiberWithoutMemoryFailsTheStepEverywhere) {
  Config config;
  config.microbatches = 2;
  config.plan_cache = "off";
  config.fiber_stack_bytes = std::int64_t{1} << 46;
  run_local(
      3,
      [] {
        FarModel own;
        auto run = step([&](at::Tensor x) { return own.model(x); });
        for (int i = 0; i < 2; ++i) {
          EXPECT_THAT(refused_step<ResourceError>(0, [&] { run(rows(4)); }),
                      AllOf(HasSubstr("no memory for the stack"), HasSubstr("fiber_stack_bytes")));
        }
      },
      config);
}

// ---- calls inside of nodes ---------------------------------------------------------------------

std::function<at::Tensor(const at::Tensor&)> inside_backward;

struct CallsInBackward : torch::autograd::Function<CallsInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {2 * inside_backward(gradients[0])};
  }
};

/// A net of two children whose custom function calls one of them in its backward.
struct NestImpl : torch::nn::Module {
  NestImpl() : far(register_module("far", Thrower())), near(register_module("near", Thrower())) {}
  at::Tensor forward(const at::Tensor& x) { return CallsInBackward::apply(far(near(x))); }
  Thrower far, near;
};
SMP_MODULE(Nest);

/// Runs a step whose backward calls `inside`; the text of what it throws on rank 0.
std::string refused_inside(const std::function<at::Tensor(Nest&, const at::Tensor&)>& inside,
                           bool by_stock_engine = false) {
  std::string text;
  on_ranks(2, [&] {
    torch::manual_seed(1);
    Nest net;
    DistributedModel model(net);
    model.set_partition("", 0);
    model.set_partition("far", 1);
    auto run = step([&](at::Tensor x) {
      if (!is_tracing()) {
        inside_backward = [&](const at::Tensor& g) { return inside(net, g); };
      } else {
        inside_backward = [](const at::Tensor& g) { return g; };
      }
      auto loss = model(x).sum();
      if (by_stock_engine) {
        auto leaf = torch::ones({2, 3}, torch::kDouble).requires_grad_();
        CallsInBackward::apply(leaf).sum().backward();
      }
      model.backward(loss);
      return loss;
    });
    try {
      run(rows(4));
      if (rank() == 0) text = "accepted";
    } catch (const std::exception& error) {
      if (rank() == 0) text = error.what();
    }
  });
  inside_backward = nullptr;
  return text;
}

TEST(Ends, ARemoteCallInsideANodeIsRefusedByName) {
  const auto remote = [](Nest& net, const at::Tensor& g) { return net->far(g); };
  const auto refused = AllOf(HasSubstr("'far' lives on rank 1"),
                             HasSubstr("inside the backward of an autograd node"));
  EXPECT_THAT(refused_inside(remote), refused);
  EXPECT_THAT(refused_inside(remote, true), refused);
}

TEST(Ends, ARemoteCallInAPassOfItsOwnInsideANodeIsRefusedByName) {
  const auto by_grad = [](Nest& net, const at::Tensor& g) {
    const at::AutoGradMode grad(true);
    auto x = g.detach().requires_grad_();
    x.register_hook([&](const at::Tensor& gradient) { return net->far(gradient); });
    return torch::autograd::grad({(x * 3).sum()}, {x})[0];
  };
  EXPECT_THAT(refused_inside(by_grad), HasSubstr("inside the backward of an autograd node"));
}

TEST(Ends, ALocalCallInsideANodeWorks) {
  const auto local = [](Nest& net, const at::Tensor& g) { return net->near(g); };
  EXPECT_EQ(refused_inside(local), "accepted");
  EXPECT_EQ(refused_inside(local, true), "accepted");
}

// ---- mistakes ----------------------------------------------------------------------------------

TEST(Ends, AStepInsideAStepIsRefused) {
  on_ranks(2, [] {
    FarModel own;
    std::function<at::Tensor(at::Tensor)> body = [&](at::Tensor x) { return own.model(x); };
    auto inner = step(body);
    auto outer = step([&](at::Tensor x) {
      if (!is_tracing()) inner(x);
      return own.model(x);
    });
    EXPECT_THAT(refused_step<UsageError>(0, [&] { outer(rows(4)); }),
                HasSubstr("a step was called inside a step"));
  });
}

TEST(Ends, AStepOnAnotherThreadIsRefused) {
  on_ranks(1, [] {
    FarModel own;
    auto run = step([&](at::Tensor x) { return own.model(x); });
    std::string text;
    std::thread([&] { text = refusal([&] { run(rows(4)); }); }).join();
    EXPECT_THAT(text, HasSubstr("on the thread that called smp::init"));
  });
}

TEST(Ends, UseAfterTheSessionIsRefused) {
  std::optional<FarModel> own;
  std::function<void()> run;
  on_ranks(1, [&] {
    own.emplace();
    run = [run = step([&](at::Tensor x) { return own->model(x); })]() mutable { run(rows(4)); };
    run();
  });
  EXPECT_THAT(refusal(run), HasSubstr("session has ended"));
  EXPECT_THAT(refusal([&] { own->model.clip_grad_norm_(1); }), HasSubstr("session of this model"));
  EXPECT_EQ(own->model.local_named_parameters().size(), 2u);
  own.reset();
}

TEST(Ends, AModelThatIsGoneWhereItsModulesAreCalledIsNamed) {
  on_ranks(2, [] {
    auto own = std::make_unique<FarModel>();
    auto run = step([&](at::Tensor x) { return own->model(x); });
    run(rows(4));
    if (rank() == 1) own.reset();
    const auto text = rank() == 0 ? refusal<RemoteError>([&] { run(rows(4)); })
                                  : refusal<std::exception>([&] { run(rows(4)); });
    EXPECT_THAT(text, AllOf(HasSubstr("'far' was called"), HasSubstr("has ended on this rank")));
  });
}

}  // namespace ends_test
}  // namespace smp
