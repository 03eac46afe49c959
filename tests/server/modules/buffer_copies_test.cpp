// Small buffers that several ranks hold: a copy that was used is what its owner has, or an error.
#include "server/modules/buffer_copies.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <array>

#include "support/refusal.h"

namespace smp::server {
namespace buffer_copies_test {

using testing::AllOf;
using testing::HasSubstr;

struct Rank {
  explicit Rank(int rank) : foreign(GlobalRank(rank)), copies(GlobalRank(rank), foreign) {
    copies.add("table", table, GlobalRank(1), true);
  }
  at::Tensor table = at::arange(6, at::kLong).reshape({2, 3});
  ForeignParameters foreign;
  BufferCopies copies;
};

// Rank 1 owns the table; rank 0 is the first stage.
class BufferCopiesTest : public testing::Test {
 protected:
  void begin_step() {
    for (auto& rank : ranks_) rank.copies.begin_step();
  }
  void end_step() {
    for (int i = 0; i < 2; ++i) ranks_[0].copies.note(GlobalRank(i), ranks_[i].copies.report());
    const auto changes = ranks_[0].copies.judge();
    for (auto& rank : ranks_) rank.copies.follow(changes);
  }
  at::Tensor& copy() { return ranks_[0].table; }
  at::Tensor& original() { return ranks_[1].table; }

