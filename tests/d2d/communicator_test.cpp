// Collectives between ranks of one process, whose messages take random times: results, bits,
// numbers of messages, lanes and groups beside each other, disagreement, and how waits end.
#include "d2d/communicator.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "d2d/wires/local_wire.h"
#include "fiber/scheduler.h"
#include "fiber/sim_clock.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr fiber::WaitReason kForTheTest{"the test", "", -1, -1};

Members members(const std::vector<int>& numbers) {
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

Payload text(const std::string& bytes) { return {bytes, {}}; }

// What a rank contributes: numbers whose sum depends on the order.
at::Tensor contribution(int rank, at::IntArrayRef sizes, c10::ScalarType dtype = at::kFloat) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  const at::Tensor numbers = at::arange(count, at::kDouble) * 0.37 + rank * 13.7;
  return (at::sin(numbers) * at::exp(at::cos(numbers * 1.3) * 8)).to(dtype).reshape(sizes);
}

at::Tensor sum_in_order(const std::vector<int>& group, at::IntArrayRef sizes,
                        c10::ScalarType dtype = at::kFloat) {
  at::Tensor sum = contribution(group[0], sizes, dtype);
  for (std::size_t i = 1; i < group.size(); ++i) sum += contribution(group[i], sizes, dtype);
  return sum;
}

const std::vector<std::vector<int>> kGroups{{3, 0, 2}, {1, 0}, {0, 1, 2, 3}, {2, 3, 1, 0}, {1}};

TEST(Communicator, GatherGivesEveryonesPayloadInOrderOfMembers) {
  for (const auto& group : kGroups) {
    SimulatedJob job(4);
    job.on_ranks(group, [&](int rank, Communicators& own) {
      const Communicator all = own.group(members(group));
      for (int round = 0; round < 5; ++round) {
        const auto payloads =
            all.all_gather({std::to_string(10 * round + rank), {at::full({2000}, rank)}}, "a test");
        ASSERT_EQ(payloads.size(), group.size());
        for (std::size_t i = 0; i < group.size(); ++i) {
          EXPECT_EQ(payloads[i].bytes, std::to_string(10 * round + group[i]));
          EXPECT_EQ(payloads[i].tensors.at(0).sum().item<float>(), 2000 * group[i]);
        }
      }
    });
  }
}

TEST(Communicator, NumbersItsMembersByPosition) {
  SimulatedJob job(4);
  const Communicator group = job.rank(0).group(members({3, 0, 2}));
  EXPECT_EQ(group.rank(), 1);
  EXPECT_EQ(group.size(), 3);
  EXPECT_EQ(group.members(), members({3, 0, 2}));
  EXPECT_EQ(job.rank(2).all().members(), Members::all(4));
}

TEST(Communicator, BroadcastGivesTheRootsPayload) {
  SimulatedJob job(4);
  job.on_ranks({3, 0, 2}, [&](int rank, Communicators& own) {
    const Communicator group = own.group(members({3, 0, 2}));
    for (const int root : {0, 2, 3}) {
      const Payload payload =
          group.broadcast({std::to_string(rank), {at::full({5000}, rank)}}, GlobalRank(root));
      EXPECT_EQ(payload.bytes, std::to_string(root));
      EXPECT_EQ(payload.tensors.at(0)[4999].item<float>(), root);
    }
    EXPECT_THAT(refusal([&] { group.broadcast({}, GlobalRank(1)); }),
                AllOf(HasSubstr("rank 1"), HasSubstr("{3, 0, 2}")));
  });
}

TEST(Communicator, BarrierWaitsForTheLastMember) {
  SimulatedJob job(3);
  int came = 0;
  job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
    fiber::Scheduler::instance().sleep_for(rank * 10'000, kForTheTest);
    ++came;
    own.all().barrier();
    EXPECT_EQ(came, 3);
  });
}

