// perf/recompute.cpp: what activations that are computed again save and cost: the GPT of the
// samples in one process, with nothing, its blocks, its attention, or all but products computed
// again, in turns; beside torch.utils.checkpoint on the same GPT. On several ranks: a pipeline of
// sleeping modules that are all computed again, beside the ideal in which a stage does that first
// while it would idle.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "d2d/job/mpi_session.h"
#include "harness.h"
#include "models/gpt.h"
#include "program.h"
#include "python_peer.h"
#include "recompute/held_activations.h"
#include "recompute/sample_models.h"
#include "server/recompute/ahead.h"
#include "sleeping_stages.h"
#include "smp/recompute/activation_checkpointing.h"
#include "smp/session.h"
#include "support/tensor_bytes.h"

namespace smp::perf::recompute {
namespace {

using at::Tensor;

models::GptConfig config() {
  if (brief()) return {.vocabulary = 64, .length = 16, .width = 32, .heads = 2, .layers = 2};
  return {.vocabulary = 256, .length = 128, .width = 256, .heads = 8, .layers = 8};
}
std::int64_t rows() { return brief() ? 2 : 16; }

/// What is computed again.
const std::vector<std::string> kWays = {"kept", "attention", "products", "full"};

void mark(models::Gpt& net, const std::string& way) {
  for (const auto& module : net->modules()) {
    if (auto* const block = module->as<models::BlockImpl>(); block != nullptr) {
      if (way == "full") set_activation_checkpointing(*block);
      if (way == "products") set_activation_checkpointing(*block, {.keep = kProducts});
    }
    if (auto* const attention = module->as<models::AttentionImpl>(); attention != nullptr) {
      if (way == "attention") set_activation_checkpointing(*attention);
    }
  }
}

/// One way, with a net of its own; all have the same weights.
class Contestant {
 public:
  explicit Contestant(const std::string& way) {
    at::manual_seed(1);
    net_ = models::Gpt(config());
    mark(net_, way);
  }
  /// Returns the microseconds of forward and backward.
  double run(const Tensor& tokens) {
    net_->zero_grad();
    return microseconds([&] {
      const auto loss = net_(tokens);
      loss.backward();
      loss_ = loss.item<double>();
    });
  }
  double loss() const { return loss_; }

  /// Returns the bytes that a step has at most beyond the net and its gradients.
  std::int64_t peak(const Tensor& tokens) {
    run(tokens);  // gradients are there
    for (auto& parameter : net_->parameters()) parameter.mutable_grad().zero_();
    const auto before = support::live_tensor_bytes();
    support::take_peak_tensor_bytes();
    net_(tokens).backward();
    return support::take_peak_tensor_bytes() - before;
  }

