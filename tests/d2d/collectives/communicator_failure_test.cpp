// Collectives that cannot be: calls that disagree are named on every rank, and a wait for a rank
// that left, or for a job that is given up, ends.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "d2d/collectives/communicator.h"
#include "d2d/wire/simulated_job.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace communicator_failure_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

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

TEST(CommunicatorFailure, NamesBothCallsWhenMembersDisagree) {
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
                                             HasSubstr("call 0 of lane 0 of ranks {0, 1}"))));
    }
  }
}

TEST(CommunicatorFailure, NamesBothRootsWhenMembersDisagree) {
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

TEST(CommunicatorFailure, NamesTheCallsOfTheProgram) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SimulatedJob job(2, seed);
    job.on_ranks({0, 1}, [&](int rank, Communicators& own) {
      own.exchange_call(rank == 0 ? "smp::barrier" : "smp::save_safetensors");
      const auto text_of_refusal = refusal<Error>([&] {
        if (rank == 0) own.all().barrier();
        if (rank == 1) own.all().all_gather(text(""), "names of tensors");
      });
      const std::string calls[] = {"smp::barrier", "smp::save_safetensors: names of tensors"};
      EXPECT_THAT(text_of_refusal, HasSubstr("rank " + std::to_string(rank) + ": " + calls[rank] +
                                             ", but rank " + std::to_string(1 - rank) + " calls " +
                                             calls[1 - rank] + " at its place"));
      own.exchange_call(nullptr);
      own.announce_leaving("left");
    });
  }
}

/// Both wait for each other, each in a group of its own: neither can go on.
TEST(CommunicatorFailure, NamesWhatAnotherRankWaitsInInstead) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SimulatedJob job(3, seed);
    job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
      const auto some = rank == 2 ? own.all() : own.group(members({1, 0}));
      fiber::Scheduler::instance().sleep_for(
          static_cast<base::Nanoseconds>(seed * 7919 % 5) * rank * 10'000, kForTheTest);
      own.exchange_call(rank == 1 ? "smp::all_gather" : "smp::barrier");
      const auto said = refusal<Error>([&] {
        if (rank == 1) {
          some.all_gather(text(""), "smp::all_gather");
        } else {
          own.all().barrier();
        }
      });
      if (rank == 0) {
        EXPECT_THAT(said,
                    AllOf(HasSubstr("rank 0: smp::barrier of ranks {0, 1, 2} waits for rank 1"),
                          HasSubstr("but rank 1 calls smp::all_gather, which waits for this")));
      } else if (rank == 1) {
        EXPECT_THAT(said,
                    AllOf(HasSubstr("rank 1: smp::all_gather of ranks {1, 0} waits for rank 0"),
                          HasSubstr("but rank 0 calls smp::barrier, which waits for this")));
      } else {
        EXPECT_THAT(said, HasSubstr("; every rank of the group must call smp::barrier"));
      }
      own.announce_leaving("left after step 7");
    });
  }
}

/// Groups that overlap, and messages that overtake each other: nobody is wrong.
TEST(CommunicatorFailure, WhoMakesTheSameCallsIsNeverRefused) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SimulatedJob job(3, seed);
    job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
      own.exchange_call("smp::step");
      const auto all = own.all();
      for (int round = 0; round < 6; ++round) {
        fiber::Scheduler::instance().sleep_for(
            static_cast<base::Nanoseconds>((seed * 31 + static_cast<std::uint64_t>(round)) %
                                           (static_cast<std::uint64_t>(rank) + 2)) *
                10'000,
            kForTheTest);
        if (rank < 2) own.group(members({0, 1})).all_gather(text("x"), "of two");
        all.broadcast({rank == 0 ? "late" : "", {at::ones({50'000})}}, GlobalRank(0));
        all.barrier();
        if (rank > 0) own.group(members({2, 1})).all_reduce(at::ones({round % 2 ? 2 : 9000}));
        all.all_reduce(at::ones({round % 2 ? 2 : 9000}));
      }
      EXPECT_EQ(own.open_collectives(), 0u);
    });
  }
}

// ---- words that not everybody says ----

TEST(CommunicatorFailure, AWordIsHeardByWhoeverAsksForIt) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SimulatedJob job(3, seed);
    job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
      const auto lane = own.all().lane(77);
      const std::vector<GlobalRank> others{GlobalRank(1), GlobalRank(2)};
      const auto tell = [&](std::uint64_t number, const char* word) {
        if (rank == 0) lane.tell(number, text(word), others, "a file");
      };
      const auto hear = [&](std::uint64_t number) {
        return lane.hear(number, GlobalRank(0), "a file").bytes;
      };
      tell(8, "first");
      tell(8, "second");
      tell(16, "nobody asks for this");
      tell(24, "last");
      if (rank == 1) {
        EXPECT_EQ(hear(8), "first");
        EXPECT_EQ(hear(8), "second");
      }
      if (rank > 0) {
        EXPECT_EQ(hear(24), "last");
      }
      own.all().barrier();
      EXPECT_EQ(own.open_collectives(), 0u);
    });
  }
}