TEST(Communicator, GroupsDoNotMix) {
  SimulatedJob job(3);
  job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
    if (rank == 0) {
      own.group(members({0, 1})).broadcast(text("pair"), GlobalRank(0));
      own.group(members({1, 0})).broadcast(text("other pair"), GlobalRank(0));
    } else if (rank == 1) {
      EXPECT_EQ(own.group(members({1, 0})).broadcast({}, GlobalRank(0)).bytes, "other pair");
      EXPECT_EQ(own.group(members({0, 1})).broadcast({}, GlobalRank(0)).bytes, "pair");
    }
    EXPECT_EQ(own.all().broadcast(text(rank == 0 ? "all" : ""), GlobalRank(0)).bytes, "all");
  });
}

// ---- tensors ----

TEST(Communicator, ReducesInOrderOfMembersToTheSameBits) {
  const std::vector<std::vector<std::int64_t>> shapes{{},     {0},    {1},         {7},
                                                      {4, 6}, {1025}, {31, 57, 3}, {2, 0, 3}};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto& group = kGroups[seed % kGroups.size()];
    SimulatedJob job(4, seed);
    job.on_ranks(group, [&](int rank, Communicators& own) {
      const Communicator all = own.group(members(group));
      for (const auto& shape : shapes) {
        const at::Tensor reduced = all.all_reduce(contribution(rank, shape));
        EXPECT_TRUE(at::equal(reduced, sum_in_order(group, shape))) << reduced.sizes();
        EXPECT_EQ(reduced.sizes(), at::IntArrayRef(shape));
      }
    });
  }
}

TEST(Communicator, ReducesEveryTypeThatCanBeSummed) {
  SimulatedJob job(3);
  job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
                             at::kComplexFloat}) {
      for (const std::int64_t size : {5, 5000}) {
        const at::Tensor reduced = own.all().all_reduce(contribution(rank, {size}, dtype));
        EXPECT_EQ(reduced.scalar_type(), dtype);
        EXPECT_TRUE(at::equal(reduced, sum_in_order({0, 1, 2}, {size}, dtype))) << dtype;
      }
    }
    EXPECT_THROW(own.all().all_reduce(at::ones({2}, at::kBool)), UnsupportedError);
    EXPECT_THROW(own.all().all_reduce(at::Tensor()), UsageError);
  });
}

TEST(Communicator, ReduceScatterGivesEachMemberItsPart) {
  for (const auto& group : kGroups) {
    SimulatedJob job(4, 5);
    job.on_ranks(group, [&](int rank, Communicators& own) {
      const Communicator all = own.group(members(group));
      for (const std::int64_t width : {3, 700}) {
        const std::vector<std::int64_t> shape{2 * all.size(), width};
        const at::Tensor part = all.reduce_scatter(contribution(rank, shape));
        const at::Tensor expected = sum_in_order(group, shape).narrow(0, 2 * all.rank(), 2);
        EXPECT_TRUE(at::equal(part, expected));
        EXPECT_TRUE(part.is_contiguous());
      }
    });
  }
}

TEST(Communicator, GathersTensorsAlongTheFirstDimension) {
  for (const auto& group : kGroups) {
    SimulatedJob job(4, 6);
    job.on_ranks(group, [&](int rank, Communicators& own) {
      for (const std::int64_t width : {1, 3000}) {
        std::vector<at::Tensor> parts;
        for (const int member : group) parts.push_back(contribution(member, {2, width}));
        const at::Tensor joined =
            own.group(members(group)).all_gather(contribution(rank, {2, width}));
        EXPECT_TRUE(at::equal(joined, at::cat(parts)));
      }
    });
  }
}

