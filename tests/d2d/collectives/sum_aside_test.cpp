// Sums that are kept aside until they are wanted, and those that nobody wants.
#include "d2d/collectives/sum_aside.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>

#include "d2d/collectives/sum_in_place.h"
#include "d2d/wire/simulated_job.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace sum_aside_test {

using Sizes = std::vector<std::int64_t>;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<at::Tensor> contributions(int rank, const std::vector<Sizes>& shapes) {
  std::vector<at::Tensor> tensors;
  for (const auto& sizes : shapes) tensors.push_back(contribution(rank, sizes));
  return tensors;
}

const std::vector<Sizes> kShapes{{1500, 2}, {1}, {0}, {77, 3}};

void expect_equal(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& expected,
                  const std::string& where) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(tensors[i], expected[i])) << where << ", tensor " << i;
  }
}

TEST(SumAside, GivesTheBitsOfASumInPlaceAndWritesNothingBefore) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const auto& group = kGroups[seed % kGroups.size()];
    SimulatedJob job(4, seed);
    job.on_ranks(group, [&](int rank, Communicators& own) {
      const auto where = "seed " + std::to_string(seed) + ", rank " + std::to_string(rank);
      const auto in_place = contributions(rank, kShapes), aside = contributions(rank, kShapes);
      SumInPlace expected(own.group(members(group)), in_place, 3);
      expected.add();
      expected.finish();
      SumAside sum(own.group(members(group)).lane(7), aside, 3, seed);
      EXPECT_FALSE(sum.added());
      sum.add();
      own.group(members(group)).barrier();
      expect_equal(aside, contributions(rank, kShapes), where + ", before write()");
      sum.write();
      expect_equal(aside, in_place, where);
    });
    EXPECT_THAT(job.failures, IsEmpty());
  }
}

// Each owns one tensor, the last member none; one that nobody owns is not there.
TEST(SumAside, OfOwnersIsForThemAloneAndHasTheSameBits) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const auto& group = kGroups[seed % kGroups.size()];
    SimulatedJob job(4, seed);
    job.on_ranks(group, [&](int rank, Communicators& own) {
      const auto where = "seed " + std::to_string(seed) + ", rank " + std::to_string(rank);
      const auto ranks = own.group(members(group));
      const auto owned = [&](const std::vector<at::Tensor>& tensors) {
        std::vector<std::vector<at::Tensor>> of_owner(group.size());
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          of_owner[i % std::max<std::size_t>(1, group.size() - 1)].push_back(tensors[i]);
        }
        return of_owner;
      };
      const auto for_all = contributions(rank, kShapes), terms = contributions(rank, kShapes);
      const auto in_place = contributions(rank, kShapes), aside = contributions(rank, kShapes);
      SumInPlace expected(ranks, for_all, 3);
      expected.add();
      expected.finish();
      SumInPlace first(ranks, SumParts::of_owners(owned(in_place)), 3);
      first.add();
      first.finish();
      SumAside sum(ranks.lane(7), SumParts::of_owners(owned(aside)), 3, seed);
      sum.add();
      own.group(members(group)).barrier();
      expect_equal(aside, terms, where + ", before write()");
      sum.write();
      for (std::size_t owner = 0; owner < group.size(); ++owner) {
        const auto& what = group[owner] == rank ? for_all : terms;
        expect_equal(owned(in_place)[owner], owned(what)[owner], where + ", in place");
        expect_equal(owned(aside)[owner], owned(what)[owner], where + ", aside");
      }
    });
    EXPECT_THAT(job.failures, IsEmpty());
  }
}

TEST(SumAside, OfOwnersSendsTermsOnly) {
  SimulatedJob job(3);
  job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
    const std::vector<std::vector<at::Tensor>> tensors{
        contributions(rank, {{3000}, {900}}), {}, contributions(rank, {{2000}})};
    SumAside sum(own.all().lane(1), SumParts::of_owners(tensors), 1, 1);
    if (rank == 1) {
      EXPECT_TRUE(sum.can_add());
    }
    sum.add();
    sum.write();
  });
  const std::vector<std::uint64_t> elements{2000, 5900, 3900};
  for (int rank = 0; rank < 3; ++rank) {
    const auto& counters = job.channel(rank).counters();
    EXPECT_EQ(counters.tensor_bytes_sent, elements[static_cast<std::size_t>(rank)] * sizeof(float));
    EXPECT_EQ(counters.frames_sent, rank == 1 ? 2u : 1u);
  }
}

