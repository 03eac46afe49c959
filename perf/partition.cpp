// perf/partition.cpp: how good plans are. The paper's algorithm is compared as its user would run
// it: the best of several alphas, of modules priced by time and by number, and of both ways to
// break ties of D'Hondt, with and without a memory limit, for messages of this machine and of a
// cluster of GPUs. Then bottleneck and step over what no placement can go below; and how long a
// plan of 10,000 modules takes.
#include "partition/search/partitioner.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "harness.h"
#include "partition/search/step_bound.h"
#include "partition/search/step_judge.h"
#include "partition/search/strategies.h"
#include "program.h"
#include "schedule/schedule.h"
#include "support/model_families.h"

namespace smp::perf::partition {
namespace {

using partitioning::CostTree;
using partitioning::SeatTies;
using partitioning::SyntheticModel;

const int kMembers = brief() ? 1 : 20;
constexpr double kNever = std::numeric_limits<double>::infinity();

// ---- machines ----------------------------------------------------------------------------------

struct Place {
  std::string name;
  simulate::Machine machine;
};

/// Times of the models are those of a CPU core at 50 GFLOP/s; a GPU reaches 50 TFLOP/s in large
/// products. Its messages take 15 us and 25 GB/s (200 Gbit/s a GPU).
std::vector<Place> places(int stages) {
  Place here{"here", {}}, cluster{"gpus", {}};
  here.machine.stages = cluster.machine.stages = stages;
  cluster.machine.speeds.assign(static_cast<std::size_t>(stages), 1000);
  cluster.machine.latency = 15e-6;
  cluster.machine.handling = 3e-6;
  cluster.machine.bytes_per_second = 25e9;
  return {here, cluster};
}

partitioning::PartitionOptions options_for(const SyntheticModel& model,
                                           const simulate::Machine& machine) {
  partitioning::PartitionOptions options;
  options.pp_size = machine.stages;
  options.machine = machine;
  options.trace = model.trace;
  options.microbatches = 4 * machine.stages;
  options.active_microbatches = 2 * machine.stages + 2;
  options.refuse_unfit = false;
  return options;
}

// ---- the paper's algorithm ---------------------------------------------------------------------

/// What comes of a placement.
struct Judged {
  double seconds = 0;     ///< of a step
  std::int64_t most = 0;  ///< bytes, of the stage that may need most
};

/// One way to run it, and what came of it.
struct PaperRun {
  double alpha = 0;
  /// Modules priced by their number, as the paper does unless it is told to time.
  bool counts = false;
  SeatTies ties = SeatTies::kFewestSeats;
  Judged judged = {};

  bool is_default() const { return counts && alpha == 0.8; }
};

CostTree priced(const SyntheticModel& model, double alpha, bool counts) {
  auto trace = model.trace;
  if (counts) trace.source = simulate::CostSource::kCounts;
  return make_cost_tree(model.tree, trace, std::vector<int>(model.tree.nodes.size(), -1),
                        {.memory_weight = alpha});
}

/// A model on some stages, and what judges its placements.
class Setting {
 public:
  Setting(const SyntheticModel& model, const simulate::Machine& machine)
      : model_(model),
        options_(options_for(model, machine)),
        costs_(priced(model, options_.memory_weight, false)),
        schedule_(schedule::make_schedule(options_.pipeline, shape_of(options_))),
        settings_{options_.microbatches, schedule_.get(), options_.optimizer_ratio} {}

  /// Many of them come to the same placement, which is judged once.
  std::vector<PaperRun> paper_runs() const {
    std::vector<PaperRun> runs;
    std::map<std::vector<int>, Judged> judged;
    for (const bool counts : {false, true}) {
      for (const double alpha : {0.0, 0.2, 0.5, 0.8}) {
        const auto costs = priced(model_, alpha, counts);
        for (const auto ties : {SeatTies::kFewestSeats, SeatTies::kFirst}) {
          const auto stages = partitioning::tree_partition(costs, options_.machine, ties);
          auto found = judged.find(stages);
          if (found == judged.end()) found = judged.emplace(stages, judge(stages)).first;
          runs.push_back({alpha, counts, ties, found->second});
        }
      }
    }
    return runs;
  }
  PartitionPlan plan() const { return partitioning::make_plan(model_.tree, options_); }
  PartitionPlan plan(double memory_weight) const {
    auto options = options_;
    options.memory_weight = memory_weight;
    return partitioning::make_plan(model_.tree, options);
  }

