// Ranks of one process whose collectives take random times, and numbers for them to sum.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "d2d/collectives/communicator.h"
#include "d2d/wires/local/local_wire.h"
#include "fiber/scheduler.h"
#include "fiber/sim_clock.h"

namespace smp::d2d {

inline constexpr fiber::WaitReason kForTheTest{"the test", "", -1, -1};

inline Members members(const std::vector<int>& numbers) {
  std::vector<GlobalRank> ranks;
  for (const int number : numbers) ranks.emplace_back(number);
  return Members(ranks);
}

/// Ranks as fibers of this thread, in simulated time.
class SimulatedJob {
 public:
  explicit SimulatedJob(int ranks, std::uint64_t seed = 1)
      : clock_(seed), hub_(std::make_shared<LocalHub>(ranks, LocalOptions{.clock = &clock_})) {
    scheduler_.set_simulation(&clock_);
    for (int rank = 0; rank < ranks; ++rank) {
      channels_.push_back(
          std::make_unique<Channel>(std::make_unique<LocalWire>(hub_, GlobalRank(rank))));
      channels_.back()->set_failure_handler([this](const std::string& what) {
        failures.push_back(what);
        for (auto& rank : ranks_) rank->abort(what);
      });
      ranks_.push_back(std::make_unique<Communicators>(*channels_.back()));
      polls_.push_back(scheduler_.add_poll([this, rank] { return channel(rank).poll(); }));
    }
  }
  ~SimulatedJob() {
    drain();
    scheduler_.set_simulation(nullptr);
  }

  Communicators& rank(int number) { return *ranks_[static_cast<std::size_t>(number)]; }
  Channel& channel(int number) { return *channels_[static_cast<std::size_t>(number)]; }
  LocalHub& hub() { return *hub_; }

  /// Runs each of the fibers and returns when all are done.
  void run(const std::vector<std::function<void()>>& fibers) {
    std::size_t left = fibers.size();
    fiber::Event done;
    for (const auto& body : fibers) {
      scheduler_.spawn(
          [&] {
            body();
            if (--left == 0) done.signal();
          },
          {}, 1 << 20);
    }
    done.wait(kForTheTest);
  }
  /// Runs `main` on each of `numbers`.
  void on_ranks(const std::vector<int>& numbers,
                const std::function<void(int, Communicators&)>& main) {
    std::vector<std::function<void()>> fibers;
    for (const int number : numbers) {
      fibers.push_back([this, number, &main] { main(number, rank(number)); });
    }
    run(fibers);
  }
  /// Lets everything arrive.
  void drain() {
    do {
      scheduler_.poll_all();
    } while (clock_.advance());
    scheduler_.poll_all();
  }

  std::vector<std::string> failures;

 private:
  fiber::Scheduler& scheduler_ = fiber::Scheduler::install();
  fiber::SimClock clock_;
  std::shared_ptr<LocalHub> hub_;
  std::vector<std::unique_ptr<Channel>> channels_;
  std::vector<std::unique_ptr<Communicators>> ranks_;
  std::vector<std::shared_ptr<void>> polls_;
};

inline Payload text(const std::string& bytes) { return {bytes, {}}; }

/// What a rank contributes: numbers whose sum depends on the order.
inline at::Tensor contribution(int rank, at::IntArrayRef sizes,
                               c10::ScalarType dtype = at::kFloat) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  const at::Tensor numbers = at::arange(count, at::kDouble) * 0.37 + rank * 13.7;
  return (at::sin(numbers) * at::exp(at::cos(numbers * 1.3) * 8)).to(dtype).reshape(sizes);
}

inline at::Tensor sum_in_order(const std::vector<int>& group, at::IntArrayRef sizes,
                               c10::ScalarType dtype = at::kFloat) {
  const auto wide = c10::isReducedFloatingType(dtype) ? at::kFloat : dtype;  // rounded once
  at::Tensor sum = contribution(group[0], sizes, dtype).to(wide);
  for (std::size_t i = 1; i < group.size(); ++i) sum += contribution(group[i], sizes, dtype);
  return sum.to(dtype);
}

inline const std::vector<std::vector<int>> kGroups{
    {3, 0, 2}, {1, 0}, {0, 1, 2, 3}, {2, 3, 1, 0}, {1}};

}  // namespace smp::d2d
