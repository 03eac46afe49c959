// perf/modes/chain.cpp: see the header.
#include "modes/chain.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <string>
#include <vector>

#include "api/rank/rank.h"
#include "base/clock.h"
#include "heap_allocations.h"
#include "modes/recording.h"
#include "sleeping_stages.h"
#include "smp/smp.h"

namespace smp::perf::modes {
namespace {

using at::Tensor;

constexpr int kModules = 64;

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
    return static_cast<double>(Rank::current().server().core().port.control_messages());
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
  const auto sent = [] { return Rank::current().channel().counters().tensor_bytes_sent; };
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

}  // namespace

void report_chain(std::optional<Report>& report, const InSession& in_session) {
  ChainTimes promised, awaited, replayed, relayed, recorded, branching, branching_relayed;
  for (int round = 0; round < rounds(3); ++round) {
    in_session(Mode::kDynamic, [&] { measure_chain(promised, {.with_alone = true}); });
    in_session(Mode::kDynamic, [&] {
      const Recording recording;
      measure_chain(recorded);
    });
    in_session(Mode::kAwaited, [&] { measure_chain(awaited); });
    in_session(Mode::kStatic, [&] { measure_chain(replayed); });
    in_session(Mode::kRelayedStatic, [&] { measure_chain(relayed); });
    in_session(Mode::kStatic, [&] { measure_chain(branching, {.branches = true}); });
    in_session(Mode::kRelayedStatic, [&] { measure_chain(branching_relayed, {.branches = true}); });
  }
  if (!report) return;
  const double dynamic = median(promised.distributed), alone = median(promised.alone);
  report->add("chain64.dynamic.us_per_module", dynamic, "us",
              "Linear(16, 16), each on the other rank; forward and backward, per module "
              "and microbatch; aim: at most 16");
  report->add("chain64.awaited.us_per_module", median(awaited.distributed), "us",
              "promised_outputs = false");
  report->add("chain64.static.us_per_module", median(replayed.distributed), "us",
              "static_mode; aim: at most 11");
  report->add("chain64.static_relayed.us_per_module", median(relayed.distributed), "us",
              "static_mode, fast_mode = false");
  const std::string branches = "every other microbatch calls the modules in another order";
  report->add("chain64.static.branching_over_not",
              median(branching.distributed) / median(replayed.distributed), "1", branches);
  report->add("chain64.static_relayed.branching_over_not",
              median(branching_relayed.distributed) / median(relayed.distributed), "1", branches);
  report->add("static.branching.control_messages_per_step", branching.control_messages, "1",
              "of both ranks");
  report->add("static_relayed.branching.control_messages_per_step",
              branching_relayed.control_messages, "1", "of both ranks");
  report->add("static.control_messages_per_step", replayed.control_messages, "1",
              "of both ranks; aim: 0");
  report->add("static_relayed.control_messages_per_step", relayed.control_messages, "1",
              "of both ranks");
  report->add("dynamic.control_messages_per_step", promised.control_messages, "1", "of both ranks");
  report->add("awaited.control_messages_per_step", awaited.control_messages, "1", "of both ranks");
  const std::string allocations =
      "of operator new in a warm step, both ranks, per module and microbatch, forward and "
      "backward; without those of the modules' own forward";
  report->add("dynamic.allocations_per_step", promised.allocations, "1", allocations);
  report->add("awaited.allocations_per_step", awaited.allocations, "1", allocations);
  report->add("static.allocations_per_step", replayed.allocations, "1", allocations);
  report->add("static_relayed.allocations_per_step", relayed.allocations, "1", allocations);
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

void report_bytes(std::optional<Report>& report, const InSession& in_session) {
  double promised = 0, relayed = 0;
  in_session(Mode::kDynamic, [&] { promised = bytes_of_chain(); });
  in_session(Mode::kAwaited, [&] { relayed = bytes_of_chain(); });
  if (!report) return;
  report->add("bytes.promised_over_relayed", promised / relayed, "1",
              "64 modules on two ranks by turns, called from a third: 65 of 128 tensors, forward "
              "and backward");
}

}  // namespace smp::perf::modes