  std::array<Rank, 2> ranks_{Rank(0), Rank(1)};
};

TEST_F(BufferCopiesTest, MayBeUsedInAnyWay) {
  const auto* const identity = copy().unsafeGetTensorImpl();
  for (int step = 0; step < 3; ++step) {
    EXPECT_TRUE(at::equal(copy(), original()));
    EXPECT_EQ(copy()[1][2].item<std::int64_t>(), 5);
    EXPECT_EQ((copy().accessor<std::int64_t, 2>()[1][1]), 4);
    EXPECT_EQ(copy().unsafeGetTensorImpl(), identity);
    end_step();
    EXPECT_EQ(copy().data_ptr<std::int64_t>()[3], 3) << "unused so far in this step";
  }
}

TEST_F(BufferCopiesTest, ThatNobodyUsesMayChange) {
  for (int step = 0; step < 3; ++step) {
    original().add_(1);
    end_step();
  }
  EXPECT_THAT(refusal([&] { copy().sum(); }),
              AllOf(HasSubstr("rank 0: buffer table lives on rank 1 (which changed it)"),
                    HasSubstr("place both modules on one rank")));
}

TEST_F(BufferCopiesTest, AreNotUsedInAStepThatChangesTheOriginal) {
  copy().sum();
  original().add_(1);
  EXPECT_THAT(refusal([&] { end_step(); }),
              AllOf(HasSubstr("rank 0: buffer table lives on rank 1"), HasSubstr("stale")));
}

TEST_F(BufferCopiesTest, AreNotChangedElsewhere) {
  copy().add_(1);
  EXPECT_THAT(refusal([&] { end_step(); }), HasSubstr("buffer table"));
}

/// As by a counter in a module that runs on both: it counts each call once.
TEST_F(BufferCopiesTest, AreNotChangedOnTwoRanksInOneStep) {
  begin_step();
  for (auto& rank : ranks_) rank.table.add_(1);
  EXPECT_THAT(refusal([&] { end_step(); }),
              AllOf(HasSubstr("rank 0: buffer table lives on rank 1, and both ranks changed it"),
                    HasSubstr("set_partition")));
}

TEST_F(BufferCopiesTest, MayBeChangedAlikeOnAllRanksBetweenSteps) {
  for (int step = 0; step < 3; ++step) {
    for (auto& rank : ranks_) rank.table.mul_(2).add_(step);
    begin_step();
    end_step();
    copy().sum();
  }
  EXPECT_TRUE(at::equal(copy(), original()));
}

/// As at the start, and before every step if replicas follow the first.
TEST_F(BufferCopiesTest, AreNotUsedByTheValuesOfAnotherPipeline) {
  for (int step = 0; step < 2; ++step) {
    for (auto& rank : ranks_) rank.copies.give([&] { rank.table.fill_(step); });
    begin_step();
    original().add_(step);
    end_step();
  }
  EXPECT_THAT(refusal([&] { copy().sum(); }), HasSubstr("(which changed it)"));
}

TEST_F(BufferCopiesTest, HaveTheValuesThatTheyWereGiven) {
  for (int step = 0; step < 3; ++step) {
    for (auto& rank : ranks_) rank.copies.give([&] { rank.table.fill_(step); });
    begin_step();
    EXPECT_EQ(copy().sum().item<int>(), 6 * step);
    end_step();
  }
}

TEST_F(BufferCopiesTest, CountAsUsedIfTheyWereBeforeTheyWereGivenValues) {
  copy().sum();
  for (auto& rank : ranks_) rank.copies.give([&] { rank.table.fill_(rank.copies.size()); });
  original().add_(1);
  EXPECT_THAT(refusal([&] { end_step(); }), HasSubstr("both ranks changed it in one step"));
}

/// As a checkpoint does that was loaded.
TEST_F(BufferCopiesTest, AreRightIfTheSameValuesWereWrittenAgain) {
  original().copy_(original().clone());
  copy().sum();
  end_step();
  EXPECT_TRUE(at::equal(copy(), original()));
  end_step();
}

TEST_F(BufferCopiesTest, NoticeNewMemory) {
  original().set_data(at::zeros({2, 3}, at::kLong));
  copy().sum();
  EXPECT_THAT(refusal([&] { end_step(); }), HasSubstr("stale"));
}

/// As a fused step of an optimizer writes.
void write_unseen(const at::Tensor& tensor, std::int64_t value) {
  tensor.data().flatten()[4].fill_(value);
}

TEST_F(BufferCopiesTest, NoticeWhatNoVersionShows) {
  begin_step();
  end_step();
  const auto version = original()._version();
  write_unseen(original(), 7);
  ASSERT_EQ(original()._version(), version);
  begin_step();
  copy().sum();
  EXPECT_THAT(refusal([&] { end_step(); }), HasSubstr("stale"));
}

TEST_F(BufferCopiesTest, NoticeWhatNoVersionShowsInAStep) {
  begin_step();
  copy().sum();
  write_unseen(original(), 8);
  EXPECT_THAT(refusal([&] { end_step(); }), HasSubstr("stale"));
}

TEST_F(BufferCopiesTest, NoticeWhatNoVersionShowsOnTwoRanksInOneStep) {
  begin_step();
  for (auto& rank : ranks_) write_unseen(rank.table, 9);
  EXPECT_THAT(refusal([&] { end_step(); }), HasSubstr("both ranks changed it"));
}

TEST_F(BufferCopiesTest, MayBeWrittenUnseenAlikeOnAllRanksBetweenSteps) {
  for (int step = 0; step < 3; ++step) {
    for (auto& rank : ranks_) write_unseen(rank.table, 10 + step);
    begin_step();
    copy().sum();
    end_step();
  }
  EXPECT_EQ(copy()[1][1].item<std::int64_t>(), 12);
}

TEST_F(BufferCopiesTest, OfTwoModelsAreWatchedOnce) {
  for (auto& rank : ranks_) rank.copies.add("again.table", rank.table, GlobalRank(1), true);
  for (int step = 0; step < 2; ++step) {
    copy().sum();
    end_step();
  }
  original().add_(1);
  copy().sum();
  EXPECT_THAT(refusal([&] { end_step(); }), HasSubstr("buffer table"));
}

TEST_F(BufferCopiesTest, UsedBeforeTheOriginalChangedWereRight) {
  copy().sum();
  end_step();
  original().add_(1);
  end_step();
  EXPECT_THAT(refusal([&] { copy().sum(); }), HasSubstr("(which changed it)"));
}

TEST_F(BufferCopiesTest, HearOfAChangeAgainIfTheStepFailed) {
  original().add_(1);
  ranks_[0].copies.note(GlobalRank(1), ranks_[1].copies.report());
  static_cast<void>(ranks_[0].copies.judge());
  for (auto& rank : ranks_) rank.copies.drop();
  end_step();
  EXPECT_THAT(refusal([&] { copy().sum(); }), HasSubstr("(which changed it)"));
}

TEST_F(BufferCopiesTest, HearOfAChangeAgainIfItsReportWasLost) {
  original().add_(1);
  EXPECT_NE(ranks_[1].copies.report(), "");
  for (auto& rank : ranks_) rank.copies.drop();  // another rank had failed first
  for (auto& rank : ranks_) rank.copies.begin_step();
  end_step();
  EXPECT_THAT(refusal([&] { copy().sum(); }), HasSubstr("(which changed it)"));
  for (auto& rank : ranks_) rank.copies.begin_step();
  EXPECT_EQ(ranks_[1].copies.report(), "") << "once";
}

TEST_F(BufferCopiesTest, ReportNothingIfNothingHappened) {
  for (auto& rank : ranks_) EXPECT_EQ(rank.copies.report(), "");
  EXPECT_EQ(ranks_[0].copies.judge(), "");
}

TEST_F(BufferCopiesTest, AreNewsOnce) {
  auto& first = ranks_[0].copies;
  const auto use = [&] {
    copy().sum();
    return first.report();
  };
  EXPECT_FALSE(first.is_news(GlobalRank(0), first.report())) << "nothing happened";
  EXPECT_TRUE(first.is_news(GlobalRank(0), use()));
  EXPECT_FALSE(first.is_news(GlobalRank(0), use())) << "used again, with the same values";
  EXPECT_TRUE(first.is_news(GlobalRank(1), use())) << "another rank";
  for (auto& rank : ranks_) rank.table += 3;
  EXPECT_TRUE(first.is_news(GlobalRank(0), use())) << "other values";
  EXPECT_FALSE(first.is_news(GlobalRank(0), use()));
}

/// As running statistics do, which the end of a step commits.
TEST_F(BufferCopiesTest, ThatEveryStepChangesAreReportedUntilNoneCanBeRight) {
  for (int step = 0; step < 4; ++step) {
    begin_step();
    const auto report = ranks_[1].copies.report();
    EXPECT_EQ(report.empty(), step != 1) << step;
    ranks_[0].copies.note(GlobalRank(1), report);
    const auto changes = ranks_[0].copies.judge();
    original().add_(1);
    for (auto& rank : ranks_) {
      rank.copies.note_commit();
      rank.copies.follow(changes);
    }
  }
  EXPECT_THAT(refusal([&] { copy().sum(); }), HasSubstr("which changed it"));
}

TEST_F(BufferCopiesTest, OfAModelThatIsGoneAreForgotten) {
  const auto memory = original().storage();
  for (auto& rank : ranks_) rank.table.reset();
  end_step();
  EXPECT_EQ(memory.use_count(), 1u);
}

TEST_F(BufferCopiesTest, AreUsedThroughShallowCopiesToo) {
  for (int step = 0; step < 3; ++step) {
    EXPECT_TRUE(at::equal(copy().variable_data(), original()));
    EXPECT_NE(ranks_[0].copies.report(), "");
    EXPECT_EQ(ranks_[0].copies.report(), "");
  }
}

TEST_F(BufferCopiesTest, KeepWhatTheyAre) {
  at::Tensor conjugate = at::complex(at::ones({3}), at::ones({3})).conj();
  at::Tensor part = at::arange(10).narrow(0, 4, 3);
  ranks_[0].copies.add("conjugate", conjugate, GlobalRank(1), true);
  ranks_[0].copies.add("part", part, GlobalRank(1), true);
  EXPECT_EQ(part.storage_offset(), 4);
  EXPECT_EQ(part.data_ptr<std::int64_t>()[0], 4);
  EXPECT_TRUE(at::equal(part, at::arange(4, 7)));
  EXPECT_EQ(at::imag(conjugate)[0].item<float>(), -1);
}

}  // namespace buffer_copies_test
}  // namespace smp::server
