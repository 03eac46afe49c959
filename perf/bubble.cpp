// perf/bubble.cpp: how close a pipeline comes to its ideal step time, (m + p - 1)(F + B) for p
// stages and m microbatches. Modules sleep instead of computing, so ranks may outnumber the cores.
// mpirun: --ranks 2 4
#include <ATen/ATen.h>
#include <time.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/nn/module.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "d2d/mpi_session.h"
#include "harness.h"
#include "smp/distributed_model.h"
#include "smp/module.h"
#include "smp/nn/sequential.h"
#include "smp/placement.h"
#include "smp/session.h"
#include "smp/step.h"

namespace smp::perf {
namespace {

struct Options {
  int microbatches = 0;  // 0: 4 a rank
  int steps = 9;
  double forward_ms = 10, backward_ms = 20;
  std::string schedule;  // empty: both
};

/// When modules of this rank slept, in steady milliseconds: start, end, start, end, ...
std::vector<double> slept;

void sleep_for(double milliseconds) {
  const base::SteadyClock clock;
  const auto now_ms = [&] { return static_cast<double>(clock.now()) / base::kMillisecond; };
  const auto nanoseconds = static_cast<std::int64_t>(milliseconds * base::kMillisecond);
  const timespec duration{nanoseconds / base::kSecond, nanoseconds % base::kSecond};
  slept.push_back(now_ms());
  clock_nanosleep(CLOCK_MONOTONIC, 0, &duration, nullptr);
  slept.push_back(now_ms());
}

class BackwardSleep final : public torch::autograd::Node {
 public:
  explicit BackwardSleep(double milliseconds) : milliseconds_(milliseconds) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    sleep_for(milliseconds_);
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
    sleep_for(forward_ms_);
    return with_backward_sleep(x * weight, backward_ms_);
  }
  at::Tensor weight;

 private:
  double forward_ms_, backward_ms_;
};
SMP_MODULE(Stage);

/// One stage a rank.
nn::Sequential make_stages(const Options& options) {
  nn::Sequential stages;
  for (int stage = 0; stage < size(); ++stage) {
    const partition here(stage);
    stages->push_back(Stage(options.forward_ms, options.backward_ms));
  }
  return stages;
}

/// What every rank slept in the last step.
std::vector<std::vector<double>> sleeps_of_all_ranks() {
  std::vector<std::vector<double>> all;
  for (int root = 0; root < size(); ++root) all.push_back(broadcast(slept, root));
  return all;
}

int most_at_once(const std::vector<std::vector<double>>& ranks) {
  std::vector<std::pair<double, int>> changes;
  for (const auto& times : ranks) {
    for (std::size_t i = 0; i < times.size(); ++i) changes.emplace_back(times[i], i % 2 ? -1 : 1);
  }
  std::sort(changes.begin(), changes.end());
  int inside = 0, most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, inside += change);
  return most;
}

/// Mean time a rank really slept in a step.
double mean_slept(const std::vector<std::vector<double>>& ranks) {
  double sum = 0;
  for (const auto& times : ranks) {
    for (std::size_t i = 0; i < times.size(); i += 2) sum += times[i + 1] - times[i];
  }
  return sum / static_cast<double>(ranks.size());
}

struct Measurement {
  std::vector<double> step_ms, slept_ms;
  int ranks_inside = 0;
};

/// Runs steps on every rank. The first is not counted: it places the model.
Measurement measure(const Options& options) {
  auto stages = make_stages(options);
  DistributedModel model(stages);
  model.set_partition("", 0);
  auto train = step([&](at::Tensor x) {
    auto loss = model(x).sum();
    model.backward(loss);
    return loss;
  });
  const auto batch = at::ones({options.microbatches, 4});
  Measurement result;
  for (int i = 0; i <= options.steps; ++i) {
    slept.clear();
    barrier();
    const double duration = microseconds([&] { train(batch); }) / 1000;
    const auto sleeps = sleeps_of_all_ranks();
    if (i == 0) continue;
    result.step_ms.push_back(duration);
    result.slept_ms.push_back(mean_slept(sleeps));
    result.ranks_inside = std::max(result.ranks_inside, most_at_once(sleeps));
  }
  return result;
}

void add_rows(Report& report, const Options& options, const std::string& schedule,
              const Measurement& measured) {
  const auto setting = ".p" + std::to_string(size()) + "_m" + std::to_string(options.microbatches);
  const auto prefix = schedule == "interleaved" ? "" : schedule + ".";
  const double cell = options.forward_ms + options.backward_ms;
  const double ideal = (options.microbatches + size() - 1) * cell;
  std::vector<double> ratios;
  for (const double duration : measured.step_ms) ratios.push_back(duration / ideal);
  report.add(prefix + "step_over_ideal" + setting, median(ratios), "1",
             schedule + ", F = " + std::to_string(std::lround(options.forward_ms)) + " ms, B = " +
                 std::to_string(std::lround(options.backward_ms)) + " ms; aim: at most 1.05");
  report.add(prefix + "step_over_ideal.p90" + setting, percentile(ratios, 0.9), "1");
  report.add(prefix + "slept_over_nominal" + setting,
             median(measured.slept_ms) / (options.microbatches * cell), "1",
             "how late the machine wakes sleepers");
  report.add(prefix + "ranks_inside_modules" + setting, measured.ranks_inside, "1",
             "most at one time");
}

/// Empty if only the help was wanted.
std::optional<Options> parse(int argc, char** argv) {
  Options options;
  CLI::App app("Step time of a pipeline of sleeping modules over the ideal one", "smp perf bubble");
  app.allow_extras();
  app.footer("--ranks P starts P ranks; without it 2, then 4.");
  app.add_option("--microbatches", options.microbatches, "in a step (default: 4 a rank)")
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps, "to measure")->check(CLI::PositiveNumber);
  app.add_option("--schedule", options.schedule, "default: both")
      ->check(CLI::IsMember({"interleaved", "simple"}));
  app.add_option("--forward-ms", options.forward_ms, "F")->check(CLI::PositiveNumber);
  app.add_option("--backward-ms", options.backward_ms, "B")->check(CLI::PositiveNumber);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::puts(app.help().c_str());
    return std::nullopt;
  }
  return options;
}

void run(int argc, char** argv) {
  auto options = parse(argc, argv);
  if (!options) return;
  const d2d::MpiSession mpi;
  if (options->microbatches == 0) options->microbatches = 4 * mpi.size();
  std::optional<Report> report;
  if (mpi.rank() == 0) report.emplace("bubble", Report::Earlier::kKept);
  for (const std::string schedule : {"interleaved", "simple"}) {
    if (!options->schedule.empty() && schedule != options->schedule) continue;
    std::vector<char*> arguments(argv, argv + argc + 1);
    int count = argc;
    const auto session =
        init(count, arguments.data(),
             {.microbatches = options->microbatches, .pipeline = schedule, .intra_op_threads = 1});
    const auto measured = measure(*options);
    if (report) add_rows(*report, *options, schedule, measured);
  }
  if (!report) return;
  report->add_version("MPI", mpi_version());
  report->finish();
}

}  // namespace
}  // namespace smp::perf

int main(int argc, char** argv) {
  return smp::perf::run_program([&] { smp::perf::run(argc, argv); });
}
