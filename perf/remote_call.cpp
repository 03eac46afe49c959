// perf/remote_call.cpp: what it costs to call a module of another rank: y = x * w with 4 floats,
// from the body of a step on rank 0, module on rank 1, beside a ping-pong of plain MPI in the same
// run.
#include <ATen/ATen.h>
#include <mpi.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "d2d/job/mpi_session.h"
#include "harness.h"
#include "program.h"
#include "sleeping_stages.h"
#include "smp/distributed_model.h"
#include "smp/module.h"
#include "smp/session.h"
#include "smp/step.h"
#include "smp/wait.h"

namespace smp::perf::remote_call {
namespace {

constexpr int kRounds = 20;   // of each kind, by turns
constexpr int kSessions = 4;  // of each transport, by turns
constexpr int kCallsPerRound = 100;
constexpr int kWarmUpCalls = 20;    // of each round, not counted
constexpr int kMessageBytes = 200;  // about what a request with 4 floats takes

struct ScaleImpl : torch::nn::Module {
  ScaleImpl() : w(register_parameter("w", at::ones({1}))) {}
  at::Tensor forward(const at::Tensor& x) { return x * w; }
  at::Tensor w;
};
SMP_MODULE(Scale);

struct ModelImpl : torch::nn::Module {
  ModelImpl() : scale(register_module("scale", Scale())) {}
  at::Tensor forward(const at::Tensor& x) { return scale(x); }
  Scale scale;
};
SMP_MODULE(Model);

using Samples = std::vector<double>;

/// Round trips of a plain MPI message; rank 1 answers. Both ranks call it, outside of steps.
void ping_pong(Samples& samples) {
  char message[kMessageBytes] = {};
  const auto send = [&](int peer) {
    MPI_Send(message, kMessageBytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
  };
  const auto receive = [&](int peer) {
    MPI_Recv(message, kMessageBytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  };
  for (int call = 0; call < kWarmUpCalls + kCallsPerRound; ++call) {
    if (rank() == 1) {
      receive(0);
      send(0);
      continue;
    }
    const auto duration = microseconds([&] {
      send(1);
      receive(1);
    });
    if (call >= kWarmUpCalls) samples.push_back(duration);
  }
}

/// `here`: the same product and its gradient in plain LibTorch, which every call contains.
struct CallSamples {
  Samples forward, forward_backward, forward_without_grad, here, here_backward;
};

/// The calls of one round: a step with one microbatch, whose body calls the module in a loop.
class Calls {
 public:
  explicit Calls(DistributedModel<Model>& model) : model_(model) {}

  void run(CallSamples& samples) {
    auto round = step([&](at::Tensor x) {
      x.requires_grad_();
      for (int call = 0; call < kWarmUpCalls + kCallsPerRound; ++call) {
        once(x, call >= kWarmUpCalls ? samples : not_counted_);
      }
      for (int call = 0; call < kWarmUpCalls + kCallsPerRound; ++call) {
        here(call >= kWarmUpCalls ? samples : not_counted_);
      }
    });
    round(rank() == 0 ? at::randn({4}) : at::Tensor());
  }

 private:
  void once(const at::Tensor& x, CallSamples& samples) {
    const base::SteadyClock clock;
    const auto start = clock.now();
    const auto y = smp::wait(model_(x));
    const auto forward = clock.now();
    model_.backward(y, gradient_);
    const auto backward = clock.now();
    const at::NoGradGuard no_grad;
    smp::wait(model_(x));
    const auto end = clock.now();
    samples.forward.push_back(us(forward - start));
    samples.forward_backward.push_back(us(backward - start));
    samples.forward_without_grad.push_back(us(end - backward));
  }

  void here(CallSamples& samples) {
    const base::SteadyClock clock;
    const auto start = clock.now();
    const auto y = x_here_ * w_here_;
    const auto forward = clock.now();
    y.backward(gradient_);
    const auto backward = clock.now();
    samples.here.push_back(us(forward - start));
    samples.here_backward.push_back(us(backward - start));
  }

  static double us(base::Nanoseconds duration) {
    return static_cast<double>(duration) / base::kMicrosecond;
  }

  DistributedModel<Model>& model_;
  at::Tensor gradient_ = at::ones({4});
  at::Tensor x_here_ = at::randn({4}).requires_grad_(), w_here_ = at::ones({1}).requires_grad_();
  CallSamples not_counted_;
};

void add_percentiles(Report& report, const std::string& name, const Samples& samples,
                     const std::string& note) {
  report.add(name + ".min_us", percentile(samples, 0), "us");
  report.add(name + ".p50_us", percentile(samples, 0.5), "us", note);
  report.add(name + ".p99_us", percentile(samples, 0.99), "us");
}

/// Of one transport, and plain MPI beside it.
struct Measured {
  CallSamples calls;
  Samples plain;
};

void add_calls(Report& report, const std::string& prefix, const CallSamples& calls,
               const std::string& over, const std::string& forward, const std::string& both) {
  add_percentiles(report, prefix + "forward", calls.forward, over + forward);
  add_percentiles(report, prefix + "forward_backward", calls.forward_backward, over + both);
  add_percentiles(report, prefix + "forward_without_grad", calls.forward_without_grad,
                  over + "under NoGradGuard");
}

/// What no call can do without: the product itself and the way there.
void add_plain(Report& report, const CallSamples& calls, double round_trip) {
  const double here = percentile(calls.here, 0.5);
  const double here_backward = percentile(calls.here_backward, 0.5);
  report.add("here.forward.p50_us", here, "us", "x * w in plain LibTorch, in the same body");
  report.add("here.forward_backward.p50_us", here_backward, "us", "and backward() of it");
  report.add("added.forward.p50_us", percentile(calls.forward, 0.5) - here - round_trip, "us",
             "forward less the product and a ping-pong");
  report.add("forward_backward_over_here.p50",
             percentile(calls.forward_backward, 0.5) / here_backward, "1",
             "on the other rank over plain LibTorch on this one");
}

void add_rows(Report& report, const Measured& shared, const Measured& over_mpi) {
  add_calls(report, "", shared.calls, "through shared memory; ",
            "aim: p50 at most 2.5 where both cores are free", "aim: p50 at most 8");
  add_calls(report, "mpi.", over_mpi.calls, "transport = mpi; ",
            "aim: p50 at most 4 where the ping-pong takes 0.4",
            "aim: p50 at most 9 where the ping-pong takes 0.4");
  auto plain = shared.plain;
  plain.insert(plain.end(), over_mpi.plain.begin(), over_mpi.plain.end());
  add_percentiles(report, "mpi_pingpong", plain,
                  std::to_string(kMessageBytes) + " bytes there and back");
  const double round_trip = percentile(plain, 0.5);
  const auto forward = [](const Measured& measured) {
    return percentile(measured.calls.forward, 0.5);
  };
  report.add("forward_over_pingpong.p50", forward(shared) / round_trip, "1", "aim: below 10");
  report.add("forward_backward_over_pingpong.p50",
             percentile(shared.calls.forward_backward, 0.5) / round_trip, "1", "aim: below 22");
  report.add("forward_over_mpi.p50", forward(shared) / forward(over_mpi), "1");
  add_plain(report, shared.calls, round_trip);
  const std::string reference =
      "not of this run: torch.distributed.rpc (TensorPipe) of torch 2.13, another 2-core machine";
  report.add("torch_rpc.forward.p50_us", 480, "us", reference);
  report.add("torch_rpc.forward_backward.p50_us", 1100, "us", reference);
}

void measure(Measured& measured) {
  DistributedModel<Model> model((Model()));
  model.set_partition("", 0);
  model.set_partition("scale", 1);
  Calls calls(model);
  for (int round = 0; round < rounds(kRounds / kSessions); ++round) {
    barrier();
    ping_pong(measured.plain);
    calls.run(measured.calls);
    model.zero_grad();
  }
}

void run(int argc, char** argv) {
  const d2d::MpiSession mpi;
  SMP_REQUIRE(mpi.size() == 2, "perf_remote_call runs on 2 ranks, not on ", mpi.size());
  auto report = report_of_ranks(mpi.rank().value(), "remote_call");
  Measured shared, over_mpi;
  for (int i = 0; i < rounds(kSessions); ++i) {
    in_session(argc, argv, {.intra_op_threads = 1}, [&] { measure(shared); });
    in_session(argc, argv, {.transport = "mpi", .intra_op_threads = 1}, [&] { measure(over_mpi); });
  }
  if (!report) return;
  add_rows(*report, shared, over_mpi);
  report->finish();
}

const Program program{"remote_call", run};

}  // namespace
}  // namespace smp::perf::remote_call
