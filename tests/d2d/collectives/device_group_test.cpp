// Collectives that played devices do: results as by messages, one order of launches whatever order
// lanes come in, and how they end where a member fails, leaves or calls something else.
#include "d2d/collectives/device_group.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "d2d/collectives/played_devices.h"
#include "d2d/wire/simulated_job.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace device_group_test {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

const std::vector<std::vector<int>> kSeveral{{3, 0, 2}, {1, 0}, {0, 1, 2, 3}, {2, 3, 1, 0}};

/// Devices want to be asked again while nothing else happens.
std::function<void()> until(const bool& over) {
  return [&over] {
    while (!over) fiber::Scheduler::instance().sleep_for(1'000, kForTheTest);
  };
}

void connect(SimulatedJob& job, const std::vector<int>& group, PlayedDevices& devices) {
  job.on_ranks(group, [&](int, Communicators& own) {
    own.use_devices(own.group(members(group)), devices.end(), at::kCPU, /*required=*/true);
  });
}

/// Runs each of `fibers`, and polls until all are done.
void run_all(SimulatedJob& job, const std::vector<std::function<void()>>& fibers) {
  std::size_t left = fibers.size();
  bool over = fibers.empty();
  std::vector<std::function<void()>> all;
  for (const auto& fiber : fibers) {
    all.push_back([&, fiber] {
      fiber();
      over = --left == 0;
    });
  }
  all.push_back(until(over));
  job.run(all);
}

// ---- results ----

at::Tensor one_call(const Communicator& ranks, std::uint64_t kind, const at::Tensor& tensor) {
  if (kind == 0) return ranks.all_reduce(tensor);
  if (kind == 1) return ranks.reduce_scatter(tensor);
  if (kind == 2) return ranks.all_gather(tensor);
  return ranks.all_to_all(tensor);
}

constexpr std::uint64_t kLanes = 5;
constexpr int kCalls = 6;

/// What a lane's fiber does on one rank: the same calls on all, at other times.
void run_lane(const Communicator& ranks, std::uint64_t lane, std::uint64_t seed, int rank,
              std::vector<at::Tensor>& results) {
  std::mt19937_64 program(seed * 31 + lane);
  std::mt19937_64 pauses(seed * 1009 + lane * 17 + static_cast<std::uint64_t>(rank));
  for (int call = 0; call < kCalls; ++call) {
    const auto kind = program() % 4;
    const auto width = static_cast<std::int64_t>(program() % 700 + 1);
    const auto dtype = program() % 5 == 0 ? at::kShort : program() % 2 ? at::kFloat : at::kDouble;
    fiber::Scheduler::instance().sleep_for(pauses() % 30'000, kForTheTest);
    results.push_back(one_call(ranks.lane(lane), kind,
                               contribution(rank + call, {2 * ranks.size(), width}, dtype)));
  }
}

/// By rank and lane.
std::vector<at::Tensor> run_program(const std::vector<int>& group, std::uint64_t seed,
                                    PlayedDevices* devices) {
  SimulatedJob job(4, seed);
  if (devices != nullptr) connect(job, group, *devices);
  std::vector<std::vector<at::Tensor>> results(group.size() * kLanes);
  std::vector<std::function<void()>> fibers;
  for (std::size_t i = 0; i < group.size(); ++i) {
    for (std::uint64_t lane = 0; lane < kLanes; ++lane) {
      fibers.push_back([&, i, lane] {
        const auto ranks = job.rank(group[i]).group(members(group));
        run_lane(ranks, lane, seed, group[i], results[i * kLanes + lane]);
      });
    }
  }
  run_all(job, fibers);
  if (devices != nullptr) devices->finish();
  EXPECT_THAT(job.failures, testing::IsEmpty());
  std::vector<at::Tensor> all;
  for (auto& lane : results) all.insert(all.end(), lane.begin(), lane.end());
  return all;
}

TEST(DeviceGroup, GivesWhatMessagesGiveInOneOrderOfLaunches) {
  std::size_t done = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto& group = kSeveral[seed % kSeveral.size()];
    const auto devices = PlayedDevices::make(seed);
    const auto results = run_program(group, seed, devices.get());
    const auto expected = run_program(group, seed, nullptr);
    ASSERT_EQ(results.size(), group.size() * kLanes * kCalls);
    for (std::size_t i = 0; i < results.size(); ++i) {
      ASSERT_TRUE(at::equal(results[i], expected[i])) << "seed " << seed << ", call " << i;
    }
    EXPECT_EQ(devices->disorders, 0) << "seed " << seed;
    EXPECT_TRUE(devices->even());
    EXPECT_EQ(devices->closed, static_cast<int>(group.size()));
    EXPECT_EQ(devices->aborted, 0);
    done += devices->done();
  }
  EXPECT_GT(done, 60U * kLanes * kCalls / 2) << "most are on types of elements that devices take";
}

TEST(DeviceGroup, LaunchesWhatIsThereWhileAnotherLaneWaitsForAMember) {
  SimulatedJob job(2);
  const auto devices = PlayedDevices::make();
  connect(job, {0, 1}, *devices);
  std::vector<std::string> order;
  const auto call = [&](int rank, std::uint64_t lane, base::Nanoseconds pause) {
    return [&, rank, lane, pause] {
      fiber::Scheduler::instance().sleep_for(pause, kForTheTest);
      job.rank(rank).all().lane(lane).all_reduce(at::ones({9}));
      if (rank == 0) order.push_back(std::to_string(lane));
    };
  };
  run_all(job, {call(0, 1, 0), call(1, 1, base::kSecond), call(0, 2, base::kMillisecond),
                call(1, 2, 0)});
  EXPECT_THAT(order, testing::ElementsAre("2", "1"));
}

TEST(DeviceGroup, LeavesTensorsToMessagesThatDevicesDoNotTake) {
  SimulatedJob job(2);
  const auto devices = PlayedDevices::make();
  connect(job, {0, 1}, *devices);
  job.on_ranks({0, 1}, [&](int rank, Communicators& own) {
    EXPECT_TRUE(at::equal(own.all().all_reduce(at::full({3}, rank + 1, at::kShort)),
                          at::full({3}, 3, at::kShort)));
    EXPECT_EQ(own.all().all_gather(at::ones({0, 3})).size(0), 0);
  });
  EXPECT_EQ(devices->done(), 0U);
}

// ---- connecting ----

/// What each member is told.
std::vector<std::string> told(const std::vector<MakeDeviceCollectives>& ends, bool required) {
  SimulatedJob job(static_cast<int>(ends.size()));
  std::vector<std::string> texts(ends.size());
  std::vector<std::function<void()>> fibers;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    fibers.push_back([&, i] {
      auto& own = job.rank(static_cast<int>(i));
      const auto answer = refusal<UnsupportedError>(
          [&] { texts[i] = own.use_devices(own.all(), ends[i], at::kCPU, required); });
      if (answer != "accepted") texts[i] = answer;
      if (!required) {
        const auto sum = own.all().all_reduce(at::ones({3}));
        EXPECT_TRUE(at::equal(sum, at::full({3}, static_cast<double>(ends.size()))));
      }
    });
  }
  job.run(fibers);
  return texts;
}

