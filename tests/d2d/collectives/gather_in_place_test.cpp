// Values that tensors have on their owners, everywhere, without a copy of what is sent.
#include "d2d/collectives/gather_in_place.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <deque>
#include <random>

#include "d2d/wire/simulated_job.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace gather_in_place_test {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kWhat = "values";

/// Two of member 0, of which one is empty, none of member 1, one of each other.
std::vector<std::vector<at::Tensor>> tensors_of(int rank, int members, std::int64_t length) {
  std::vector<std::vector<at::Tensor>> tensors(static_cast<std::size_t>(members));
  tensors[0] = {contribution(rank, {length, 2}), contribution(rank, {0, 3})};
  for (int owner = 2; owner < members; ++owner) {
    tensors[static_cast<std::size_t>(owner)] = {contribution(rank, {length + owner})};
  }
  return tensors;
}

void expect_values_of_owners(const std::vector<std::vector<at::Tensor>>& tensors,
                             const std::vector<int>& group, std::int64_t length) {
  for (std::size_t owner = 0; owner < group.size(); ++owner) {
    const auto expected = tensors_of(group[owner], static_cast<int>(group.size()), length);
    for (std::size_t i = 0; i < tensors[owner].size(); ++i) {
      EXPECT_TRUE(at::equal(tensors[owner][i], expected[owner][i])) << "owner " << owner;
    }
  }
}

TEST(GatherInPlace, GivesAllWhatTheOwnersHaveThoughManyAreUnderWay) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto& group = kGroups[seed % kGroups.size()];
    SimulatedJob job(4, seed);
    job.on_ranks(group, [&](int rank, Communicators& own) {
      const auto ranks = own.group(members(group));
      const std::vector<std::int64_t> lengths{1, 3000, 40};
      std::vector<std::vector<std::vector<at::Tensor>>> all;
      std::deque<GatherInPlace> under_way;
      for (const auto length : lengths) {
        all.push_back(tensors_of(rank, ranks.size(), length));
        under_way.emplace_back(ranks, SumParts::of_owners(all.back()), kWhat);
      }
      for (auto& gather : under_way) gather.finish();
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        expect_values_of_owners(all[i], group, lengths[i]);
      }
    });
    EXPECT_THAT(job.failures, IsEmpty()) << "seed " << seed;
  }
}

TEST(GatherInPlace, LetsTensorsBeChangedOnceItIsFinished) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SimulatedJob job(3, seed);
    job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
      const auto tensors = tensors_of(rank, 3, 2000);
      GatherInPlace gather(own.all(), SumParts::of_owners(tensors), kWhat);
      gather.finish();
      expect_values_of_owners(tensors, {0, 1, 2}, 2000);
      for (const auto& of_owner : tensors) {
        for (const auto& tensor : of_owner) tensor.fill_(-1);
      }
    });
    EXPECT_THAT(job.failures, IsEmpty()) << "seed " << seed;
  }
}

/// Which is read from the tensors until then.
TEST(GatherInPlace, IsFinishedWhenWhatItSendsHasLeft) {
  SimulatedJob job(2);
  bool finished = false;
  job.on_ranks({0, 1}, [&](int rank, Communicators& own) {
    const std::vector<std::vector<at::Tensor>> tensors{{contribution(rank, {3000})}, {}};
    if (rank == 1) {
      fiber::Scheduler::instance().sleep_for(1, kForTheTest);
      EXPECT_FALSE(finished) << "a nanosecond after it began";
    }
    GatherInPlace(own.all(), SumParts::of_owners(tensors), kWhat).finish();
    if (rank == 0) finished = true;
  });
  EXPECT_TRUE(finished);
}

TEST(GatherInPlace, SendsWhatTheFormulaSays) {
  SimulatedJob job(3);
  job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
    const auto tensors = tensors_of(rank, 3, 2000);
    GatherInPlace(own.all(), SumParts::of_owners(tensors), kWhat).finish();
  });
  const std::vector<std::uint64_t> owned{2000 * 2, 0, 2002};
  for (int rank = 0; rank < 3; ++rank) {
    const auto& counters = job.channel(rank).counters();
    const auto elements = owned[static_cast<std::size_t>(rank)];
    EXPECT_EQ(counters.tensor_bytes_sent, 2 * elements * sizeof(float));
    EXPECT_EQ(counters.frames_sent, elements > 0 ? 2u : 0u);
  }
}

TEST(GatherInPlace, MembersThatDisagreeAreTold) {
  SimulatedJob job(2);
  job.on_ranks({0, 1}, [&](int rank, Communicators& own) {
    const std::vector<std::vector<at::Tensor>> tensors{{at::ones({10 + rank})}, {at::ones({3})}};
    EXPECT_THAT(
        refusal([&] { GatherInPlace(own.all(), SumParts::of_owners(tensors), kWhat).finish(); }),
        HasSubstr("all members must make the same calls"));
  });
}

TEST(GatherInPlace, EndsIfAnOwnerLeaves) {
  SimulatedJob job(3);
  job.on_ranks({0, 1, 2}, [&](int rank, Communicators& own) {
    if (rank == 2) return own.announce_leaving("left after step 7");
    const auto tensors = tensors_of(rank, 3, 2000);
    EXPECT_THAT(refusal<PeerLostError>([&] {
                  GatherInPlace(own.all(), SumParts::of_owners(tensors), kWhat).finish();
                }),
                testing::AllOf(HasSubstr(kWhat), HasSubstr("left after step 7")));
  });
}

}  // namespace gather_in_place_test
}  // namespace smp::d2d
