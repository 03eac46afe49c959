// perf/sleeping_stages.cpp: see the header.
#include "sleeping_stages.h"

#include <ATen/ATen.h>
#include <time.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/nn/module.h>

#include <optional>
#include <utility>

#include "base/clock.h"
#include "harness.h"
#include "smp/distributed_model.h"
#include "smp/module.h"
#include "smp/nn/sequential.h"
#include "smp/placement.h"
#include "smp/session.h"
#include "smp/step.h"

namespace smp::perf {
namespace {

/// Of this rank, in the running step.
std::vector<Sleep> slept;

void sleep_for(double milliseconds, bool backward) {
  const base::SteadyClock clock;
  const auto now_ms = [&] { return static_cast<double>(clock.now()) / base::kMillisecond; };
  const auto nanoseconds = static_cast<std::int64_t>(milliseconds * base::kMillisecond);
  const timespec duration{nanoseconds / base::kSecond, nanoseconds % base::kSecond};
  const double start = now_ms();
  clock_nanosleep(CLOCK_MONOTONIC, 0, &duration, nullptr);
  slept.push_back({start, now_ms(), backward});
}

class BackwardSleep final : public torch::autograd::Node {
 public:
  explicit BackwardSleep(double milliseconds) : milliseconds_(milliseconds) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    sleep_for(milliseconds_, true);
    return std::move(gradients);
  }

 private:
  double milliseconds_;
};

at::Tensor with_backward_sleep(const at::Tensor& x, double milliseconds) {
  const auto node = c10::make_intrusive<BackwardSleep>(milliseconds);
  node->set_next_edges(torch::autograd::collect_next_edges(x));
  auto result = x.detach();
  torch::autograd::set_history(result, node);
  return result;
}

struct StageImpl : torch::nn::Module {
  StageImpl(double forward_ms, double backward_ms)
      : weight(register_parameter("weight", at::ones({1}))),
        forward_ms_(forward_ms),
        backward_ms_(backward_ms) {}
  at::Tensor forward(const at::Tensor& x) {
    sleep_for(forward_ms_, false);
    return with_backward_sleep(x * weight, backward_ms_);
  }
  at::Tensor weight;

 private:
  double forward_ms_, backward_ms_;
};
SMP_MODULE(Stage);

nn::Sequential make_stages(const StageTimes& times, Placed placed) {
  nn::Sequential stages;
  for (std::size_t i = 0; i < times.forward.size(); ++i) {
    std::optional<partition> here;
    if (placed == Placed::kByHand) here.emplace(static_cast<int>(i));
    stages->push_back(Stage(times.forward.at(i), times.backward.at(i)));
  }
  return stages;
}

std::vector<std::vector<Sleep>> sleeps_of_all_ranks() {
  std::vector<std::vector<Sleep>> all;
  for (int root = 0; root < size(); ++root) all.push_back(broadcast(slept, root));
  return all;
}

}  // namespace

void in_session(int argc, char** argv, const Config& config, const std::function<void()>& body) {
  std::vector<char*> arguments(argv, argv + argc + 1);  // each session takes its flags out of them
  int count = argc;
  const auto session = init(count, arguments.data(), config);
  body();
}

std::vector<SleepingStep> run_sleeping_steps(const StageTimes& times, int microbatches, int steps,
                                             Placed placed) {
  auto stages = make_stages(times, placed);
  DistributedModel model(stages);
  if (placed == Placed::kByHand) model.set_partition("", 0);
  auto train = step([&](at::Tensor x) {
    auto loss = model(x).sum();
    model.backward(loss);
    return loss;
  });
  const auto batch = at::ones({microbatches, 4});
  std::vector<SleepingStep> results;
  for (int i = 0; i <= steps; ++i) {
    slept.clear();
    barrier();
    const double duration = microseconds([&] { train(batch); }) / 1000;
    auto sleeps = sleeps_of_all_ranks();
    if (i > 0) results.push_back({duration, std::move(sleeps)});
  }
  return results;
}

std::vector<double> lengths(const std::vector<Sleep>& sleeps, bool backward) {
  std::vector<double> lengths;
  for (const auto& sleep : sleeps) {
    if (sleep.backward == backward) lengths.push_back(sleep.end - sleep.start);
  }
  return lengths;
}

}  // namespace smp::perf