  double step_bound() const {
    return partitioning::step_lower_bound(model_.trace, costs_, options_.machine, settings_);
  }
  /// Whether no placement is better than the one module that costs most, alone on a stage.
  bool is_one_oversized_module() const {
    double largest = 0;
    for (const auto& node : costs_.nodes) largest = std::max(largest, node.own);
    const auto& machine = options_.machine;
    return bottleneck_lower_bound(costs_, machine) <= largest / machine.speed(0) * (1 + 1e-9);
  }

 private:
  Judged judge(const std::vector<int>& stages) const {
    constexpr std::int64_t kCalls = 500'000;  // as make_plan() judges what it reports
    const partitioning::StepJudge judge(model_.tree, model_.trace, costs_, options_.machine,
                                        settings_);
    const auto judgement = judge.judge_within(stages, kCalls);
    Judged judged{judgement.step.seconds};
    for (const auto& stage : judgement.memory) judged.most = std::max(judged.most, stage.most());
    return judged;
  }

  const SyntheticModel& model_;
  const partitioning::PartitionOptions options_;
  const CostTree costs_;
  const std::unique_ptr<schedule::Schedule> schedule_;
  const partitioning::StepSettings settings_;
};

/// The shortest step of the runs that `counts` and that fit.
double shortest(const std::vector<PaperRun>& runs, std::int64_t limit,
                const std::function<bool(const PaperRun&)>& counts) {
  double best = kNever;
  for (const auto& run : runs) {
    if (run.judged.most <= limit && counts(run)) best = std::min(best, run.judged.seconds);
  }
  return best;
}

// ---- comparing ---------------------------------------------------------------------------------

/// What one model on some stages came to. Gains are by how much the paper's step is longer.
struct Result {
  double gain = 0;          ///< over its best run
  double default_gain = 0;  ///< over its default: modules by number, alpha 0.8, ties to fewer seats
  double first_gain = 0;    ///< over its best run with ties to the first
  double speed_gain = 0;    ///< of our plan for memory_weight 0 over its best run
  bool default_fits = true;
  bool fits = true;  ///< our plans, where some run of the paper's algorithm does
  bool oversized = false;
  double bottleneck_over_bound = 0;
  double step_over_bound = 0;
};

/// The tightest limit that the paper's algorithm keeps to with some alpha, and a little.
std::int64_t limit_of(const std::vector<PaperRun>& runs) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const auto& run : runs) least = std::min(least, run.judged.most);
  return least + least / 20;
}

bool fits(const PartitionPlan& plan, std::int64_t limit) {
  const auto& stages = plan.summary()->stages;
  return std::all_of(stages.begin(), stages.end(),
                     [&](const auto& stage) { return stage.most_memory() <= limit; });
}

/// @param runs  of the paper's algorithm, on the machine without a limit
Result compare(const SyntheticModel& model, simulate::Machine machine,
               const std::vector<PaperRun>& runs, bool limited) {
  auto limit = std::numeric_limits<std::int64_t>::max();
  if (limited) {
    limit = limit_of(runs);
    machine.memory.assign(static_cast<std::size_t>(machine.stages), limit);
  }
  const Setting setting(model, machine);
  const auto plan = setting.plan();
  const auto speedy = setting.plan(0);
  const auto& own = plan.summary()->chosen;
  const auto gain = [&](const std::function<bool(const PaperRun&)>& counts) {
    return shortest(runs, limit, counts) / own.step_seconds - 1;
  };
  Result result;
  result.fits = fits(plan, limit) && fits(speedy, limit);
  result.gain = gain([](const PaperRun&) { return true; });
  result.speed_gain =
      (1 + result.gain) * own.step_seconds / speedy.summary()->chosen.step_seconds - 1;
  result.first_gain = gain([](const PaperRun& run) { return run.ties == SeatTies::kFirst; });
  result.default_gain = gain(
      [](const PaperRun& run) { return run.is_default() && run.ties == SeatTies::kFewestSeats; });
  result.default_fits = std::isfinite(result.default_gain);
  result.oversized = setting.is_one_oversized_module();
  result.bottleneck_over_bound = own.bottleneck_to_bound;
  result.step_over_bound = own.step_seconds / setting.step_bound();
  return result;
}