TEST(CommunicatorFailure, AWordThatNobodySaysEndsWithTheRankThatShould) {
  SimulatedJob job(2);
  job.on_ranks({0, 1}, [&](int rank, Communicators& own) {
    if (rank == 0) return own.announce_leaving("left after step 3");
    own.exchange_call("smp::save_safetensors");
    EXPECT_THAT(refusal<PeerLostError>([&] {
                  own.all().lane(77).hear(8, GlobalRank(0), "the file of the first replica");
                }),
                HasSubstr("rank 1: the file of the first replica of ranks {0, 1} waits for rank 0, "
                          "but rank 0 left after step 3; every rank of the group must call "
                          "smp::save_safetensors"));
  });
}

TEST(CommunicatorFailure, RefusesGroupsThatCannotBe) {
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

TEST(CommunicatorFailure, RefusesShapesThatCannotBeCut) {
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

TEST(CommunicatorFailure, APeerThatLeftEndsTheWait) {
  SimulatedJob job(3);
  job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
    if (rank == 2) return own.announce_leaving("left after step 7");
    const std::string answer = refusal<PeerLostError>([&] { own.all().barrier(); });
    EXPECT_THAT(answer,
                AllOf(HasSubstr("rank " + std::to_string(rank) + ": a barrier of ranks {0, 1, 2}"),
                      HasSubstr("waits for rank 2, but rank 2 left after step 7")));
  });
}

// The announcement may overtake messages with large tensors: they are waited for.
TEST(CommunicatorFailure, WhatIsOnItsWayWhenAPeerLeavesCounts) {
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

TEST(CommunicatorFailure, APeerThatLeftEndsCollectivesOfTensors) {
  SimulatedJob job(3);
  job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
    own.all().all_reduce(at::ones({9'000}));
    if (rank == 2) return own.announce_leaving("left");
    for (const int collective : {0, 1, 2}) {
      EXPECT_THAT(refusal<PeerLostError>([&] {
                    const at::Tensor tensor = at::ones({9'000});
                    if (collective == 0) own.all().all_reduce(tensor);
                    if (collective == 1) own.all().reduce_scatter(tensor);
                    if (collective == 2) own.all().all_gather(tensor);
                  }),
                  HasSubstr("rank 2, but rank 2 left"));
    }
  });
  EXPECT_THAT(job.failures, testing::IsEmpty());
}

TEST(CommunicatorFailure, AbortEndsEveryWait) {
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

TEST(CommunicatorFailure, AMalformedMessageIsAFailure) {
  SimulatedJob job(2);
  const std::array<std::byte, 3> header{};
  job.channel(0).send(GlobalRank(1), Port::kCollectives, header, "", {});
  job.drain();
  EXPECT_THAT(job.failures, ElementsAre(AllOf(HasSubstr("rank 1"), HasSubstr("malformed"))));
}

// ---- epochs ----

/// What rank 0 is told in `epoch` by a wait for rank 1, which fails epoch 5.
std::string told_in_epoch(std::uint64_t epoch, bool before_the_call) {
  SimulatedJob job(2, 3);
  std::string told = "nothing";
  job.on_ranks({0, 1}, [&](int rank, Communicators& own) {
    const auto lane = own.all().lane(77, epoch).named("the exchange of a test");
    const bool late = (rank == 0) == before_the_call;
    if (late) fiber::Scheduler::instance().sleep_for(base::kSecond, kForTheTest);
    if (rank == 1) {
      own.fail_epoch(5, own.all().members(), "it is ill");
      if (epoch != 5) lane.all_reduce(at::ones({3}));
      return;
    }
    try {
      lane.all_reduce(at::ones({3}));
    } catch (const PeerLostError& error) {
      told = error.what();
    }
  });
  return told;
}

TEST(CommunicatorFailure, EndsTheWaitsOfAnEpochThatFailedElsewhere) {
  for (const bool before_the_call : {false, true}) {
    EXPECT_THAT(told_in_epoch(5, before_the_call),
                AllOf(HasSubstr(
                    "rank 0: the exchange of a test of ranks {0, 1}: rank 1 failed: it is ill")));
    EXPECT_EQ(told_in_epoch(6, before_the_call), "nothing") << "another epoch";
    EXPECT_EQ(told_in_epoch(4, before_the_call), "nothing");
  }
}

TEST(CommunicatorFailure, EndsItsOwnWaitsOfAnEpoch) {
  SimulatedJob job(2, 3);
  std::string told = "nothing";
  job.run({[&] {
             try {
               job.rank(0).all().lane(1, 5).barrier();
             } catch (const PeerLostError& error) {
               told = error.what();
             }
           },
           [&] {
             fiber::Scheduler::instance().sleep_for(base::kSecond, kForTheTest);
             job.rank(0).fail_epoch(5, job.rank(0).all().members(), "no more");
           }});
  EXPECT_THAT(told, HasSubstr("no more"));
  job.rank(0).end_epoch(5);
  EXPECT_EQ(job.rank(0).lanes(), 0u);
}

}  // namespace communicator_failure_test
}  // namespace smp::d2d
