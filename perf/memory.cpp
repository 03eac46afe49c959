// perf/memory.cpp: predicted memory of each stage against what its tensors take. The models of the
// samples train on the ranks by the plan that the product chooses; an allocator counts.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "d2d/job/mpi_session.h"
#include "d2d/lend/heap_allocator.h"
#include "harness.h"
#include "program.h"
#include "sample_cases.h"
#include "server/recompute/ahead.h"
#include "sleeping_stages.h"
#include "smp/smp.h"
#include "support/tensor_bytes.h"

namespace smp::perf::memory {
namespace {

using at::Tensor;
using support::live_tensor_bytes;
using support::take_peak_tensor_bytes;

/// From the third step on, everything is there that training takes.
constexpr int kFirstSteps = 2;
constexpr int kSteps = 11;

// ---- what is measured --------------------------------------------------------------------------

enum class Schedule { kSimple, kInterleaved };

struct Setting {
  std::string model;
  bool adam = false;
  Schedule schedule = Schedule::kSimple;
  int microbatches = 8;
  int steps = 1;
  /// Tensors stay where they were made, and ranks borrow them (`lend_tensors`).
  bool lent = false;
  /// Blocks are computed again in the backward.
  bool again = false;
};

const char* name_of(Schedule schedule) {
  return schedule == Schedule::kSimple ? "simple" : "interleaved";
}

/// Megabytes of one rank at the worst moment of a step: of the simulated one and of one of those
/// that ran; what the plan says to be the most, and the most that was seen.
struct Comparison {
  double predicted = 0, measured = 0;
  double most_predicted = 0, most_measured = 0;
  double error() const { return std::abs(predicted / measured - 1); }
  double of_most() const { return most_measured / most_predicted; }
};

/// What one of several steps took: of the simple schedule the least, since all hold the same, and
/// what waits for ranks that others keep from their cores comes on top of it; else the usual one.
double measured(Schedule schedule, const std::vector<double>& peaks) {
  if (schedule == Schedule::kSimple) return *std::min_element(peaks.begin(), peaks.end());
  return median(peaks);
}

/// What this rank takes, and what the plan said. The batch is the user's and does not count.
template <class Case, class Optimizer>
Comparison train(const Setting& setting, const Optimizer& prototype) {
  const auto batch = Case::draw();
  const auto before = live_tensor_bytes();
  torch::manual_seed(1);
  auto net = Case::make();
  DistributedModel model(net);
  DistributedOptimizer optimizer(model, prototype(net->parameters()));
  auto run = step([&](const std::vector<Tensor>& slices) {
    const auto loss = Case::loss(model, slices);
    model.backward(loss);
    return loss;
  });
  std::vector<double> peaks;
  for (int i = 0; i < kFirstSteps + setting.steps; ++i) {
    // The prediction leaves out what is computed ahead.
    if (i > 0) server::RecomputeAhead::of(rank())->set_credit({.one_call = false});
    optimizer.zero_grad();
    barrier();
    take_peak_tensor_bytes();
    run(batch);
    optimizer.step();
    const auto peak = static_cast<double>(take_peak_tensor_bytes() - before);
    if (i >= kFirstSteps) peaks.push_back(peak / 1e6);
  }
  const auto& stage = model.plan().summary()->stages.at(static_cast<std::size_t>(pp_rank()));
  return {static_cast<double>(stage.memory()) / 1e6, measured(setting.schedule, peaks),
          static_cast<double>(stage.most_memory()) / 1e6,
          *std::max_element(peaks.begin(), peaks.end())};
}

template <class Case>
Comparison train(const Setting& setting) {
  if (setting.adam) {
    return train<Case>(setting, [](std::vector<Tensor> parameters) {
      return torch::optim::Adam(std::move(parameters), torch::optim::AdamOptions(1e-3));
    });
  }
  return train<Case>(setting, [](std::vector<Tensor> parameters) {
    return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(1e-3));
  });
}

const char* blocks_of(const std::string& model) {
  if (model == "t5") return T5Case::kBlocks;
  if (model == "gpt") return GptCase::kBlocks;
  return model == "unet" ? UNetCase::kBlocks : RecommenderCase::kBlocks;
}

Comparison train_model(const Setting& setting) {
  if (setting.model == "t5") return train<T5Case>(setting);
  if (setting.model == "gpt") return train<GptCase>(setting);
  if (setting.model == "unet") return train<UNetCase>(setting);
  return train<RecommenderCase>(setting);
}

// ---- the report --------------------------------------------------------------------------------

/// "simple.t5.adam.p4", or "simple.t5.again.adam.p4"
std::string name_of(const Setting& setting, std::size_t ranks) {
  return base::concat(name_of(setting.schedule), ".", setting.model,
                      setting.again ? ".again." : ".", setting.adam ? "adam" : "sgd", ".p", ranks);
}

/// Whose memory a tensor is in that one rank made and another keeps is no stage's business then:
/// what all take together, each at its own worst moment, over what all may take together.
void add_lent_row(Report& report, const Setting& setting, const std::vector<Comparison>& ranks) {
  double measured = 0, most = 0, worst = 0;
  for (const auto& own : ranks) {
    measured += own.most_measured;
    most += own.most_predicted;
    worst = std::max(worst, own.of_most());
  }
  char note[96];
  std::snprintf(note, sizeof note, "%.1f of %.1f MB; of the worst rank alone: %.3f", measured, most,
                worst);
  report.add("lent_of_most." + name_of(setting, ranks.size()), measured / most, "1", note);
}

/// "memory_error.simple.t5.adam.p4", of the worst rank.
void add_row(Report& report, const Setting& setting, const std::vector<Comparison>& ranks) {
  if (setting.lent) return add_lent_row(report, setting, ranks);
  const auto worst = std::max_element(ranks.begin(), ranks.end(),
                                      [](auto& a, auto& b) { return a.error() < b.error(); });
  std::string note = "rank: predicted/measured MB, most predicted/measured";
  double of_most = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& own = ranks[rank];
    char text[96];
    std::snprintf(text, sizeof text, "; %zu: %.1f/%.1f, %.1f/%.1f", rank, own.predicted,
                  own.measured, own.most_predicted, own.most_measured);
    note += text;
    of_most = std::max(of_most, own.of_most());
  }
  const auto name = name_of(setting, ranks.size());
  report.add("memory_error." + name, worst->error(), "1", note);
  report.add("memory_of_most." + name, of_most, "1");
}