/// Whose sum is infinite.
TEST(SumAside, GivesTheMeanOfLargeHalvesAsASumInPlaceDoes) {
  for (const auto& group : kGroups) {
    SimulatedJob job(4, 1);
    job.on_ranks(group, [&](int, Communicators& own) {
      const auto large = [] { return std::vector<at::Tensor>{at::full({7}, 49152, at::kHalf)}; };
      const auto in_place = large(), aside = large();
      const auto size = static_cast<std::int64_t>(group.size());
      SumInPlace first(own.group(members(group)), in_place, size);
      first.add();
      first.finish();
      SumAside second(own.group(members(group)).lane(7), aside, size, 1);
      second.add();
      second.write();
      EXPECT_TRUE(at::allclose(in_place[0].to(at::kFloat), at::full({7}, 49152.f), 2e-3));
      expect_equal(aside, in_place, "of " + std::to_string(size));
    });
    EXPECT_THAT(job.failures, IsEmpty());
  }
}

/// 256 and ones, of which bfloat16 would lose each that is added by itself.
TEST(SumAside, AddsNumbersOf16BitsInFloat32AsASumInPlaceDoes) {
  for (const auto& group : kGroups) {
    SimulatedJob job(4, 1);
    job.on_ranks(group, [&](int rank, Communicators& own) {
      const auto all = own.group(members(group));
      const auto terms = [&] {
        return std::vector<at::Tensor>{
            at::full({7}, rank == group.front() ? 256 : 1, at::kBFloat16)};
      };
      const auto in_place = terms(), aside = terms();
      SumInPlace first(all, in_place, 1);
      first.add();
      first.finish();
      SumAside second(all.lane(7), aside, 1, 1);
      second.add();
      second.write();
      const auto due = at::full({7}, 255.f + all.size()).to(at::kBFloat16);
      EXPECT_TRUE(at::equal(in_place[0], due)) << in_place[0][0];
      EXPECT_TRUE(at::equal(aside[0], due)) << aside[0][0];
      EXPECT_TRUE(at::equal(all.all_reduce(terms()[0]), due));
    });
    EXPECT_THAT(job.failures, IsEmpty());
  }
}

TEST(SumAside, TellsWhenNobodyNeedsToWait) {
  constexpr fiber::WaitReason kNews{"news of a sum", "", -1, -1};
  SimulatedJob job(3);
  job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
    if (rank == 2) fiber::Scheduler::instance().sleep_for(base::kSecond, kForTheTest);
    const auto tensors = contributions(rank, kShapes);
    fiber::Event news;
    SumAside sum(own.all().lane(1), tensors, 1, 1);
    sum.watch(news);
    if (rank == 0) {
      EXPECT_FALSE(sum.can_add());
    }
    while (!sum.can_add()) news.wait(kNews);
    sum.add();
    sum.write();
    EXPECT_TRUE(at::equal(tensors[0], sum_in_order({0, 1, 2}, kShapes[0])));
  });
}

// In every round each rank begins or leaves out, and changes what it has sent.
TEST(SumAside, MayBeGivenUpOrLeftOutByAnyMember) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const std::vector<int> group{0, 1, 2};
    SimulatedJob job(3, seed);
    job.on_ranks(group, [&](int rank, Communicators& own) {
      std::mt19937_64 random(100 * seed + static_cast<std::uint64_t>(rank));
      const auto lane = own.all().lane(5);
      for (std::uint64_t number = 1; number <= 6; ++number) {
        const bool wanted = number % 3 == 0;
        const auto tensors = contributions(rank, {{900 + std::int64_t(number)}});
        std::optional<SumAside> sum;
        if (wanted || random() % 2 == 0) sum.emplace(lane, tensors, 1, number);
        if (wanted) {
          sum->add();
          sum->write();
          EXPECT_TRUE(at::equal(tensors[0], sum_in_order(group, tensors[0].sizes())));
        } else {
          tensors[0].fill_(-1);
          if (random() % 2 == 0) sum.reset();
          if (random() % 2 == 0) lane.leave_out(number);
          own.all().barrier();
          sum.reset();
          lane.leave_out(number);
        }
      }
      own.all().barrier();
    });
    EXPECT_THAT(job.failures, IsEmpty()) << "seed " << seed;
    job.drain();
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(job.rank(rank).open_collectives(), 0u);
  }
}