/// One result a member, in order.
struct Results {
  std::vector<Result> free, limited;
};

/// On all cores.
Results compare_members(const std::string& family, const simulate::Machine& machine, int members) {
  const auto count = static_cast<std::size_t>(members);
  Results results{std::vector<Result>(count), std::vector<Result>(count)};
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (auto i = next++; i < count; i = next++) {
      const auto model = partitioning::family_member(family, i + 1);
      const auto runs = Setting(model, machine).paper_runs();
      results.free[i] = compare(model, machine, runs, /*limited=*/false);
      results.limited[i] = compare(model, machine, runs, /*limited=*/true);
    }
  };
  std::vector<std::future<void>> others(std::max(1u, std::thread::hardware_concurrency()) - 1);
  for (auto& other : others) other = std::async(std::launch::async, work);
  work();
  for (auto& other : others) other.get();
  return results;
}

// ---- the report --------------------------------------------------------------------------------

struct Mean {
  double mean = 0;
  double half_width = 0;  ///< of the 95 % confidence interval
  int count = 0;
  std::string text(double factor = 1) const {
    char text[64];
    std::snprintf(text, sizeof text, "%.3g +- %.2g", factor * mean, factor * half_width);
    return text;
  }
};

Mean mean_of(const std::vector<double>& values) {
  Mean result;
  result.count = static_cast<int>(values.size());
  if (values.empty()) return result;
  for (const double value : values) result.mean += value / result.count;
  double squares = 0;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  if (result.count > 1) {
    // Student's t at 97.5 %, expanded in 1 / freedom: 0.0005 too little for 20 members, 0.05 for 5.
    const double freedom = result.count - 1;
    const double student = 1.96 + (2.372 + 2.82 / freedom) / freedom;
    result.half_width = student * std::sqrt(squares / freedom / result.count);
  }
  return result;
}

Mean mean_of(
    const std::vector<Result>& results, double Result::*value,
    const std::function<bool(const Result&)>& counts = [](const Result&) { return true; }) {
  std::vector<double> values;
  for (const auto& result : results) {
    if (counts(result)) values.push_back(result.*value);
  }
  return mean_of(values);
}

std::string interval_text(const Mean& mean) {
  return "95 % interval " + mean.text() + ", " + std::to_string(mean.count) + " members";
}

/// Plans that break a limit which the paper's algorithm keeps are no gain: they are named.
std::string unfit_text(const std::vector<Result>& results) {
  const auto unfit = std::count_if(results.begin(), results.end(), [](auto& r) { return !r.fits; });
  return unfit == 0 ? "" : "; OUR PLANS OF " + std::to_string(unfit) + " MEMBERS DO NOT FIT";
}

void add_gain(Report& report, const std::string& suffix, const std::vector<Result>& results) {
  const auto gain = mean_of(results, &Result::gain);
  const auto own_default = mean_of(results, &Result::default_gain,
                                   [](const Result& result) { return result.default_fits; });
  const auto least = std::min_element(results.begin(), results.end(),
                                      [](auto& a, auto& b) { return a.gain < b.gain; });
  char note[256];
  std::snprintf(note, sizeof note,
                "%s; least %.3f; over its default %s (fits in %d of %zu); ties to the first %s%s",
                interval_text(gain).c_str(), least->gain, own_default.text().c_str(),
                own_default.count, results.size(),
                mean_of(results, &Result::first_gain).text().c_str(), unfit_text(results).c_str());
  report.add("step_gain_over_paper." + suffix, gain.mean, "1", note);
  const auto speed = mean_of(results, &Result::speed_gain);
  const auto slowest = std::min_element(
      results.begin(), results.end(), [](auto& a, auto& b) { return a.speed_gain < b.speed_gain; });
  std::snprintf(note, sizeof note, "%s; least %.3f", interval_text(speed).c_str(),
                slowest->speed_gain);
  report.add("step_gain_over_paper.memory_weight_0." + suffix, speed.mean, "1", note);
}

