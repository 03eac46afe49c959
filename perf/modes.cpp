// perf/modes.cpp: what a step costs beside its computation: a chain of tiny modules in every mode,
// the bytes that travel with and without promised outputs, and a GPT whose loop over its blocks is
// written by hand, half of them on each rank, beside the ideal of a pipeline.
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "api/runtime.h"
#include "base/check.h"
#include "base/clock.h"
#include "d2d/mpi_session.h"
#include "fiber/scheduler.h"
#include "harness.h"
#include "heap_allocations.h"
#include "models/gpt.h"
#include "schedule/trace_ring.h"
#include "server/worker_pool.h"
#include "sleeping_stages.h"
#include "smp/smp.h"

namespace smp::perf {
namespace {

using at::Tensor;

constexpr int kModules = 64;
constexpr int kMicrobatches = 8;
constexpr int kWarmUpSteps = 6;  // results are promised from the third on, static steps replayed

enum class Mode { kDynamic, kAwaited, kStatic, kFast };

Config config_of(Mode mode) {
  Config config;
  config.microbatches = kMicrobatches;
  config.promised_outputs = mode != Mode::kAwaited;
  config.static_mode = mode == Mode::kStatic || mode == Mode::kFast;
  config.fast_mode = mode == Mode::kFast;
  config.intra_op_threads = 1;
  config.plan_cache = "off";
  return config;
}

/// A step in one process; `mean` gets its loss.
double alone_us(const std::function<Tensor(Tensor)>& loss_of, const Tensor& batch,
                double* mean = nullptr) {
  return microseconds([&] {
    double sum = 0;
    for (const auto& slice : batch.chunk(kMicrobatches)) {
      const auto loss = loss_of(slice) / kMicrobatches;
      loss.backward();
      sum += loss.item<double>();
    }
    if (mean != nullptr) *mean = sum;
  });
}

// ---- a chain of tiny modules -------------------------------------------------------------------

struct LinkImpl : torch::nn::Module {
  LinkImpl() : linear(register_module("linear", torch::nn::Linear(16, 16))) {}
  Tensor forward(const Tensor& x) { return linear(x); }
  torch::nn::Linear linear;
};
SMP_MODULE(Link);

/// Computes for a while and returns another tensor.
struct BusyImpl : torch::nn::Module {
  explicit BusyImpl(double time_us) : microseconds(time_us) {}
  Tensor forward(const Tensor& x) {
    const base::SteadyClock clock;
    const auto end = clock.now() + static_cast<base::Nanoseconds>(microseconds * 1000);
    while (clock.now() < end) {
    }
    return x.clone();
  }
  double microseconds;
};
SMP_MODULE(Busy);

/// By a loop, as most models are written.
struct ChainImpl : torch::nn::Module {
  ChainImpl() {
    for (int i = 0; i < kModules; ++i) links.push_back(register_module(name_of(i), Link()));
  }
  Tensor forward(Tensor x) {
    // In one of two orders, if it branches: each link with its neighbour, which lives elsewhere.
    const std::size_t other = branches && current_microbatch() % 2 != 0 ? 1 : 0;
    for (std::size_t i = 0; i < links.size(); ++i) x = links[i ^ other](x);
    return x;
  }
  static std::string name_of(int link) { return "link" + std::to_string(link); }
  std::vector<Link> links;
  bool branches = false;
};
SMP_MODULE(Chain);

struct BusyChainImpl : torch::nn::Module {
  explicit BusyChainImpl(double time_us) {
    for (int i = 0; i < kModules; ++i) {
      links.push_back(register_module(ChainImpl::name_of(i), Busy(time_us)));
    }
  }
  Tensor forward(Tensor x) {
    for (auto& link : links) x = link(x);
    return x;
  }
  std::vector<Busy> links;
};
SMP_MODULE(BusyChain);

/// Link i lives on rank `first` + i modulo the number of ranks from there on.
void alternate_links(DistributedModelBase& model, int first) {
  model.set_partition("", 0);
  for (int i = 0; i < kModules; ++i) {
    model.set_partition(ChainImpl::name_of(i), first + i % (size() - first));
  }
}

/// What the run's log has a rank write down while it works.
class Recording {
 public:
  Recording()
      : memory_(schedule::TraceRing::bytes_for(kRecords) / sizeof(std::int64_t)),
        ring_(std::as_writable_bytes(std::span(memory_)), rank(), false) {
    recorder().enable(true);
    recorder().write_to(&ring_);
  }
  ~Recording() {
    recorder().enable(false);
    recorder().write_to(nullptr);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  static constexpr std::size_t kRecords = 1 << 16;
  static server::SpanRecorder& recorder() { return Runtime::current().server().recorder(); }

  std::vector<std::int64_t> memory_;
  schedule::TraceRing ring_;
};

/// Microseconds a module and microbatch, forward and backward.
struct ChainTimes {
  std::vector<double> distributed, alone;
  /// Of both ranks, in the measured steps, each.
  double control_messages = 0;
  /// Of both ranks, a module and microbatch, beside those of the module's own forward; in steps
  /// that are not measured.
  double allocations = 0;
};

struct ChainRun {
  bool with_alone = false;  ///< beside steps of one process, by turns
  bool branches = false;    ///< ChainImpl::branches
};

double sum_of_ranks(double own) {
  double sum = 0;
  for (const double one : all_gather(own)) sum += one;
  return sum;
}

void measure_chain(ChainTimes& times, const ChainRun& run = {}) {
  torch::manual_seed(1);
  auto alone = Chain(), net = Chain();
  net->branches = run.branches;
  DistributedModel model(net);
  alternate_links(model, 0);
  auto train = step([&](const Tensor& x) { model.backward(model(x).sum()); });
  const auto batch = at::randn({kMicrobatches, 16});
  const auto loss_of = [&](const Tensor& x) { return alone(x).sum(); };
  const auto told = [] {
    return static_cast<double>(Runtime::current().server().core().port.control_messages());
  };
  double before = 0;
  const int steps = rounds(20);
  for (int i = 0; i < kWarmUpSteps + steps; ++i) {
    if (i == kWarmUpSteps) before = told();
    barrier();
    const auto distributed = microseconds([&] { train(batch); });
    const auto in_one_process = rank() == 0 && run.with_alone ? alone_us(loss_of, batch) : 0;
    if (i < kWarmUpSteps) continue;
    times.distributed.push_back(distributed / (kModules * kMicrobatches));
    if (run.with_alone) times.alone.push_back(in_one_process / (kModules * kMicrobatches));
  }
  times.control_messages = sum_of_ranks(told() - before) / steps;
  const auto x = at::randn({1, 16}).requires_grad_();
  const auto own = least_allocations(rounds(5), [&] { alone->links[0](x); });
  const auto all = sum_of_ranks(least_allocations(rounds(5), [&] { train(batch); }));
  times.allocations = all / (kModules * kMicrobatches) - own;
}

/// Bytes of tensors that all ranks send in a step, forward and backward, if no module of the chain
/// lives with its caller.
double bytes_of_chain() {
  torch::manual_seed(1);
  Chain net;
  DistributedModel model(net);
  alternate_links(model, 1);
  auto train = step([&](const Tensor& x) {
    const auto leaf = x.detach().requires_grad_();
    model.backward(model(leaf).sum());
  });
  const auto batch = at::randn({kMicrobatches * 1024, 16});
  for (int i = 0; i < kWarmUpSteps; ++i) train(batch);
  const auto sent = [] { return Runtime::current().traffic().tensor_bytes_sent; };
  const auto before = sent();
  train(batch);
  return sum_of_ranks(static_cast<double>(sent() - before));
}

/// How much of a step without gradients is spent inside modules that take `time_us`, both ranks
/// taken together.
double efficiency(double time_us) {
  BusyChain net(time_us);
  DistributedModel model(net);
  alternate_links(model, 0);
  auto infer = step([&](const Tensor& x) {
    const at::NoGradGuard no_grad;
    return model(x);
  });
  std::vector<double> durations;
  for (int i = 0; i < kWarmUpSteps + rounds(9); ++i) {
    barrier();
    const auto duration = microseconds([&] { infer(at::ones({kMicrobatches, 16})); });
    if (i >= kWarmUpSteps) durations.push_back(duration);
  }
  return time_us * kModules * kMicrobatches / size() / median(durations);
}

// ---- a GPT in two halves -----------------------------------------------------------------------

models::GptConfig gpt_config() {
  if (brief()) return {.vocabulary = 32, .length = 17, .width = 32, .heads = 2, .layers = 4};
  return {.vocabulary = 256, .length = 65, .width = 256, .heads = 8, .layers = 8};
}

void place_halves(DistributedModelBase& model) {
  const auto layers = gpt_config().layers;
  model.set_partition("", 0);
  for (auto i = layers / 2; i < layers; ++i) {
    model.set_partition("transformer.h." + std::to_string(i), 1);
  }
  model.set_partition("transformer.ln_f", 1);
  model.set_partition("lm_head", 1);
}

/// Ideal over measured duration of steps. The ideal is that of a pipeline of two equal halves.
void measure_gpt(bool by_hand, std::vector<double>& shares) {
  torch::manual_seed(1);
  models::Gpt alone(gpt_config());
  torch::manual_seed(1);
  models::Gpt net(gpt_config());
  DistributedModel model(net);
  if (by_hand) place_halves(model);
  auto train = step([&](const Tensor& tokens) {
    auto loss = model(tokens);
    model.backward(loss);
    return loss.detach();
  });
  const auto batch = models::draw_sequences(kMicrobatches * 4, gpt_config());
  const auto loss_of = [&](const Tensor& tokens) { return alone(tokens); };
  constexpr double kIdeal = (kMicrobatches + 1.0) / (2 * kMicrobatches);
  for (int i = 0; i < kWarmUpSteps + rounds(7); ++i) {
    alone->zero_grad();
    model.zero_grad();
    barrier();
    double loss = 0, reference = 0;
    const auto distributed =
        microseconds([&] { loss = train(batch).reduce_mean().item<double>(); });
    if (rank() != 0) continue;
    const auto in_one_process = alone_us(loss_of, batch, &reference);
    SMP_REQUIRE(std::abs(loss - reference) < 1e-4, "losses differ: ", loss, " and ", reference);
    if (i >= kWarmUpSteps) shares.push_back(in_one_process * kIdeal / distributed);
  }
}

/// Duration of a step that is written down over one that is not, by turns.
void measure_recording(std::vector<double>& ratios) {
  torch::manual_seed(1);
  models::Gpt net(gpt_config());
  DistributedModel model(net);
  place_halves(model);
  auto train = step([&](const Tensor& tokens) { model.backward(model(tokens)); });
  const auto batch = models::draw_sequences(kMicrobatches * 4, gpt_config());
  const auto duration = [&](bool recorded) {
    std::optional<Recording> recording;
    if (recorded) recording.emplace();
    barrier();
    return microseconds([&] { train(batch); });
  };
  for (int i = 0; i < kWarmUpSteps + rounds(15); ++i) {
    const bool recorded_first = i % 2 == 0;
    const auto first = duration(recorded_first), second = duration(!recorded_first);
    if (i >= kWarmUpSteps) ratios.push_back(recorded_first ? first / second : second / first);
  }
}

// ---- the report --------------------------------------------------------------------------------

using InSession = std::function<void(Mode mode, const std::function<void()>& body)>;

void report_chain(std::optional<Report>& report, const InSession& in_session) {
  ChainTimes promised, awaited, repeated, fast, recorded, branching, branching_fast;
  for (int round = 0; round < rounds(3); ++round) {
    in_session(Mode::kDynamic, [&] { measure_chain(promised, {.with_alone = true}); });
    in_session(Mode::kDynamic, [&] {
      const Recording recording;
      measure_chain(recorded);
    });
    in_session(Mode::kAwaited, [&] { measure_chain(awaited); });
    in_session(Mode::kStatic, [&] { measure_chain(repeated); });
    in_session(Mode::kFast, [&] { measure_chain(fast); });
    in_session(Mode::kStatic, [&] { measure_chain(branching, {.branches = true}); });
    in_session(Mode::kFast, [&] { measure_chain(branching_fast, {.branches = true}); });
  }
  if (!report) return;
  const double dynamic = median(promised.distributed), alone = median(promised.alone);
  report->add("chain64.dynamic.us_per_module", dynamic, "us",
              "Linear(16, 16), each on the other rank; forward and backward, per module "
              "and microbatch; aim: at most 16");
  report->add("chain64.awaited.us_per_module", median(awaited.distributed), "us",
              "promised_outputs = false");
  report->add("chain64.static.us_per_module", median(repeated.distributed), "us",
              "static_mode; aim: at most 11");
  report->add("chain64.fast.us_per_module", median(fast.distributed), "us",
              "static_mode and fast_mode");
  const std::string branches = "every other microbatch calls the modules in another order";
  report->add("chain64.static.branching_over_not",
              median(branching.distributed) / median(repeated.distributed), "1", branches);
  report->add("chain64.fast.branching_over_not",
              median(branching_fast.distributed) / median(fast.distributed), "1", branches);
  report->add("static.branching.control_messages_per_step", branching.control_messages, "1",
              "of both ranks");
  report->add("fast.branching.control_messages_per_step", branching_fast.control_messages, "1",
              "of both ranks");
  report->add("static.control_messages_per_step", repeated.control_messages, "1",
              "of both ranks; aim: 0");
  report->add("fast.control_messages_per_step", fast.control_messages, "1",
              "of both ranks; aim: 0");
  report->add("dynamic.control_messages_per_step", promised.control_messages, "1", "of both ranks");
  report->add("awaited.control_messages_per_step", awaited.control_messages, "1", "of both ranks");
  const std::string allocations =
      "of operator new in a warm step, both ranks, per module and microbatch, forward and "
      "backward; "
      "without those of the modules' own forward";
  report->add("dynamic.allocations_per_step", promised.allocations, "1", allocations);
  report->add("awaited.allocations_per_step", awaited.allocations, "1", allocations);
  report->add("static.allocations_per_step", repeated.allocations, "1", allocations);
  report->add("fast.allocations_per_step", fast.allocations, "1", allocations);
  report->add("chain64.recorded_over_not", median(recorded.distributed) / dynamic, "1",
              "while every span and message is written down");
  report->add("chain64.one_process.us_per_module", alone, "us", "LibTorch's own engine");
  report->add("chain64.dynamic_over_one_process", dynamic / alone, "1");
}

void report_smallest_module(std::optional<Report>& report, const InSession& in_session) {
  std::optional<double> smallest;
  double before = 0, before_us = 0;
  const std::vector<double> all{1, 2, 4, 8, 16, 32, 64};
  for (const double time_us : brief() ? std::vector<double>{64} : all) {
    double share = 0;
    in_session(Mode::kDynamic, [&] { share = efficiency(time_us); });
    if (!report) continue;
    report->add("efficiency.module_us_" + std::to_string(std::lround(time_us)), share, "1");
    if (!smallest && share >= 0.5) {
      const double part = before_us == 0 ? 1 : (0.5 - before) / (share - before);
      smallest = before_us + part * (time_us - before_us);
    }
    before = share;
    before_us = time_us;
  }
  if (report && smallest) {
    report->add("smallest_module_at_half_efficiency", *smallest, "us",
                "busy without gradients, each on the other rank; aim: at most 10");
  }
}

/// Microseconds a task that does nothing: from the look for messages that finds it to its end, when
/// the worker that ran it is idle again, among all that a rank of a session looks for.
double dispatch_us() {
  int left = rounds(10000);
  const int tasks = left;
  fiber::Event done;
  server::WorkerPool workers(
      std::size_t{1} << 20, [](server::WorkerTask&&) {},
      [&] {
        if (left == 0) done.signal();
      });
  const auto poll = fiber::Scheduler::instance().add_poll([&] {
    if (left == 0 || workers.busy() > 0) return false;
    --left;
    workers.launch(server::BodyTask{0}, 0);
    return true;
  });
  return microseconds([&] { done.wait({"tasks that do nothing", "", -1, -1}); }) / tasks;
}

void report_dispatch(std::optional<Report>& report, const InSession& in_session) {
  std::vector<double> times;
  in_session(Mode::kStatic, [&] {
    for (int round = 0; round < rounds(20); ++round) {
      if (rank() == 0) times.push_back(dispatch_us());
    }
    barrier();
  });
  if (report) report->add_samples("dispatch.us_per_task", times, "us", "aim: at most 1");
}

void report_bytes(std::optional<Report>& report, const InSession& in_session) {
  double promised = 0, relayed = 0;
  in_session(Mode::kDynamic, [&] { promised = bytes_of_chain(); });
  in_session(Mode::kAwaited, [&] { relayed = bytes_of_chain(); });
  if (!report) return;
  report->add("bytes.promised_over_relayed", promised / relayed, "1",
              "64 modules on two ranks by turns, called from a third: 65 of 128 tensors, forward "
              "and backward");
}

void report_gpt(std::optional<Report>& report, const InSession& in_session) {
  std::vector<double> by_hand, awaited, planned, recorded;
  for (int round = 0; round < rounds(3); ++round) {
    in_session(Mode::kDynamic, [&] { measure_gpt(true, by_hand); });
    in_session(Mode::kAwaited, [&] { measure_gpt(true, awaited); });
    in_session(Mode::kDynamic, [&] { measure_gpt(false, planned); });
    in_session(Mode::kDynamic, [&] { measure_recording(recorded); });
  }
  if (!report) return;
  const std::string gpt =
      "of the ideal of a pipeline, from one process; GPT of 8 layers, width "
      "256, 8 microbatches of 4 x 64 tokens; ";
  report->add_samples("half_split.share_of_ideal", by_hand, "1",
                      gpt + "loop by hand over two halves; aim: at least 0.96");
  report->add_samples("half_split.awaited.share_of_ideal", awaited, "1",
                      gpt + "loop by hand, promised_outputs = false");
  report->add_samples("planned.share_of_ideal", planned, "1", gpt + "planned by default");
  report->add_samples("half_split.recorded_over_not", recorded, "1",
                      "step of the same GPT, loop by hand, while every span and message is "
                      "written down; aim: at most 1.02");
}

struct Part {
  std::string name;
  void (*report)(std::optional<Report>&, const InSession&);
  int ranks = 2;
};

const std::vector<Part>& parts() {
  static const std::vector<Part> all{{"chain", report_chain},
                                     {"dispatch", report_dispatch},
                                     {"smallest_module", report_smallest_module},
                                     {"gpt", report_gpt},
                                     {"bytes", report_bytes, 3}};
  return all;
}

void run(int argc, char** argv) {
  CLI::App app("What steps cost beside their computation", "smp perf modes");
  app.footer("--ranks P starts P ranks; without it 2 for times, then 3 for bytes.");
  std::vector<std::string> names, wanted;
  for (const Part& part : parts()) names.push_back(part.name);
  app.add_option("--part", wanted, "to measure (default: all)")->check(CLI::IsMember(names));
  if (!parse_options(app, argc, argv)) return;
  const d2d::MpiSession mpi;
  SMP_REQUIRE(mpi.size() == 2 || mpi.size() == 3, "perf modes runs on 2 or 3 ranks");
  auto report = report_of_ranks(mpi.rank().value(), "modes", Report::Earlier::kKept);
  const auto session = [&](Mode mode, const std::function<void()>& body) {
    in_session(argc, argv, config_of(mode), body);
  };
  for (const Part& part : parts()) {
    const bool is_wanted =
        wanted.empty() || std::find(wanted.begin(), wanted.end(), part.name) != wanted.end();
    if (is_wanted && part.ranks == mpi.size()) part.report(report, session);
  }
  if (report) report->finish();
}

}  // namespace
}  // namespace smp::perf

int main(int argc, char** argv) {
  return smp::perf::run_program([&] { smp::perf::run(argc, argv); });
}