TEST(Communicator, TakesStridedTensorsAndOnesWithHistory) {
  SimulatedJob job(2);
  job.on_ranks({0, 1}, [&](int, Communicators& own) {
    const at::Tensor leaf = at::arange(6'000, at::kFloat).reshape({60, 100}).requires_grad_();
    const at::Tensor strided = (leaf * 1).t();
    const at::Tensor reduced = own.all().all_reduce(strided);
    EXPECT_FALSE(reduced.requires_grad());
    EXPECT_TRUE(at::equal(reduced, strided * 2));
    EXPECT_TRUE(at::equal(own.all().reduce_scatter(strided),
                          (strided * 2).narrow(0, 50 * own.all().rank(), 50)));
    EXPECT_TRUE(at::equal(own.all().all_gather(strided), at::cat({strided, strided})));
  });
}

TEST(Communicator, GivesNormalTensorsUnderInferenceMode) {
  SimulatedJob job(2);
  job.on_ranks({0, 1}, [&](int, Communicators& own) {
    const at::Tensor outside = at::ones({4000});
    const c10::InferenceMode inference;
    for (const at::Tensor& tensor : {outside, at::ones({4000}), at::ones({4})}) {
      EXPECT_FALSE(own.all().all_reduce(tensor).is_inference());
      EXPECT_FALSE(own.all().reduce_scatter(tensor).is_inference());
      EXPECT_FALSE(own.all().all_gather(tensor).is_inference());
    }
  });
}

TEST(Communicator, LeavesTheTensorAloneAndLetsItBeChangedAfterwards) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SimulatedJob job(4, seed);
    job.on_ranks({0, 1, 2, 3}, [&](int rank, Communicators& own) {
      const Communicator all = own.all();
      for (const std::int64_t width : {10, 5000}) {
        at::Tensor tensor = contribution(rank, {4, width});
        const at::Tensor before = tensor.clone();
        for (const int collective : {0, 1, 2}) {
          at::Tensor result = collective == 0   ? all.all_reduce(tensor)
                              : collective == 1 ? all.reduce_scatter(tensor)
                                                : all.all_gather(tensor);
          EXPECT_TRUE(at::equal(tensor, before));
          tensor.fill_(-1);
          result.fill_(-2);
          tensor.copy_(before);
        }
      }
    });
    EXPECT_THAT(job.failures, testing::IsEmpty());
  }
}

// ---- numbers of messages ----

struct Sent {
  std::uint64_t frames, tensor_bytes;
  bool operator==(const Sent&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Sent& sent) {
    return out << sent.frames << " frames, " << sent.tensor_bytes << " bytes";
  }
};

// What rank `number` of `size` sends during `collective`.
std::vector<Sent> sent_in(int size, const std::function<void(const Communicator&)>& collective) {
  SimulatedJob job(size);
  std::vector<int> numbers;
  for (int number = 0; number < size; ++number) numbers.push_back(number);
  job.on_ranks(numbers, [&](int, Communicators& own) { collective(own.all()); });
  std::vector<Sent> sent;
  for (const int number : numbers) {
    const ChannelCounters& counters = job.channel(number).counters();
    sent.push_back({counters.frames_sent, counters.tensor_bytes_sent});
  }
  return sent;
}