void add_bounds(Report& report, const std::string& suffix, const std::vector<Result>& results) {
  const auto all = mean_of(results, &Result::bottleneck_over_bound);
  const auto free = mean_of(results, &Result::bottleneck_over_bound,
                            [](const Result& result) { return !result.oversized; });
  if (free.count > 0) {
    report.add(
        "bottleneck_over_bound." + suffix, free.mean, "1",
        interval_text(free) + " whose bound is not one oversized module; all: " + all.text());
  } else {
    report.add("bottleneck_over_bound.oversized." + suffix, all.mean, "1",
               interval_text(all) + ", whose bound is one oversized module each");
  }
  const auto step = mean_of(results, &Result::step_over_bound);
  report.add("step_over_bound." + suffix, step.mean, "1", interval_text(step));
}

/// What is measured so far is kept: 16 stages take an hour.
void measure_families(Report& report, const std::vector<int>& all_stages,
                      const std::vector<std::string>& families, int members) {
  for (const int stages : all_stages) {
    for (const auto& place : places(stages)) {
      for (const std::string& family : families) {
        const base::Nanoseconds start = base::SteadyClock().now();
        const auto results = compare_members(family, place.machine, members);
        const auto suffix = family + ".d" + std::to_string(stages) + "." + place.name;
        add_gain(report, suffix, results.free);
        add_bounds(report, suffix, results.free);
        add_gain(report, suffix + ".limited", results.limited);
        report.save();
        std::fprintf(stderr, "%s: %.0f s\n", suffix.c_str(),
                     static_cast<double>(base::SteadyClock().now() - start) / base::kSecond);
      }
    }
  }
}

void measure_size(Report& report) {
  const int modules = brief() ? 20 : 10'000, stages = brief() ? 2 : 1024;
  const SyntheticModel model = partitioning::random_model(modules, 1);
  simulate::Machine machine;
  machine.stages = stages;
  auto options = options_for(model, machine);
  const auto size = "_" + std::to_string(modules) + "x" + std::to_string(stages) + ".s";
  for (const std::string strategy : {"tree", "best"}) {
    options.strategy = strategy;
    const base::Nanoseconds start = base::thread_cpu_time();
    static_cast<void>(partitioning::make_plan(model.tree, options));
    const double seconds = static_cast<double>(base::thread_cpu_time() - start) / base::kSecond;
    report.add((strategy == "best" ? "default" : strategy) + size, seconds, "s",
               strategy == "best" ? "processor time; aim: below 10"
                                  : "processor time, with its simulation; aim: below 1");
  }
}

void run(int argc, char** argv) {
  std::vector<int> stages;
  std::vector<std::string> families = partitioning::family_names();
  bool planning = false;
  int members = kMembers;
  CLI::App app("How good plans are, beside the paper's algorithm and what is possible",
               "smp perf partition");
  app.add_option("--stages", stages,
                 "numbers of stages, whose rows join those in the file (default: 4,16,64, and how "
                 "long plans of 10,000 modules take)")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  app.add_option("--families", families, "of models, with --stages; all unless told")
      ->delimiter(',')
      ->check(CLI::IsMember(families))
      ->needs("--stages");
  app.add_option("--members", members, "of each family, as many as rows are the mean of")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--planning", planning,
               "only how long plans of 10,000 modules take; the other rows of the file are kept");
  if (!parse_options(app, argc, argv)) return;
  if (planning || !stages.empty()) {
    Report report("partition", Report::Earlier::kKept);
    if (planning) measure_size(report);
    measure_families(report, stages, families, members);
    return report.finish();
  }
  Report report("partition");
  measure_size(report);
  measure_families(report, brief() ? std::vector{2} : std::vector{4, 16, 64}, families, members);
  report.finish();
}

const Program program{"partition", run};

}  // namespace
}  // namespace smp::perf::partition
