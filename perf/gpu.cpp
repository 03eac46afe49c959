// perf/gpu.cpp: how long a tensor takes from a GPU to another of the same machine, or between two
// processes of one GPU: over CUDA IPC and through host memory, in turns, beside a copy within the
// GPU. Says so and measures nothing where there is no GPU.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/rank/rank_device.h"
#include "base/check.h"
#include "d2d/channel/channel.h"
#include "d2d/job/job_wires.h"
#include "d2d/job/mpi_session.h"
#include "harness.h"
#include "program.h"

namespace smp::perf::gpu {
namespace {

constexpr int kRounds = 5;  // of each way and size, by turns
constexpr int kTrips = 20;  // there and back, between two looks at the clock

void synchronize(c10::Device device) {
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

/// Tensors there and back: the second rank returns what it gets.
class Way {
 public:
  Way(std::string name, d2d::Routes routes)
      : name_(std::move(name)), channel_(std::move(routes)), peer_(1 - channel_.rank().value()) {
    channel_.set_receiver(d2d::Port::kServer, [this](GlobalRank, d2d::ArrivedFrame&& frame) {
      came_ = std::move(frame.tensors.front());
    });
  }
  const std::string& name() const { return name_; }
  std::string path() const { return channel_.routes().table(); }

  at::Tensor round_trip(const at::Tensor& own, bool first) {
    if (first) channel_.send(peer_, d2d::Port::kServer, {}, {}, own);
    while (!came_.defined()) channel_.poll();
    if (!first) channel_.send(peer_, d2d::Port::kServer, {}, {}, came_);
    return std::exchange(came_, {});
  }
  void drain() {
    while (!channel_.drained()) channel_.poll();
  }

 private:
  const std::string name_;
  d2d::Channel channel_;
  const GlobalRank peer_;
  at::Tensor came_;
};

std::string text_of(std::size_t bytes) {
  if (bytes >= 1 << 20) return std::to_string(bytes >> 20) + "MiB";
  return std::to_string(bytes >> 10) + "KiB";
}

/// Microseconds one way: of kTrips, each of what the GPU has made of the one before, until it is
/// done.
double measure(Way& way, std::size_t size, c10::Device device, bool first) {
  const auto options = at::TensorOptions(at::kFloat).device(device);
  auto own = at::zeros({static_cast<std::int64_t>(size / sizeof(float))}, options);
  const int trips = rounds(kTrips);
  way.round_trip(own, first);
  synchronize(device);
  way.drain();
  MPI_Barrier(MPI_COMM_WORLD);
  const auto duration = microseconds([&] {
    for (int i = 0; i < trips; ++i) own = way.round_trip(first ? own.add_(1) : own, first);
    synchronize(device);
  });
  if (first) {
    SMP_REQUIRE((own == trips).all().item<bool>(), way.name(), ": wrong elements came back");
  }
  way.drain();
  MPI_Barrier(MPI_COMM_WORLD);
  return duration / (2 * trips);
}

/// The same work without a message: an operator, and a copy within the GPU.
double copy_us(std::size_t size, c10::Device device) {
  const auto options = at::TensorOptions(at::kFloat).device(device);
  auto from = at::zeros({static_cast<std::int64_t>(size / sizeof(float))}, options);
  auto to = at::empty_like(from);
  const int copies = 2 * rounds(kTrips);
  to.copy_(from);
  synchronize(device);
  const auto duration = microseconds([&] {
    for (int i = 0; i < copies; ++i) {
      if (i % 2 == 0) from.add_(1);
      to.copy_(from);
    }
    synchronize(device);
  });
  return duration / copies;
}

void compare(std::optional<Report>& report, std::vector<std::unique_ptr<Way>>& ways,
             std::size_t size, c10::Device device, bool first) {
  std::vector<std::vector<double>> samples(ways.size());
  std::vector<double> copies;
  for (int round = 0; round < rounds(kRounds); ++round) {
    for (std::size_t i = 0; i < ways.size(); ++i) {
      samples[i].push_back(measure(*ways[i], size, device, first));
    }
    if (first) copies.push_back(copy_us(size, device));
    MPI_Barrier(MPI_COMM_WORLD);
  }
  if (!report) return;
  const auto text = text_of(size);
  for (std::size_t i = 0; i < ways.size(); ++i) {
    report->add(ways[i]->name() + ".us." + text, median(samples[i]), "us", "one way, median");
  }
  report->add("copy.us." + text, median(copies), "us", "within the GPU, without a message");
  report->add("cuda_ipc_over_host." + text, median(samples[0]) / median(samples[1]), "1");
  report->add("cuda_ipc.rate." + text, static_cast<double>(size) / median(samples[0]) / 1000,
              "GB/s", "one way");
}

void compare_all(const d2d::MpiSession& mpi, c10::Device device) {
  const bool first = mpi.rank() == GlobalRank(0);
  auto report = report_of_ranks(mpi.rank().value(), "gpu");
  std::vector<std::unique_ptr<Way>> ways;
  ways.push_back(std::make_unique<Way>("cuda_ipc", fastest_routes(mpi, {.device = device})));
  ways.push_back(std::make_unique<Way>("host_memory", fastest_routes(mpi, {})));
  if (first) std::printf("%s\n", ways[0]->path().c_str());
  const std::vector<std::size_t> sizes{4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20};
  const std::vector<std::size_t> few{4 << 10, 1 << 20};
  for (const auto size : brief() ? few : sizes) compare(report, ways, size, device, first);
  if (report) report->finish();
}

void run(int argc, char** argv) {
  CLI::App app("Tensors from GPU to GPU: CUDA IPC beside host memory", "smp perf gpu");
  if (!parse_options(app, argc, argv)) return;
  const d2d::MpiSession mpi;
  SMP_REQUIRE(mpi.size() == 2, "perf gpu runs on 2 ranks, not on ", mpi.size());
  if (!at::hasCUDA() ||
      at::globalContext().getAcceleratorHooksInterface(at::kCUDA).deviceCount() == 0) {
    if (mpi.rank() == GlobalRank(0))
      std::printf("no GPU that LibTorch can use: nothing to measure\n");
    return;
  }
  compare_all(mpi, take_device("cuda", mpi.local_rank()));
}

const Program program{"gpu", run};

}  // namespace
}  // namespace smp::perf::gpu
