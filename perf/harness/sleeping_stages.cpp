// perf/harness/sleeping_stages.cpp: see the header.
#include "sleeping_stages.h"
#include "module/node_pointer.h"

#include <ATen/ATen.h>
#include <time.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "harness.h"
#include "simulate/noise.h"
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

/// Executions that this rank keeps activations of.
class KeptExecutions {
 public:
  void begin_step() { kept_ = most_ = 0; }
  void begin() { most_ = std::max(most_, ++kept_); }
  void end() { --kept_; }
  int most() const { return most_; }

 private:
  int kept_ = 0, most_ = 0;
} kept_executions;

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
  /// @param parts_left  of the backward of the execution, this one among them
  BackwardSleep(double milliseconds, std::shared_ptr<int> parts_left)
      : milliseconds_(milliseconds), parts_left_(std::move(parts_left)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    sleep_for(milliseconds_, true);
    if (--*parts_left_ == 0) kept_executions.end();
    return std::move(gradients);
  }

 private:
  double milliseconds_;
  std::shared_ptr<int> parts_left_;
};

at::Tensor with_backward_sleep(const at::Tensor& x, double milliseconds,
                               const std::shared_ptr<int>& parts_left) {
  const auto node = make_node<BackwardSleep>(milliseconds, parts_left);
  node->set_next_edges(torch::autograd::collect_next_edges(x));
  auto result = x.detach();
  torch::autograd::set_history(result, node);
  return result;
}

/// The last one returns the loss, as with every peer.
struct StageImpl : torch::nn::Module {
  StageImpl(const StageTimes& times, std::size_t number)
      : weight(register_parameter("weight", at::ones({1}))), times_(times), number_(number) {}
  at::Tensor forward(const at::Tensor& x) {
    const int microbatch = std::max(0, current_microbatch());
    kept_executions.begin();
    sleep_for(times_.forward_of(number_, microbatch), false);
    const double backward = times_.backward_of(number_, microbatch);
    const double of_weight = backward * times_.weight_share;
    const auto parts = std::make_shared<int>(of_weight > 0 ? 2 : 1);
    const auto factor = of_weight > 0 ? with_backward_sleep(weight, of_weight, parts) : weight;
    auto y = with_backward_sleep(x, backward - of_weight, parts) * factor;
    return number_ + 1 == times_.forward.size() ? y.sum() : y;
  }
  at::Tensor weight;

 private:
  StageTimes times_;
  std::size_t number_;
};
SMP_MODULE(Stage);

nn::Sequential make_stages(const StageTimes& times, Placed placed) {
  nn::Sequential stages;
  for (std::size_t i = 0; i < times.forward.size(); ++i) {
    std::optional<partition> here;
    if (placed == Placed::kByHand) here.emplace(static_cast<int>(i));
    stages->push_back(Stage(times, i));
  }
  return stages;
}

std::vector<std::vector<Sleep>> sleeps_of_all_ranks() { return all_gather(slept); }

double varied(double milliseconds, double jitter, std::uint64_t key) {
  return milliseconds * std::max(0.0, 1 + jitter * simulate::noise(key));
}

}  // namespace

double StageTimes::forward_of(std::size_t module, int microbatch) const {
  return varied(forward.at(module), jitter, 2 * (1000 * module + microbatch));
}

double StageTimes::backward_of(std::size_t module, int microbatch) const {
  return varied(backward.at(module), jitter, 2 * (1000 * module + microbatch) + 1);
}

void in_session(int argc, char** argv, const Config& config, const std::function<void()>& body) {
  std::vector<char*> arguments(argv, argv + argc + 1);  // each session takes its flags out of them
  int count = argc;
  const auto session = init(count, arguments.data(), config);
  body();
}

std::vector<SleepingStep> run_sleeping_steps(const StageTimes& times, int microbatches, int steps,
                                             Placed placed, int warm_up,
                                             const std::function<void()>& when_placed) {
  auto stages = make_stages(times, placed);
  DistributedModel model(stages);
  if (placed == Placed::kByHand) model.set_partition("", 0);
  auto train = step([&](at::Tensor x) {
    auto loss = model(x);
    model.backward(loss);
    return loss;
  });
  const auto batch = at::ones({microbatches, 4});
  std::vector<SleepingStep> results;
  for (int i = 0; i < warm_up + steps; ++i) {
    slept.clear();
    kept_executions.begin_step();
    barrier();
    const double duration = microseconds([&] { train(batch); }) / 1000;
    auto sleeps = sleeps_of_all_ranks();
    auto kept = all_gather(kept_executions.most());
    if (i == 0 && when_placed) when_placed();
    if (i >= warm_up) results.push_back({duration, std::move(sleeps), std::move(kept)});
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