TEST(Communicator, SendsWhatTheFormulasSay) {
  for (const int size : {1, 2, 3, 4, 5}) {
    const auto n = static_cast<std::uint64_t>(size);
    const auto each = [&](const Sent& sent) { return std::vector<Sent>(n, sent); };
    EXPECT_EQ(sent_in(size, [](auto& all) { all.barrier(); }), each({n - 1, 0}));
    EXPECT_EQ(sent_in(size,
                      [](auto& all) {
                        all.all_gather({"x", {at::ones({9})}}, "a test");
                      }),
              each({n - 1, (n - 1) * 36}));
    EXPECT_EQ(sent_in(size,
                      [](auto& all) {
                        all.all_gather(at::ones({2, 3000}));
                      }),
              each({n - 1, (n - 1) * 24'000}));
    std::vector<Sent> broadcast(n, Sent{0, 0});
    broadcast[0] = {n - 1, (n - 1) * 36};
    EXPECT_EQ(sent_in(size,
                      [](auto& all) {
                        all.broadcast({"x", {at::ones({9})}}, GlobalRank(0));
                      }),
              broadcast);
    EXPECT_EQ(sent_in(size, [](auto& all) { all.all_reduce(at::ones({1024})); }),
              each({n - 1, (n - 1) * 4096}))
        << "as one piece";
    const std::uint64_t elements = 60 * 100;
    EXPECT_EQ(sent_in(size,
                      [](auto& all) {
                        all.all_reduce(at::ones({60, 100}));
                      }),
              each({2 * (n - 1), 2 * (n - 1) * elements * 4 / n}));
    EXPECT_EQ(sent_in(size,
                      [](auto& all) {
                        all.reduce_scatter(at::ones({60, 100}));
                      }),
              each({n - 1, (n - 1) * elements * 4 / n}));
  }
}

// ---- beside each other ----

TEST(Communicator, LanesAndGroupsRunBesideEachOther) {
  constexpr int kLanes = 6;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SimulatedJob job(4, seed);
    std::mt19937_64 random(seed);
    std::vector<std::function<void()>> fibers;
    for (const auto& group : {std::vector<int>{3, 0, 2}, {0, 1, 2, 3}, {1, 0}}) {
      for (int lane = 0; lane < kLanes; ++lane) {
        for (const int rank : group) {
          fibers.push_back([&job, group, lane, rank] {
            const Communicator own =
                job.rank(rank).group(members(group)).lane(static_cast<std::uint64_t>(lane));
            for (int round = 0; round < 3; ++round) {
              const int key = lane * 10 + round;
              const std::vector<std::int64_t> shape{own.size(), 1 + key * 40};
              EXPECT_TRUE(at::equal(own.all_reduce(contribution(rank, shape) + key),
                                    own.all_reduce(contribution(rank, shape) + key)));
              const auto gathered = own.all_gather(text(std::to_string(rank * 100 + key)), "lanes");
              for (int i = 0; i < own.size(); ++i) {
                EXPECT_EQ(gathered[static_cast<std::size_t>(i)].bytes,
                          std::to_string(group[static_cast<std::size_t>(i)] * 100 + key));
              }
              own.reduce_scatter(contribution(rank, shape));
            }
          });
        }
      }
    }
    std::shuffle(fibers.begin(), fibers.end(), random);
    job.run(fibers);
    EXPECT_THAT(job.failures, testing::IsEmpty());
  }
}

// ---- disagreement ----

// What ranks 0 and 1 are told when they make different calls; a rank that is told leaves.
std::vector<std::string> told(const std::function<void(const Communicator&)>& zero,
                              const std::function<void(const Communicator&)>& one,
                              std::uint64_t seed) {
  SimulatedJob job(2, seed);
  std::vector<std::string> texts(2, "nothing");
  job.on_ranks({0, 1}, [&](int rank, Communicators& own) {
    // Messages come before the call, or after it.
    fiber::Scheduler::instance().sleep_for(seed % 3 * static_cast<std::uint64_t>(rank) * 10'000,
                                           kForTheTest);
    try {
      (rank == 0 ? zero : one)(own.all());
    } catch (const Error& error) {
      texts[static_cast<std::size_t>(rank)] = error.what();
    }
    own.announce_leaving("it left");
  });
  return texts;
}

TEST(Communicator, NamesBothCallsWhenMembersDisagree) {
  const auto reduce = [](std::vector<std::int64_t> shape, c10::ScalarType dtype) {
    return [=](const Communicator& all) { all.all_reduce(at::ones(shape, dtype)); };
  };
  const auto gather = [](const char* what) {
    return [=](const Communicator& all) { all.all_gather(text(""), what); };
  };
  const auto scatter = [](std::int64_t size) {
    return [=](const Communicator& all) { all.reduce_scatter(at::ones({size})); };
  };
  const auto barrier = [](const Communicator& all) { all.barrier(); };
  using Call = std::function<void(const Communicator&)>;
  const std::vector<std::tuple<Call, Call, std::string, std::string>> calls{
      {reduce({2, 3}, at::kFloat), reduce({3, 2}, at::kFloat), "an all_reduce of Float [2, 3]",
       "an all_reduce of Float [3, 2]"},
      {reduce({5000}, at::kFloat), reduce({5000}, at::kDouble), "Float [5000]", "Double [5000]"},
      {barrier, reduce({2}, at::kFloat), "a barrier", "an all_reduce of Float [2]"},
      {gather("names"), gather("plans"), "an all_gather for names", "an all_gather for plans"},
      {scatter(2), scatter(4), "a reduce_scatter of Float [2]", "a reduce_scatter of Float [4]"},
  };
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    for (const auto& [zero, one, first, second] : calls) {
      const std::vector<std::string> texts = told(zero, one, seed);
      EXPECT_THAT(texts, testing::Each(AllOf(HasSubstr(first), HasSubstr(second),
                                             HasSubstr("call 0 of lane 0"))));
    }
  }
}

TEST(Communicator, NamesBothRootsWhenMembersDisagree) {
  int seen = 0;  // unless the right root's message comes first
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SimulatedJob job(3, seed);
    job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
      if (rank < 2) {
        own.all().broadcast({}, GlobalRank(rank));
      } else {
        const std::string answer = refusal([&] { own.all().broadcast({}, GlobalRank(0)); });
        if (answer == "accepted") return;
        ++seen;
        EXPECT_THAT(answer, AllOf(HasSubstr("a broadcast from rank 0"),
                                  HasSubstr("rank 1 calls a broadcast from rank 1")));
      }
    });
  }
  EXPECT_GT(seen, 0);
}

