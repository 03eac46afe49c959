// Any number of a call's arguments may be promised: results of other ranks, which come from there.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "smp/smp.h"

namespace smp {
namespace many_promises_test {

using at::Tensor;

constexpr std::int64_t kMany = 2000;
constexpr std::int64_t kRows = 4;
constexpr int kMicrobatches = 2;
constexpr int kSteps = 3;  // nothing is known of results in the first

Tensor factors() { return torch::linspace(-1, 1, kMany, torch::kDouble); }

/// One call with many results.
struct SpreadImpl : torch::nn::Module {
  SpreadImpl() : weight(register_parameter("weight", factors())) {}
  std::vector<Tensor> forward(const Tensor& x) {
    std::vector<Tensor> all;
    for (const auto& factor : weight.unbind()) all.push_back(x * factor);
    return all;
  }
  Tensor weight;
};
SMP_MODULE(Spread);

/// Many calls with one result each.
struct ScaledImpl : torch::nn::Module {
  ScaledImpl() : weight(register_parameter("weight", torch::full({}, 0.5, torch::kDouble))) {}
  Tensor forward(const Tensor& x) { return (x * weight).tanh(); }
  Tensor weight;
};
SMP_MODULE(Scaled);

/// One call with many arguments.
struct JoinedImpl : torch::nn::Module {
  JoinedImpl() : weight(register_parameter("weight", factors().flip(0).view({kMany, 1}))) {}
  Tensor forward(const std::vector<Tensor>& all) { return (torch::stack(all) * weight).sum(0); }
  Tensor weight;
};
SMP_MODULE(Joined);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool one_call)
      : spread(register_module("spread", Spread())),
        scaled(register_module("scaled", Scaled())),
        joined(register_module("joined", Joined())),
        one_call_(one_call) {}
  Tensor forward(const Tensor& x) {
    if (one_call_) return joined(spread(x));
    std::vector<Tensor> all;
    for (std::int64_t i = 0; i < kMany; ++i) all.push_back(scaled(x + 0.001 * i));
    return joined(all);
  }
  Spread spread;
  Scaled scaled;
  Joined joined;

 private:
  const bool one_call_;
};
TORCH_MODULE(Net);

Tensor rows_of(int step) {
  return torch::sin(torch::arange(kRows, torch::kDouble) * 0.3 + step) * 0.01;
}

struct Found {
  std::vector<double> losses;
  std::vector<Tensor> gradients;  // of all steps, those that are there
};

Found alone(bool one_call) {
  Found found;
  Net net(one_call);
  for (int step = 0; step < kSteps; ++step) {
    net->zero_grad();
    double total = 0;
    for (const auto& x : rows_of(step).chunk(kMicrobatches)) {
      const auto loss = net(x).square().mean() / kMicrobatches;
      loss.backward();
      total += loss.item<double>();
    }
    found.losses.push_back(total);
    for (const auto& item : net->named_parameters()) {
      if (item.value().grad().defined()) found.gradients.push_back(item.value().grad().clone());
    }
  }
  return found;
}

/// @param joined  the rank of the module with many arguments; the other two are on rank 1
Found over_ranks(bool one_call, int joined, bool static_mode) {
  Found found;
  found.losses.resize(kSteps);
  std::vector<std::vector<Tensor>> gradients(kSteps, std::vector<Tensor>(3));
  Config config;
  config.microbatches = kMicrobatches;
  config.plan_cache = "off";
  config.static_mode = static_mode;
  run_local(
      joined + 1,
      [&] {
        Net net(one_call);
        DistributedModel<Net> model(net);
        model.set_partition("", 0);
        model.set_partition("spread", 1);
        model.set_partition("scaled", 1);
        model.set_partition("joined", joined);
        auto train = smp::step([&](const Tensor& x) {
          auto loss = model(x).square().mean();
          model.backward(loss);
          return loss.detach();
        });
        for (int step = 0; step < kSteps; ++step) {
          model.zero_grad();
          const auto loss = train(rows_of(step)).reduce_mean().item<double>();
          const auto at = static_cast<std::size_t>(step);
          found.losses[at] = loss;
          std::size_t number = 0;
          for (const auto& item : net->named_parameters()) {
            const bool here = model.owns(item.value()) && item.value().grad().defined();
            if (here) gradients[at][number] = item.value().grad().clone();
            ++number;
          }
        }
      },
      config);
  for (const auto& of_step : gradients) {
    for (const auto& gradient : of_step) {
      if (gradient.defined()) found.gradients.push_back(gradient);
    }
  }
  return found;
}

void expect_as_alone(bool one_call) {
  const auto expected = alone(one_call);
  for (const bool static_mode : {false, true}) {
    for (const int joined : {1, 2}) {
      SCOPED_TRACE(testing::Message()
                   << "joined on rank " << joined << (static_mode ? ", static" : ""));
      const auto found = over_ranks(one_call, joined, static_mode);
      for (std::size_t step = 0; step < kSteps; ++step) {
        EXPECT_NEAR(found.losses[step], expected.losses[step], 1e-12) << step;
      }
      ASSERT_EQ(found.gradients.size(), expected.gradients.size());
      for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
        EXPECT_TRUE(at::allclose(found.gradients[i], expected.gradients[i], 1e-12, 1e-13)) << i;
      }
    }
  }
}

TEST(ManyPromises, ResultsOfOneCallAreArgumentsOfAnother) { expect_as_alone(true); }

TEST(ManyPromises, ResultsOfManyCallsAreArgumentsOfOne) { expect_as_alone(false); }

}  // namespace many_promises_test
}  // namespace smp