 private:
  models::Gpt net_{nullptr};
  double loss_ = 0;
};

/// Torch on the same GPT.
std::unique_ptr<PythonPeer> start_torch(const std::string& python) {
  const auto of = config();
  std::vector<std::string> script = {"perf/recompute/torch_checkpoint.py"};
  for (const auto number : {static_cast<std::int64_t>(at::get_num_threads()), of.vocabulary,
                            of.length, of.width, of.heads, of.layers}) {
    script.push_back(std::to_string(number));
  }
  return start_python_peer(python, std::move(script));
}

/// Returns the microseconds of forward and backward.
double run_torch(PythonPeer& torch, const std::string& way) {
  return 1e6 * torch.ask(base::concat(way, " ", rows()));
}

/// Returns the bytes that a step has at most beyond the net and its gradients.
double torch_peak(PythonPeer& torch, const std::string& way) {
  return torch.ask(base::concat("peak.", way, " ", rows()));
}

/// Medians over rounds: contestants of one round have the same machine.
double ratio_of(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return median(ratios);
}
double difference_of(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> differences;
  for (std::size_t i = 0; i < a.size(); ++i) differences.push_back(a[i] - b[i]);
  return median(differences);
}

void measure(Report& report, PythonPeer* torch, int times_each) {
  at::manual_seed(2);
  const auto tokens = models::draw_sequences(rows(), config());
  std::map<std::string, std::unique_ptr<Contestant>> all;
  std::map<std::string, double> peaks;
  for (const auto& way : kWays) {
    all[way] = std::make_unique<Contestant>(way);
    peaks[way] = static_cast<double>(all[way]->peak(tokens));
    SMP_REQUIRE(all[way]->loss() == all["kept"]->loss(), "the loss differs: ", way);
  }
  std::map<std::string, std::vector<double>> times;
  for (int round = 0; round < rounds(times_each) + 1; ++round) {
    std::map<std::string, double> now;
    for (const auto& way : kWays) now[way] = all[way]->run(tokens);
    if (torch != nullptr) {
      for (const char* way : {"kept", "full"}) {
        now[std::string("torch.") + way] = run_torch(*torch, way);
      }
    }
    if (round == 0) continue;
    for (const auto& [way, microseconds] : now) times[way].push_back(microseconds);
  }
  for (const auto& way : kWays) {
    report.add("peak." + way + ".mb", peaks[way] / 1e6, "MB",
               "tensors beyond the net and its gradients, at the worst moment of a step");
    report.add("step." + way + ".ms", median(times[way]) / 1e3, "ms", "forward and backward");
    if (way == "kept") continue;
    report.add("peak_over_kept." + way, peaks[way] / peaks["kept"], "1");
    report.add("step_over_kept." + way, ratio_of(times[way], times["kept"]), "1",
               way == "full"        ? "aim: at most 1.30"
               : way == "attention" ? "aim: at most 1.05"
                                    : "products are kept");
  }
  if (torch == nullptr) return;
  for (const char* way : {"kept", "full"}) {
    report.add(std::string("step.torch.") + way + ".ms",
               median(times[std::string("torch.") + way]) / 1e3, "ms", "in Python");
  }
  report.add("step_over_kept.torch.full", ratio_of(times["torch.full"], times["torch.kept"]), "1",
             "torch.utils.checkpoint of each block");
  report.add("overhead_over_torch.full",
             difference_of(times["full"], times["kept"]) /
                 difference_of(times["torch.full"], times["torch.kept"]),
             "1", "time that recomputation adds, ours over torch's; aim: at most 0.85");
  report.add("peak_over_torch.full", peaks["full"] / torch_peak(*torch, "full"), "1",
             "tensors beyond the net and its gradients, ours over torch's; aim: at most 1");
}

// ---- on several ranks --------------------------------------------------------------------------

constexpr int kMicrobatchesPerRank = 4;

struct Pipeline {
  std::string prefix, schedule;
  bool ahead = true;
  bool static_mode = false;
};

/// Returns the milliseconds of steps in which every module is computed again.
std::vector<double> pipeline_steps(int argc, char** argv, const Pipeline& pipeline,
                                   const StageTimes& times, int microbatches, int steps) {
  constexpr int kRecorded = 7;  // then steps are replayed
  Config config{.microbatches = microbatches,
                .pipeline = pipeline.schedule,
                .plan_cache = "off",
                .intra_op_threads = 1};
  config.checkpoint_modules = "Stage";
  config.static_mode = pipeline.static_mode;
  std::vector<double> milliseconds;
  in_session(argc, argv, config, [&] {
    const auto when_placed = [&] {
      if (!pipeline.ahead) server::RecomputeAhead::of(rank())->set_credit({.one_call = false});
    };
    const int warm_up = pipeline.static_mode && !brief() ? kRecorded : 1;
    for (const auto& step :
         run_sleeping_steps(times, microbatches, steps, Placed::kByHand, warm_up, when_placed)) {
      milliseconds.push_back(step.milliseconds);
    }
  });
  return milliseconds;
}

/// Rows NAME.step_over_ideal.full.p4_m16. The last stage has no time to spare between its first
/// forward and its last backward; the others compute again while they wait, so that filling and
/// draining the pipeline takes (p - 1)(F + B).
void measure_pipelines(std::optional<Report>& report, int argc, char** argv, int ranks, int steps) {
  const double forward = brief() ? 2 : 10, backward = 2 * forward;
  const int microbatches = kMicrobatchesPerRank * ranks;
  const double ideal = microbatches * (2 * forward + backward) + (ranks - 1) * (forward + backward);
  const auto stages = static_cast<std::size_t>(ranks);
  const StageTimes times{std::vector<double>(stages, forward),
                         std::vector<double>(stages, backward)};
  const auto setting = ".full.p" + std::to_string(ranks) + "_m" + std::to_string(microbatches);
  for (const Pipeline& pipeline : {Pipeline{"", "interleaved"},
                                   {"not_ahead.", "interleaved", false},
                                   {"static.", "interleaved", true, true},
                                   {"simple.", "simple"},
                                   {"1f1b.", "1f1b"},
                                   {"not_ahead.1f1b.", "1f1b", false}}) {
    const auto taken = pipeline_steps(argc, argv, pipeline, times, microbatches, steps);
    if (!report) continue;
    report->add(pipeline.prefix + "step_over_ideal" + setting, median(taken) / ideal, "1",
                pipeline.schedule + (pipeline.static_mode ? ", static mode" : "") +
                    (pipeline.ahead ? "; aim: at most 1.04" : "; backwards alone compute again"));
  }
}

void run(int argc, char** argv) {
  std::string python = offered_python();
  CLI::App app("What activations that are computed again save and cost", "smp perf recompute");
  app.footer("--ranks P starts P ranks; without it 1, a GPT, and 4, modules that sleep.");
  app.add_option("--python", python, "a Python with torch, for the rows of torch.utils.checkpoint");
  int times_each = 15;
  app.add_option("--rounds", times_each, "steps of each contestant")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  if (!parse_options(app, argc, argv)) return;
  const d2d::MpiSession mpi;
  auto report = report_of_ranks(mpi.rank().value(), "recompute", Report::Earlier::kKept);
  if (mpi.size() > 1) {
    measure_pipelines(report, argc, argv, mpi.size(), rounds(times_each));
  } else {
    support::count_tensor_bytes();
    const auto torch = start_torch(python);
    measure(*report, torch.get(), times_each);
    measure_sample_models(*report, brief() ? 1 : 5);
    measure_held_activations(*report, argc, argv);
  }
  if (report) report->finish();
}

const Program program{"recompute", run};

}  // namespace
}  // namespace smp::perf::recompute