TEST(Communicator, RefusesGroupsThatCannotBe) {
  SimulatedJob job(3);
  const auto group = [&](const std::vector<int>& numbers) {
    return refusal([&] { job.rank(0).group(members(numbers)); });
  };
  EXPECT_EQ(group({2, 0}), "accepted");
  EXPECT_THAT(group({0, 3}),
              AllOf(HasSubstr("rank 0"), HasSubstr("rank 3"), HasSubstr("{0, 1, 2}")));
  EXPECT_THAT(group({1, 2}), AllOf(HasSubstr("rank 0"), HasSubstr("{1, 2}")));
  EXPECT_THAT(group({0, 0}), HasSubstr("twice"));
}

TEST(Communicator, RefusesShapesThatCannotBeCut) {
  SimulatedJob job(2);
  const Communicator all = job.rank(0).all();
  EXPECT_THAT(refusal([&] {
                all.reduce_scatter(at::ones({3, 2}));
              }),
              AllOf(HasSubstr("[3, 2]"), HasSubstr("2 ranks")));
  EXPECT_THROW(all.reduce_scatter(at::ones({})), UsageError);
  EXPECT_THROW(all.all_gather(at::ones({})), UsageError);
}

// ---- how waits end ----

TEST(Communicator, APeerThatLeftEndsTheWait) {
  SimulatedJob job(3);
  job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
    if (rank == 2) return own.announce_leaving("it left after step 7");
    const std::string answer = refusal<PeerLostError>([&] { own.all().barrier(); });
    EXPECT_THAT(answer, AllOf(HasSubstr("rank " + std::to_string(rank) + ": a barrier"),
                              HasSubstr("rank 2, but it left after step 7")));
  });
}

TEST(Communicator, TellsWhoLeftAndWhy) {
  SimulatedJob job(2);
  std::vector<std::string> left;
  job.rank(0).set_left_handler([&](GlobalRank peer, const std::string& why) {
    left.push_back(std::to_string(peer.value()) + " " + why);
  });
  job.rank(1).announce_leaving("it left after step 3");
  job.drain();
  EXPECT_THAT(left, ElementsAre("1 it left after step 3"));
}

