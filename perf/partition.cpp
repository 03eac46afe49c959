// perf/partition.cpp: how good plans are: bottleneck over its bound, and the simulated step against
// the paper's algorithm, over five families of models and 2 to 64 stages; and how long a plan of
// 10,000 modules takes.
#include "partition/partitioner.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "harness.h"
#include "partition/strategies.h"
#include "support/model_families.h"

namespace smp::perf {
namespace {

using partitioning::SyntheticModel;

const int kInstances = rounds(3);
const int kMostStages = brief() ? 2 : 64;

partitioning::PartitionOptions options_for(const SyntheticModel& model, int stages) {
  partitioning::PartitionOptions options;
  options.pp_size = stages;
  options.trace = model.trace;
  options.microbatches = 4 * stages;
  options.active_microbatches = 2 * stages + 2;
  return options;
}

/// What the paper's algorithm and the default came to, each over the same bound and step.
struct Result {
  double paper_to_bound = 0, to_bound = 0;
  double gain = 0;  ///< by which share the paper's step is longer
};

Result compare(const SyntheticModel& model, int stages) {
  const PartitionPlan plan = partitioning::make_plan(model.tree, options_for(model, stages));
  const PlanSummary& summary = *plan.summary();
  PlanSummary::Outcome paper = summary.chosen;
  for (const auto& other : summary.others) {
    if (other.strategy == "tree") paper = other;
  }
  return {paper.bottleneck_to_bound, summary.chosen.bottleneck_to_bound,
          paper.step_seconds / summary.chosen.step_seconds - 1};
}

double mean(const std::vector<Result>& results, double Result::*value) {
  double sum = 0;
  for (const Result& result : results) sum += result.*value;
  return sum / static_cast<double>(results.size());
}

/// All results of one family; adds its row of the table.
std::vector<Result> measure(Report& report, const std::string& family) {
  std::vector<Result> all;
  for (int stages = 2; stages <= kMostStages; stages *= 2) {
    std::vector<Result> here;
    for (int seed = 1; seed <= kInstances; ++seed) {
      here.push_back(
          compare(partitioning::family_member(family, static_cast<std::uint64_t>(seed)), stages));
    }
    char note[96];
    std::snprintf(note, sizeof note, "the paper's algorithm %.3f; its step is %.1f %% longer",
                  mean(here, &Result::paper_to_bound), 100 * mean(here, &Result::gain));
    report.add("bottleneck_over_bound." + family + ".d" + std::to_string(stages),
               mean(here, &Result::to_bound), "1", note);
    all.insert(all.end(), here.begin(), here.end());
  }
  return all;
}

void measure_families(Report& report) {
  std::vector<Result> all;
  std::map<std::string, double> gains;
  for (const std::string& family : partitioning::family_names()) {
    const auto results = measure(report, family);
    gains[family] = mean(results, &Result::gain);
    all.insert(all.end(), results.begin(), results.end());
  }
  report.add("bottleneck_over_bound.mean", mean(all, &Result::to_bound), "1",
             "default; aim: at most 1.03; the paper's algorithm " +
                 std::to_string(mean(all, &Result::paper_to_bound)));
  for (const std::string family : {"nested_gpt", "t5", "unet"}) {
    report.add("step_gain_over_paper." + family, gains[family], "1",
               "mean of 2 to 64 stages; aim: at least 0.15");
  }
  const auto least = std::min_element(all.begin(), all.end(),
                                      [](const auto& a, const auto& b) { return a.gain < b.gain; });
  report.add("step_gain_over_paper.min", least->gain, "1", "of all families; aim: never negative");
}

void measure_size(Report& report) {
  const int modules = brief() ? 20 : 10'000, stages = brief() ? 2 : 1024;
  const SyntheticModel model = partitioning::random_model(modules, 1);
  auto options = options_for(model, stages);
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

void run() {
  Report report("partition");
  measure_size(report);
  measure_families(report);
  report.finish();
}

}  // namespace
}  // namespace smp::perf

int main() { return smp::perf::run_program(smp::perf::run); }