TEST(DeviceGroup, GoesOnByMessagesWhereDevicesCannotBeConnectedOnAllMembersAlike) {
  const auto devices = PlayedDevices::make();
  const auto end = [&](const char* name) { return devices->end(name); };
  const MakeDeviceCollectives broken = [](c10::Device) -> std::unique_ptr<DeviceCollectives> {
    throw PeerLostError("loading it failed");
  };
  for (const bool required : {false, true}) {
    EXPECT_THAT(told({end("a"), end("b"), end("a")}, required),
                Each(HasSubstr("ranks 0 and 2 are on one device")));
    EXPECT_THAT(told({end("a"), broken}, required), Each(HasSubstr("rank 1: loading it failed")));
    EXPECT_THAT(told({nullptr, end("a")}, required),
                Each(AllOf(HasSubstr("rank 0: it computes on cpu"), HasSubstr("NCCL is CUDA's"))));
    devices->refused_id = "no id";
    EXPECT_THAT(told({end("a"), end("b")}, required), Each(HasSubstr("rank 0: no id")));
    devices->refused_id.clear();
    devices->refused_connect = "no way";
    EXPECT_THAT(told({end("a"), end("b")}, required),
                Each(AllOf(HasSubstr("rank 1: no way"), Not(HasSubstr("took more than")))))
        << "nobody waits for it";
    devices->refused_connect.clear();
  }
  EXPECT_EQ(devices->done(), 0U);
  EXPECT_EQ(told({devices->end(), devices->end()}, true), std::vector<std::string>(2));
}