// What came for a sum that this member never begins is dropped, whenever it comes.
TEST(SumAside, KeepsNothingOfSumsThatAreLeftOut) {
  for (const bool early : {true, false}) {
    SimulatedJob job(2);
    job.on_ranks({0, 1}, [&](int rank, Communicators& own) {
      const auto lane = own.all().lane(5);
      if (rank == 0) {
        const auto tensors = contributions(0, {{3000}});
        SumAside sum(lane, tensors, 1, 4);
      } else {
        if (early) fiber::Scheduler::instance().sleep_for(base::kSecond, kForTheTest);
        EXPECT_EQ(own.open_collectives(), early ? 1u : 0u);
        lane.leave_out(4);
      }
    });
    job.drain();
    EXPECT_EQ(job.rank(1).open_collectives(), 0u) << (early ? "early" : "late");
  }
}

/// Sends twice the elements in float64, and counts.
class Doubler final : public SumCodec {
 public:
  std::vector<at::Tensor> encode(const SumParts::Pieces& pieces, int, bool sum) override {
    ++(sum ? sums : terms);
    std::vector<at::Tensor> encoded;
    for (const auto& piece : pieces) encoded.push_back(piece.to(at::kDouble) * 2);
    return encoded;
  }
  SumParts::Pieces decode(const std::vector<at::Tensor>& encoded, const SumParts::Pieces& like, int,
                          bool) override {
    SumParts::Pieces pieces;
    for (std::size_t i = 0; i < like.size(); ++i) {
      pieces.push_back((encoded.at(i) / 2).to(like[i].scalar_type()));
    }
    return pieces;
  }
  int terms = 0, sums = 0;
};

TEST(SumAside, EncodesWhatTravelsAndWhatStays) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SimulatedJob job(3, seed);
    job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
      const auto tensors = contributions(rank, kShapes), same = contributions(rank, kShapes);
      Doubler codec;
      SumAside sum(own.all().lane(7), tensors, 3, 1, &codec);
      sum.add();
      expect_equal(tensors, same, "before write()");
      sum.write();
      EXPECT_EQ(codec.terms, 3);
      EXPECT_EQ(codec.sums, 1);
      for (std::size_t i = 0; i < kShapes.size(); ++i) {
        EXPECT_TRUE(at::equal(tensors[i], sum_in_order({0, 1, 2}, kShapes[i]).div_(3)));
      }
    });
    EXPECT_THAT(job.failures, IsEmpty());
  }
}

TEST(SumAside, SendsWhatTheFormulaSays) {
  SimulatedJob job(3);
  job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
    const auto tensors = contributions(rank, {{3000}, {3000}});
    SumAside sum(own.all().lane(1), tensors, 1, 1);
    sum.add();
    sum.write();
  });
  for (int rank = 0; rank < 3; ++rank) {
    const auto& counters = job.channel(rank).counters();
    EXPECT_EQ(counters.tensor_bytes_sent, 2u * 2 * 6000 / 3 * sizeof(float));
    EXPECT_EQ(counters.frames_sent, 4u);
  }
}

TEST(SumAside, MembersThatDisagreeAreTold) {
  SimulatedJob job(2);
  job.on_ranks({0, 1}, [&](int rank, Communicators& own) {
    const std::vector<at::Tensor> tensors{at::ones({10 + rank})};
    EXPECT_THAT(refusal([&] {
                  SumAside sum(own.all().lane(3).named("gradients"), tensors, 1, 1);
                  sum.add();
                  sum.write();
                }),
                HasSubstr("all members must make the same calls"));
  });
}

TEST(SumAside, EndsIfAMemberLeaves) {
  SimulatedJob job(3);
  job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
    if (rank == 2) return own.announce_leaving("left after step 7");
    const std::vector<at::Tensor> tensors{at::ones({3'000})};
    EXPECT_THAT(refusal<PeerLostError>([&] {
                  SumAside sum(own.all().lane(3).named("gradients"), tensors, 1, 1);
                  sum.add();
                  sum.write();
                }),
                testing::AllOf(HasSubstr("gradients"), HasSubstr("left after step 7")));
  });
}

}  // namespace sum_aside_test
}  // namespace smp::d2d
