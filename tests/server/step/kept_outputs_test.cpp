// Outputs that may be passed on: whoever asks gets them once they are there, however early he asks.
#include "server/step/kept_outputs.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace smp::server {
namespace kept_outputs_test {

constexpr RequestId kRequest{3, 1}, kConsumer{5, 2};
const RequestName kName{PpRank(0), kRequest};

class KeptOutputsTest : public testing::Test {
 protected:
  static PassOn to(int rank, std::uint32_t output, std::uint32_t index) {
    return {kRequest, output, PpRank(rank), kConsumer, index};
  }
  void keep(bool unusual = false) {
    std::vector<KeptOutput> outputs(2);
    outputs[0].tensors = {at::full({1}, 7)};
    outputs[1].tensors = {at::full({1}, 8)};
    kept_.keep(kName, std::move(outputs), unusual);
  }
  double value(std::size_t i) const { return sent_.at(i).second.tensors.at(0).item<double>(); }

  std::vector<std::pair<int, PassedOn>> sent_;
  KeptOutputs kept_{[this](PpRank rank, PassedOn&& message) {
    sent_.emplace_back(rank.value(), std::move(message));
  }};
};

TEST_F(KeptOutputsTest, AreSentWhenTheyAreThere) {
  kept_.expect(kName);
  kept_.pass_on(PpRank(0), to(2, 1, 4));
  EXPECT_TRUE(sent_.empty());
  keep();
  kept_.pass_on(PpRank(0), to(1, 0, 3));
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[0].first, 2);
  EXPECT_EQ(value(0), 8);
  EXPECT_EQ(sent_[0].second.caller, PpRank(0));
  EXPECT_EQ(sent_[0].second.consumer, kConsumer);
  EXPECT_EQ(sent_[0].second.index, 4u);
  EXPECT_EQ(sent_[1].first, 1);
  EXPECT_EQ(value(1), 7);
  EXPECT_EQ(kept_.size(), 1u);
  kept_.release(kName);
  EXPECT_EQ(kept_.size(), 0u);
}

TEST_F(KeptOutputsTest, SayWhetherTheirCallEndedAsPromised) {
  for (const bool unusual : {false, true}) {
    kept_.expect(kName);
    kept_.pass_on(PpRank(0), to(2, 1, 0));
    keep(unusual);
    kept_.release(kName);
    EXPECT_EQ(sent_.back().second.unusual, unusual);
  }
}

/// A request with large tensors comes after small messages about it.
TEST_F(KeptOutputsTest, MayBeAskedForAndReleasedBeforeTheirRequestComes) {
  kept_.pass_on(PpRank(0), to(2, 0, 0));
  kept_.release(kName);
  kept_.expect(kName);
  EXPECT_TRUE(sent_.empty());
  keep();
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(value(0), 7);
  EXPECT_EQ(kept_.size(), 0u);
}

TEST_F(KeptOutputsTest, GoAheadToWhoeverWillNeedThem) {
  kept_.expect(kName, {{1, PpRank(2), 4}, {0, PpRank(3)}});
  kept_.release(kName);
  EXPECT_TRUE(sent_.empty());
  keep();
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[0].first, 2);
  EXPECT_EQ(value(0), 8);
  EXPECT_TRUE(sent_[0].second.ahead);
  EXPECT_EQ(sent_[0].second.caller, PpRank(0));
  EXPECT_EQ(sent_[0].second.consumer, kRequest) << "the name under which it is known";
  EXPECT_EQ(sent_[0].second.index, 1u);
  EXPECT_EQ(sent_[0].second.times, 4u);
  EXPECT_EQ(sent_[1].first, 3);
  EXPECT_EQ(sent_[1].second.index, 0u);
  EXPECT_EQ(sent_[1].second.times, 1u);
  EXPECT_EQ(kept_.size(), 0u);
}

TEST_F(KeptOutputsTest, OfAFailedRequestAreAWord) {
  kept_.expect(kName);
  kept_.pass_on(PpRank(0), to(2, 1, 0));
  kept_.fail(kName);
  kept_.pass_on(PpRank(0), to(1, 0, 0));
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_TRUE(sent_[0].second.failed);
  EXPECT_TRUE(sent_[1].second.failed);
  EXPECT_TRUE(sent_[1].second.tensors.empty());
  kept_.fail({PpRank(1), kRequest});  // of a request that keeps nothing
  EXPECT_EQ(kept_.size(), 1u);
}

}  // namespace kept_outputs_test
}  // namespace smp::server