// ---- disagreement and ends of waits ----

TEST(DeviceGroup, NamesBothCallsWhenMembersDisagreeAndGoesOn) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SimulatedJob job(3, seed);
    const auto devices = PlayedDevices::make(seed);
    connect(job, {0, 1, 2}, *devices);
    std::vector<std::function<void()>> fibers;
    for (int rank = 0; rank < 3; ++rank) {
      fibers.push_back([&, rank] {
        const auto all = job.rank(rank).all();
        const auto odd = seed % 3 == static_cast<std::uint64_t>(rank);
        const auto dtype = odd && seed % 2 == 0 ? at::kShort : at::kFloat;
        const auto answer = refusal([&] {
          all.lane(1).all_reduce(odd && seed % 2 == 1 ? at::ones({3, 2}) : at::ones({2, 3}, dtype));
        });
        EXPECT_THAT(answer, AllOf(HasSubstr("an all_reduce of Float [2, 3] by the devices"),
                                  HasSubstr("an all_reduce of "), HasSubstr("of lane 1")));
        EXPECT_EQ(all.lane(2).all_reduce(at::ones({2})).numel(), 2);
      });
    }
    run_all(job, fibers);
    EXPECT_EQ(devices->disorders, 0);
    devices->finish();
    EXPECT_EQ(devices->done(), 1U) << "that of the other lane";
  }
}