void add_summary(Report& report, Schedule schedule, const std::string& suffix) {
  const auto errors = report.values(base::concat("memory_error.", name_of(schedule), "."));
  if (errors.empty()) return;
  const double sum = std::accumulate(errors.begin(), errors.end(), 0.0);
  const auto note =
      base::concat("schedule ", name_of(schedule), ", the worst rank of each setting");
  report.add("memory_error.mean" + suffix, sum / static_cast<double>(errors.size()), "1", note);
  report.add("memory_error.max" + suffix, *std::max_element(errors.begin(), errors.end()), "1",
             note);
  const auto shares = report.values(base::concat("memory_of_most.", name_of(schedule), "."));
  report.add("memory_of_most.max" + suffix, *std::max_element(shares.begin(), shares.end()), "1",
             "largest of all steps over what the plan says to be the most; aim: at most 1");
}

void add_lent_summary(Report& report) {
  const auto shares = report.values("lent_of_most.");
  if (shares.empty()) return;
  report.add("most_lent_of_most", *std::max_element(shares.begin(), shares.end()), "1",
             "all ranks of the machine together, which lend each other tensors; aim: at most 1");
}

std::vector<Setting> all_settings() {
  std::vector<Setting> settings;
  for (const auto schedule : {Schedule::kSimple, Schedule::kInterleaved}) {
    const bool simple = schedule == Schedule::kSimple;
    for (const char* model : {"t5", "gpt", "unet", "recommender"}) {
      for (const bool adam : {true, false}) {
        const int microbatches = simple ? 8 : 16;
        settings.push_back({model, adam, schedule, microbatches, kSteps});
        settings.push_back({model, adam, schedule, microbatches, simple ? 1 : 3, true});
        settings.push_back({model, adam, schedule, microbatches, kSteps, false, /*again=*/true});
      }
    }
  }
  if (brief()) {
    settings = {{"recommender", false, Schedule::kSimple, 8, 1},
                {"recommender", false, Schedule::kSimple, 8, 1, false, /*again=*/true}};
  }
  return settings;
}

void run(int argc, char** argv) {
  std::string only, begin;
  CLI::App app("Predicted memory of each stage against what its tensors take", "smp perf memory");
  app.allow_extras();
  app.footer("--ranks P starts P ranks; without it 2 and 4.");
  app.add_option("--model", only, "one of them (default: all)")
      ->check(CLI::IsMember({"t5", "gpt", "unet", "recommender"}));
  app.add_option("--setting", begin, "those whose name begins so: simple.t5.again (default: all)");
  if (!parse_options(app, argc, argv)) return;
  d2d::HeapAllocator::install();  // below what counts, so that what it allocates can be lent
  support::count_tensor_bytes();
  const d2d::MpiSession mpi;
  SMP_REQUIRE(mpi.size() > 1, "perf memory needs at least 2 ranks; give --ranks");
  auto report = report_of_ranks(mpi.rank().value(), "memory", Report::Earlier::kKept);
  for (const auto& setting : all_settings()) {
    if (!only.empty() && setting.model != only) continue;
    if (!name_of(setting, static_cast<std::size_t>(mpi.size())).starts_with(begin)) continue;
    Config config;
    config.microbatches = setting.microbatches;
    config.pipeline = name_of(setting.schedule);
    config.intra_op_threads = 1;
    config.plan_cache = "off";
    config.lend_tensors = setting.lent;
    if (setting.again) config.checkpoint_modules = blocks_of(setting.model);
    in_session(argc, argv, config, [&] {
      const auto ranks = all_gather(train_model(setting));
      if (report) add_row(*report, setting, ranks);
    });
  }
  if (!report) return;
  add_summary(*report, Schedule::kSimple, "");
  add_summary(*report, Schedule::kInterleaved, ".interleaved");
  add_lent_summary(*report);
  report->finish();
}

const Program program{"memory", run};

}  // namespace
}  // namespace smp::perf::memory
