// Sums between processes, which read each other's memory while it is being changed.
#include "d2d/collectives/sum_in_place.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <chrono>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "d2d/job/job_wires.h"
#include "d2d/job/shared_mpi_session.h"
#include "d2d/wire/simulated_job.h"
#include "fiber/scheduler.h"

namespace smp::d2d {
namespace sum_in_place_mpi_test {

std::vector<int> all_ranks() {
  std::vector<int> ranks;
  for (int rank = 0; rank < shared_mpi_session().size(); ++rank) ranks.push_back(rank);
  return ranks;
}

/// Sums many buckets, three under way at a time, and overwrites each as soon as it is finished.
/// Some ranks are slow, so that others read late.
void expect_right_sums(Routes routes) {
  auto& scheduler = fiber::Scheduler::install();
  Channel channel(std::move(routes));
  Communicators own(channel);
  std::string failure;
  channel.set_failure_handler([&](const std::string& what) { own.abort(failure = what); });
  const auto poll = scheduler.add_poll([&] { return channel.poll(); });
  fiber::IdlePolicy policy;
  policy.oversubscribed = true;
  scheduler.set_idle_policy(policy);

  const int rank = own.rank().value();
  const std::vector<std::int64_t> sizes{40'000};
  const auto expected = sum_in_order(all_ranks(), sizes).div_(2);
  std::deque<SumInPlace> under_way;
  std::deque<at::Tensor> tensors;
  const auto finish_first = [&] {
    under_way.front().finish();
    EXPECT_TRUE(at::equal(tensors.front(), expected));
    tensors.front().zero_();
    under_way.pop_front();
    tensors.pop_front();
  };
  for (int bucket = 0; bucket < 100; ++bucket) {
    tensors.push_back(contribution(rank, sizes));
    under_way.emplace_back(own.all(), std::vector{tensors.back()}, 2);
    if (bucket % own.all().size() == rank) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    under_way.back().add();
    if (under_way.size() == 3) finish_first();
  }
  while (!under_way.empty()) finish_first();
  EXPECT_TRUE(channel.close(60 * base::kSecond));
  EXPECT_EQ(failure, "");
}

TEST(SumInPlaceMpi, IsRightThoughTensorsAreChangedAtOnce) {
  expect_right_sums(fastest_routes(shared_mpi_session()));
}

TEST(SumInPlaceMpi, IsRightOverMpiToo) { expect_right_sums(shared_mpi_session().connect_all()); }

}  // namespace sum_in_place_mpi_test
}  // namespace smp::d2d