TEST(DeviceGroup, APeerThatLeftEndsTheWait) {
  SimulatedJob job(3);
  const auto devices = PlayedDevices::make();
  connect(job, {0, 1, 2}, *devices);
  std::vector<std::function<void()>> fibers;
  for (int rank = 0; rank < 3; ++rank) {
    fibers.push_back([&, rank] {
      auto& own = job.rank(rank);
      own.all().all_reduce(at::ones({9'000}));
      if (rank == 2) return own.announce_leaving("left");
      for (std::uint64_t kind = 0; kind < 4; ++kind) {
        EXPECT_THAT(refusal<PeerLostError>([&] { one_call(own.all(), kind, at::ones({9'000})); }),
                    HasSubstr("rank 2, but rank 2 left"));
      }
    });
  }
  run_all(job, fibers);
  EXPECT_THAT(job.failures, testing::IsEmpty());
  EXPECT_TRUE(devices->even());
}

TEST(DeviceGroup, AbortEndsEveryWaitAndWhatDevicesDo) {
  SimulatedJob job(3);
  const auto devices = PlayedDevices::make();
  connect(job, {0, 1, 2}, *devices);
  std::vector<std::function<void()>> fibers;
  for (int rank = 0; rank < 2; ++rank) {
    fibers.push_back([&job, rank] {
      const Communicator all = job.rank(rank).all().lane(4);
      for (int i = 0; i < 2; ++i) {
        EXPECT_THAT(refusal<PeerLostError>([&] { all.all_reduce(at::ones({9})); }),
                    AllOf(HasSubstr("rank " + std::to_string(rank)), HasSubstr("{0, 1, 2}"),
                          HasSubstr("nothing happened for 600 s")));
      }
    });
  }
  fibers.push_back([&] {
    fiber::Scheduler::instance().sleep_for(base::kMillisecond, kForTheTest);
    const auto waits = fiber::Scheduler::instance().waiting_report();
    EXPECT_THAT(waits, testing::Contains(AllOf(HasSubstr("an all_reduce"), HasSubstr("rank 2"),
                                               HasSubstr("{0, 1, 2}"))));
    for (int rank = 0; rank < 3; ++rank) job.rank(rank).abort("nothing happened for 600 s");
    EXPECT_EQ(devices->aborted, 3);
  });
  run_all(job, fibers);
}

TEST(DeviceGroup, ADeviceThatFailsEndsTheRanksWaits) {
  for (const int position : {0, 1}) {
    SimulatedJob job(2);
    const auto devices = PlayedDevices::make();
    devices->failing_launch = 2;
    devices->failing_position = position;
    connect(job, {0, 1}, *devices);
    int failed = 0;
    std::vector<std::function<void()>> fibers;
    for (int rank = 0; rank < 2; ++rank) {
      fibers.push_back([&, rank] {
        for (int call = 0; call < 6; ++call) {
          try {
            job.rank(rank).all().all_reduce(at::ones({9}));
          } catch (const PeerLostError& error) {
            ++failed;
            EXPECT_THAT(error.what(), HasSubstr("the played device is broken"));
            return;
          }
        }
      });
    }
    run_all(job, fibers);
    EXPECT_EQ(failed, 2);
    EXPECT_THAT(job.failures,
                testing::ElementsAre(AllOf(HasSubstr("rank " + std::to_string(position)),
                                           HasSubstr("ranks {0, 1} cannot go on"))));
    EXPECT_EQ(devices->aborted, 2);
  }
}

// ---- epochs ----

/// A step: some lanes, until one member says that it failed, at a random time.
void run_epoch(SimulatedJob& job, std::uint64_t epoch, std::uint64_t seed, bool fails,
               std::size_t& finished) {
  const std::vector<int> group{2, 0, 1};
  std::mt19937_64 random(seed * 101 + epoch);
  const int culprit = static_cast<int>(random() % 3);
  const auto when = random() % 60'000;
  std::vector<std::function<void()>> fibers;
  for (const int rank : group) {
    for (std::uint64_t lane = 0; lane < kLanes; ++lane) {
      const auto pause = random() % 50'000;
      fibers.push_back([&, rank, lane, pause] {
        fiber::Scheduler::instance().sleep_for(pause, kForTheTest);
        const auto ranks = job.rank(rank).group(members(group)).lane(lane, epoch);
        try {
          ranks.all_reduce(contribution(rank, {static_cast<std::int64_t>(lane) + 1}));
          ++finished;
        } catch (const PeerLostError& error) {
          EXPECT_TRUE(fails) << error.what();
        }
      });
    }
  }
  if (fails) {
    fibers.push_back([&] {
      fiber::Scheduler::instance().sleep_for(when, kForTheTest);
      job.rank(culprit).fail_epoch(epoch, members(group), "it is ill");
    });
  }
  run_all(job, fibers);
  for (const int rank : group) job.rank(rank).end_epoch(epoch);
}

TEST(DeviceGroup, GoesOnAfterAnEpochThatFailedWithTheSameLaunchesEverywhere) {
  std::size_t failed = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SimulatedJob job(3, seed);
    const auto devices = PlayedDevices::make(seed);
    connect(job, {2, 0, 1}, *devices);
    for (std::uint64_t epoch = 1; epoch < 5; ++epoch) {
      std::size_t finished = 0;
      run_epoch(job, epoch, seed, epoch % 2 == 1, finished);
      failed += 3 * kLanes - finished;
      if (epoch % 2 == 0) {
        EXPECT_EQ(finished, 3 * kLanes);
      }
    }
    job.drain();
    ASSERT_TRUE(devices->even()) << "seed " << seed;
    ASSERT_EQ(devices->disorders, 0) << "seed " << seed;
    ASSERT_THAT(job.failures, testing::IsEmpty());
  }
  EXPECT_GT(failed, 500U);
}

/// What others have launched with it is to end.
TEST(DeviceGroup, IsClosedInGoodOrderWhereAnExceptionUnwindsARank) {
  const auto devices = PlayedDevices::make();
  EXPECT_THROW(
      {
        SimulatedJob job(2);
        connect(job, {0, 1}, *devices);
        throw UsageError("of the program");
      },
      UsageError);
  EXPECT_EQ(devices->closed, 2);
  EXPECT_EQ(devices->aborted, 0);
}

/// It has time for what it launched; then nothing of it comes any more.
TEST(DeviceGroup, EndsSomeTimeAfterAMemberHasLeft) {
  SimulatedJob job(3);
  const auto devices = PlayedDevices::make();
  connect(job, {0, 1, 2}, *devices);
  job.rank(1).announce_leaving("left after step 3");
  const auto wait = [&](base::Nanoseconds time) {
    job.run({[time] { fiber::Scheduler::instance().sleep_for(time, kForTheTest); }});
  };
  wait(base::kSecond);
  EXPECT_EQ(devices->aborted, 0);
  for (int i = 0; i < 10; ++i) wait(base::kSecond);
  EXPECT_EQ(devices->aborted, 2) << "of those that are left";
}

}  // namespace device_group_test
}  // namespace smp::d2d
