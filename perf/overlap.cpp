// perf/overlap.cpp: how much of a tensor's way between machines is hidden behind what its receiver
// computes meanwhile, with and without a progress thread.
#include <ATen/ATen.h>
#include <mpi.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "d2d/channel/channel.h"
#include "d2d/job/job_wires.h"
#include "d2d/job/mpi_session.h"
#include "harness.h"
#include "program.h"

namespace smp::perf::overlap {
namespace {

using Network = d2d::Network;

constexpr int kBlocks = 5;                 // with and without a thread, by turns
constexpr int kRounds = 5;                 // of a block, after one that is not counted
constexpr std::int64_t kFloats = 4 << 20;  // 16 MiB

/// A tensor goes from rank 0 to rank 1 over a network, though both are on one machine.
class Way {
 public:
  Way(const d2d::MpiSession& mpi, Network network, bool progress_thread)
      : channel_(fastest_routes(mpi, {.shared_memory = false, .network = network})) {
    channel_.set_receiver(d2d::Port::kServer, [this](GlobalRank, d2d::ArrivedFrame&& frame) {
      came_ = std::move(frame.tensors.front());
    });
    if (progress_thread) channel_.move_beside_rank();
  }
  ~Way() {
    if (!channel_.close(60 * base::kSecond)) std::abort();
  }

  /// Rank 0; until it has left. It gives way, as a rank does that waits for long.
  void send(const at::Tensor& tensor) {
    channel_.send(GlobalRank(1), d2d::Port::kServer, {}, {}, tensor);
    for (int idle = 0; !channel_.drained(); ++idle) {
      if (channel_.poll()) idle = 0;
      d2d::wait_politely(idle);
    }
    channel_.poll();
  }
  /// Rank 1; until it is here.
  at::Tensor receive() {
    for (int idle = 0; !came_.defined(); ++idle) {
      if (channel_.poll()) idle = 0;
      d2d::wait_politely(idle);
    }
    return std::exchange(came_, {});
  }

 private:
  d2d::Channel channel_;
  at::Tensor came_;
};

struct Samples {
  std::vector<double> computing, waiting;  // of rank 1, in microseconds
};

/// Rank 1 computes as long as it takes to multiply a few matrices, then looks for the tensor.
void exchange(Way& way, int rank, int multiplications, Samples* samples) {
  const auto tensor = rank == 0 ? at::rand({kFloats}) : at::Tensor();
  const auto a = at::rand({384, 384});
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) return way.send(tensor);
  auto product = a;
  const auto computing = microseconds([&] {
    for (int i = 0; i < multiplications; ++i) product = at::mm(a, a);
  });
  at::Tensor came;
  const auto waiting = microseconds([&] { came = way.receive(); });
  SMP_REQUIRE(came.numel() == kFloats, came.numel(), " elements came");
  if (samples == nullptr) return;
  samples->computing.push_back(computing);
  samples->waiting.push_back(waiting);
}

void add_rows(Report& report, const std::string& network, const Samples& idle, const Samples& alone,
              const Samples& beside) {
  const auto prefix = network + ".";
  const auto transfer = median(idle.waiting);
  report.add(prefix + "transfer.us", transfer, "us", "16 MiB, of a receiver that only waits");
  const auto add = [&](const std::string& name, const Samples& samples) {
    report.add(prefix + name + ".waiting.us", median(samples.waiting), "us",
               "after computing for about two transfers, beside the sender's core");
    report.add(prefix + name + ".hidden", 1 - median(samples.waiting) / transfer, "1",
               "of the transfer");
  };
  add("without_thread", alone);
  add("with_thread", beside);
  std::vector<double> ratios;
  for (std::size_t i = 0; i < alone.computing.size(); ++i) {
    ratios.push_back((beside.computing[i] + beside.waiting[i]) /
                     (alone.computing[i] + alone.waiting[i]));
  }
  report.add_samples(prefix + "with_thread_over_without", ratios, "1",
                     "computing and waiting together");
}

/// What takes rank 1 about as long as two transfers.
int multiplications_for(const Samples& idle) {
  const auto a = at::rand({384, 384});
  const auto one = microseconds_each(20, [&] { at::mm(a, a); });
  return static_cast<int>(2 * median(idle.waiting) / one) + 1;
}

/// The other way does not exist meanwhile, nor its threads.
void add_block(const d2d::MpiSession& mpi, Network network, bool progress_thread,
               int multiplications, Samples& samples) {
  Way way(mpi, network, progress_thread);
  for (int round = -1; round < rounds(kRounds); ++round) {
    exchange(way, mpi.rank().value(), multiplications, round < 0 ? nullptr : &samples);
  }
}

void measure(std::optional<Report>& report, const d2d::MpiSession& mpi, const std::string& name,
             Network network) {
  Samples idle, alone, beside;
  add_block(mpi, network, /*progress_thread=*/false, 0, idle);
  const int multiplications = mpi.rank().value() == 1 ? multiplications_for(idle) : 0;
  for (int block = 0; block < rounds(kBlocks); ++block) {
    add_block(mpi, network, /*progress_thread=*/false, multiplications, alone);
    add_block(mpi, network, /*progress_thread=*/true, multiplications, beside);
  }
  if (report) add_rows(*report, name, idle, alone, beside);
}

void run(int /*argc*/, char** /*argv*/) {
  const d2d::MpiSession mpi;
  SMP_REQUIRE(mpi.size() == 2, "perf overlap runs on 2 ranks, not on ", mpi.size());
  at::set_num_threads(1);
  // Rank 1 is the one that measures.
  auto report = report_of_ranks(1 - mpi.rank().value(), "overlap");
  measure(report, mpi, "ucx", Network::kUcx);
  measure(report, mpi, "ofi", Network::kOfi);
  if (report) report->finish();
}

const Program program{"overlap", run};

}  // namespace
}  // namespace smp::perf::overlap