// The announcement may overtake messages with large tensors: they are waited for.
TEST(Communicator, WhatIsOnItsWayWhenAPeerLeavesCounts) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SimulatedJob job(2, seed);
    job.on_ranks({0, 1}, [&](int rank, Communicators& own) {
      const Communicator all = own.all();
      const Payload payload =
          all.broadcast({rank == 0 ? "late" : "", {at::ones({50'000})}}, GlobalRank(0));
      EXPECT_EQ(payload.bytes, "late");
      if (rank == 0) {
        EXPECT_EQ(own.sent_to(GlobalRank(1)), 1u);
        return own.announce_leaving("it left");
      }
      EXPECT_THAT(refusal<PeerLostError>([&] { all.broadcast({}, GlobalRank(0)); }),
                  HasSubstr("it left"))
          << "a second broadcast, which nobody sent";
    });
  }
}

TEST(Communicator, APeerThatLeftEndsCollectivesOfTensors) {
  SimulatedJob job(3);
  job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
    own.all().all_reduce(at::ones({9'000}));
    if (rank == 2) return own.announce_leaving("it left");
    for (const int collective : {0, 1, 2}) {
      EXPECT_THAT(refusal<PeerLostError>([&] {
                    const at::Tensor tensor = at::ones({9'000});
                    if (collective == 0) own.all().all_reduce(tensor);
                    if (collective == 1) own.all().reduce_scatter(tensor);
                    if (collective == 2) own.all().all_gather(tensor);
                  }),
                  HasSubstr("rank 2, but it left"));
    }
  });
  EXPECT_THAT(job.failures, testing::IsEmpty());
}

TEST(Communicator, AbortEndsEveryWait) {
  SimulatedJob job(3);
  std::vector<std::function<void()>> fibers;
  for (int rank = 0; rank < 2; ++rank) {
    for (std::uint64_t lane = 0; lane < 4; ++lane) {
      fibers.push_back([&job, rank, lane] {
        const Communicator all = job.rank(rank).all().lane(lane);
        const std::string answer = refusal<PeerLostError>(
            [&] { lane % 2 == 0 ? all.barrier() : (void)all.all_reduce(at::ones({9'000})); });
        EXPECT_THAT(answer, AllOf(HasSubstr("rank " + std::to_string(rank)),
                                  HasSubstr("nothing happened for 600 s")));
        EXPECT_THROW(all.barrier(), PeerLostError) << "later waits, too";
      });
    }
  }
  fibers.push_back([&job] {
    fiber::Scheduler::instance().sleep_for(1'000'000, kForTheTest);
    for (int rank = 0; rank < 3; ++rank) job.rank(rank).abort("nothing happened for 600 s");
  });
  job.run(fibers);
}

TEST(CollectiveInbox, KeepsNothingOfCollectivesThatAreOver) {
  CollectiveInbox inbox{GlobalRank(0)};
  const CollectiveCall call;
  const auto message = [&inbox](const CollectiveId& id) {
    inbox.deliver(GlobalRank(1), id, CollectivePhase::kExchange, {});
  };
  const CollectiveId early{{7, 0}, 0};
  message(early);
  EXPECT_EQ(inbox.open(), 1u) << "will be called";
  EXPECT_EQ(inbox.begin({7, 0}, call), early);
  inbox.end(early);
  EXPECT_EQ(inbox.open(), 0u);
  const CollectiveId failed = inbox.begin({7, 0}, call);
  inbox.end(failed);
  message(failed);
  EXPECT_EQ(inbox.open(), 0u) << "came too late";
  message({{7, 0}, failed.number + 1});
  message({{7, 1}, 0});
  EXPECT_EQ(inbox.open(), 2u) << "the next one, and one of another lane";
}

TEST(Communicator, AMalformedMessageIsAFailure) {
  SimulatedJob job(2);
  const std::array<std::byte, 3> header{};
  job.channel(0).send(GlobalRank(1), Port::kCollectives, header, "", {});
  job.drain();
  EXPECT_THAT(job.failures, ElementsAre(AllOf(HasSubstr("rank 1"), HasSubstr("malformed"))));
}

}  // namespace
}  // namespace smp::d2d
