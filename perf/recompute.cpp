// perf/recompute.cpp: what activations that are computed again save and cost: the GPT of the
// samples in one process, with nothing, its blocks, its attention, or all but products computed
// again, in turns; beside torch.utils.checkpoint on the same GPT.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "harness.h"
#include "models/gpt.h"
#include "program.h"
#include "smp/recompute/activation_checkpointing.h"
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

/// A Python that runs perf/recompute/torch_checkpoint.py, a step at a time.
class Torch {
 public:
  explicit Torch(const std::string& python) {
    int to[2], from[2];
    SMP_REQUIRE(pipe(to) == 0 && pipe(from) == 0, "no pipe to ", python);
    child_ = fork();
    SMP_REQUIRE(child_ >= 0, "no process for ", python);
    if (child_ == 0) become(python, to, from);
    close(to[0]);
    close(from[1]);
    to_ = fdopen(to[1], "w");
    from_ = fdopen(from[0], "r");
    char word[16] = {};
    ready_ = std::fscanf(from_, "%15s", word) == 1 && std::string(word) == "ready";
  }
  ~Torch() {
    std::fclose(to_);
    std::fclose(from_);
    waitpid(child_, nullptr, 0);
  }
  Torch(const Torch&) = delete;
  Torch& operator=(const Torch&) = delete;

  bool ready() const { return ready_; }
  /// Returns the microseconds of forward and backward.
  double run(const std::string& way) {
    std::fprintf(to_, "%s %ld\n", way.c_str(), static_cast<long>(rows()));
    std::fflush(to_);
    double seconds = 0, loss = 0;
    SMP_REQUIRE(std::fscanf(from_, "%lf %lf", &seconds, &loss) == 2, "torch has ended early");
    return 1e6 * seconds;
  }

 private:
  [[noreturn]] static void become(const std::string& python, const int (&to)[2],
                                  const int (&from)[2]) {
    dup2(to[0], 0);
    dup2(from[1], 1);
    for (const int end : {to[0], to[1], from[0], from[1]}) close(end);
    const auto of = config();
    std::vector<std::string> words = {python, "perf/recompute/torch_checkpoint.py"};
    for (const auto number : {static_cast<std::int64_t>(at::get_num_threads()), of.vocabulary,
                              of.length, of.width, of.heads, of.layers}) {
      words.push_back(std::to_string(number));
    }
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    execv(python.c_str(), arguments.data());
    std::perror(python.c_str());
    std::_Exit(1);
  }

  pid_t child_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
  bool ready_ = false;
};

/// Medians, over rounds, of what a way takes beyond what nothing computed again takes.
double ratio_of(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return median(ratios);
}

void measure(Report& report, Torch* torch, int times_each) {
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
      for (const char* way : {"kept", "full"}) now[std::string("torch.") + way] = torch->run(way);
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
  const double own = median(times["full"]) - median(times["kept"]);
  const double theirs = median(times["torch.full"]) - median(times["torch.kept"]);
  report.add("overhead_over_torch.full", own / theirs, "1",
             "time that recomputation adds, ours over torch's; aim: at most 0.85");
}

void run(int argc, char** argv) {
  const char* const given = std::getenv("SMP_PEERS_PYTHON");
  std::string python = given == nullptr ? "" : given;
  CLI::App app("What activations that are computed again save and cost", "smp perf recompute");
  app.add_option("--python", python, "a Python with torch, for the rows of torch.utils.checkpoint");
  int times_each = 15;
  app.add_option("--rounds", times_each, "steps of each contestant")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  if (!parse_options(app, argc, argv)) return;
  support::count_tensor_bytes();
  Report report("recompute");
  std::unique_ptr<Torch> torch;
  if (!python.empty()) {
    torch = std::make_unique<Torch>(python);
    if (!torch->ready()) torch.reset();
  }
  if (torch == nullptr) {
    std::fprintf(stderr, "no Python with torch: its rows are left out\n");
  }
  measure(report, torch.get(), times_each);
  report.finish();
}

const Program program{"recompute", run};

}  // namespace
}  // namespace smp::perf::recompute
