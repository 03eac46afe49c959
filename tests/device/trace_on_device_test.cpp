// device/trace_on_device_test.cpp: a trial run with values on the device, where shapes alone do not
// do: what it sees, what it leaves behind (nothing), what it refuses.
#include "smp/program/trace_on_device.h"

#include <gmock/gmock.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "smp/smp.h"
#include "support/fake_device.h"
#include "support/refusal.h"

namespace smp {
namespace trace_on_device_test {

using at::Tensor;
using support::fake_device;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// An operator that the device has, and neither the CPU nor shapes.
TORCH_LIBRARY(trace_on_device_test, m) { m.def("twice(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(trace_on_device_test, PrivateUse1, m) {
  m.impl("twice", [](const Tensor& x) { return x * 2; });
}

Tensor twice_there(const Tensor& x) {
  static const auto twice = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("trace_on_device_test::twice", "")
                                .typed<Tensor(const Tensor&)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  return twice.call(x);
}

struct Twice : torch::autograd::Function<Twice> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) {
    return twice_there(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    return {twice_there(gradients[0])};
  }
};

struct DoublerImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    if (counts && is_tracing()) ++calls;
    return Twice::apply(x);
  }
  bool counts = false;  // in the trial
  int calls = 0;
};
SMP_MODULE(Doubler);

Config on_device() {
  static_cast<void>(fake_device());
  Config config;
  config.device = "fake";
  config.microbatches = 2;
  config.plan_cache = "off";
  return config;
}

struct How {
  bool on_device = true;
  bool skips = false;
};

struct Seen {
  std::vector<double> losses;
  std::vector<Tensor> parameters;  // and buffers
  std::optional<PartitionPlan> plan;
  std::string log;
};

nn::Sequential make_net() {
  torch::manual_seed(1);
  return nn::Sequential(nn::Linear(64, 64), nn::BatchNorm1d(64), Doubler(), nn::Linear(64, 512),
                        nn::Dropout(0.5), nn::Linear(512, 64), nn::Linear(64, 1));
}

/// Two steps of SGD on two stages, with dropout and running statistics. In its trial the body adds
/// to gradients, freezes a parameter and switches the mode, which a step must not find.
Seen train(const How& how) {
  auto config = on_device();
  config.skip_tracing = how.skips;
  Seen seen;
  testing::internal::CaptureStderr();
  const auto rank_main = [&] {
    auto net = make_net();
    net->to(torch::kDouble);
    net->to(device());
    DistributedModel model(net);
    if (how.skips) {
      for (const auto* path : {"3", "4", "5", "6"}) model.set_partition(path, 1);
    }
    trace_on_device(model, how.on_device);
    DistributedOptimizer optimizer(model, torch::optim::SGD(model.parameters(), 0.1));
    for (auto& parameter : net->parameters()) {
      parameter.mutable_grad() = torch::ones_like(parameter);
    }
    auto run = step([&](const Tensor& x) {
      const auto loss = model(x).square().mean();
      model.backward(loss);
      if (is_tracing()) {
        const torch::NoGradGuard no_grad;
        net->parameters()[0].mutable_grad().add_(1);
        net->parameters()[1].set_requires_grad(false);
        net->eval();
      }
      return loss.detach();
    });
    torch::manual_seed(3);
    for (int i = 0; i < 2; ++i) {
      const auto x = torch::randn({8, 64}, torch::kDouble).to(device());
      const auto loss = run(x).reduce_mean();
      optimizer.step();
      optimizer.zero_grad();
      if (rank() == 0) seen.losses.push_back(loss.item<double>());
    }
    for (const auto& item : model.state_dict()) {
      if (rank() == 0) seen.parameters.push_back(item.second.cpu());
    }
    if (rank() == 0) seen.plan = model.plan();
  };
  run_local(2, rank_main, config, {.seed = 1});
  seen.log = testing::internal::GetCapturedStderr();
  return seen;
}

/// "counts" or "operators".
std::string costs_of(const PartitionPlan& plan) { return plan.summary()->costs; }

TEST(TraceOnDevice, SeesWhatShapesDoNotShow) {
  const auto counted = train({.on_device = false});
  EXPECT_THAT(counted.log,
              AllOf(HasSubstr("could not be run in advance"), Not(HasSubstr("in this process"))));
  const auto seen = train({});
  EXPECT_THAT(seen.log, AllOf(HasSubstr("is one on fake:0, in this process"),
                              Not(HasSubstr("could not be run in advance"))));
  EXPECT_EQ(costs_of(*counted.plan), "counts");
  EXPECT_EQ(costs_of(*seen.plan), "operators");
}

TEST(TraceOnDevice, LeavesNothingBehind) {
  const auto seen = train({});
  const auto without = train({.on_device = false, .skips = true});
  ASSERT_EQ(seen.losses.size(), without.losses.size());
  for (std::size_t i = 0; i < seen.losses.size(); ++i) {
    EXPECT_NEAR(seen.losses[i], without.losses[i], 1e-12 * without.losses[i]) << i;
  }
  ASSERT_EQ(seen.parameters.size(), without.parameters.size());
  for (std::size_t i = 0; i < seen.parameters.size(); ++i) {
    EXPECT_TRUE(torch::allclose(seen.parameters[i], without.parameters[i], 1e-12, 1e-14)) << i;
  }
}

/// Neither 1 nor 0, which the trial on shapes answers, is a value that the body can go on with.
TEST(TraceOnDevice, HasTheValuesOfTheBatch) {
  testing::internal::CaptureStderr();
  const auto rank_main = [] {
    nn::Sequential net(nn::Linear(64, 512), nn::Linear(512, 1));
    net->to(device());
    DistributedModel model(net);
    trace_on_device(model);
    auto run = step([&](const Tensor& x) {
      if (x.sum().item<double>() < 2) throw std::runtime_error("an empty batch");
      const auto loss = model(x).mean();
      model.backward(loss);
      return loss;
    });
    run(torch::ones({8, 64}, device()));
    EXPECT_EQ(costs_of(model.plan()), "operators");
  };
  run_local(2, rank_main, on_device());
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Not(HasSubstr("could not be run")));
}

/// @param counts  the module writes a member in its trial
std::string trained_counter(bool counts) {
  std::string refused;
  const auto rank_main = [&] {
    nn::Sequential net(nn::Linear(4, 4), Doubler(), nn::Linear(4, 1));
    std::dynamic_pointer_cast<DoublerImpl>(net->ptr(1))->counts = counts;
    net->to(device());
    DistributedModel model(net);
    trace_on_device(model);
    auto run = step([&](const Tensor& x) {
      const auto loss = model(x).mean();
      model.backward(loss);
      return loss;
    });
    const auto text = refusal([&] { run(torch::ones({2, 4}, device())); });
    if (rank() == 0) refused = text;
  };
  run_local(1, rank_main, on_device());
  return refused;
}

TEST(TraceOnDevice, RefusesModulesWhoseMembersItWouldChange) {
  EXPECT_THAT(trained_counter(true),
              AllOf(HasSubstr("rank 0, module '1' writes its members"),
                    HasSubstr("the trial run on fake"), HasSubstr("smp::is_tracing()")));
  EXPECT_EQ(trained_counter(false), "accepted");
}

TEST(TraceOnDevice, IsNotPossibleWithoutValues) {
  testing::internal::CaptureStderr();
  const auto rank_main = [] {
    const auto net = [] {
      const delay_param_initialization delay;
      nn::Sequential made(nn::Linear(4, 4), Doubler(), nn::Linear(4, 1));
      made->to(device());
      return made;
    }();
    DistributedModel model(net);
    trace_on_device(model);
    auto run = step([&](const Tensor& x) { return model(x); });
    run(torch::ones({2, 4}, device()));
    EXPECT_THAT(refusal([&] { trace_on_device(model); }), HasSubstr("after placement"));
  };
  run_local(2, rank_main, on_device());
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      AllOf(HasSubstr("modules are counted"),
            HasSubstr("smp::trace_on_device() has no effect: its initialisation is delayed")));
}

}  // namespace trace_on_device_test
}  // namespace smp
