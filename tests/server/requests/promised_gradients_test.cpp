// A backward request starts when the gradients that other ranks send have come.
#include "server/requests/promised_gradients.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <utility>
#include <vector>

namespace smp::server {
namespace promised_gradients_test {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

const PpRank kCaller(0);

class PromisedGradientsTest : public testing::Test {
 protected:
  void add(std::uint32_t number, const std::vector<std::uint32_t>& promised) {
    BackwardRequest request;
    request.request = {number, 1};
    request.record = {number + 100, 1};
    request.microbatch = 3;
    request.gradients.resize(5);
    for (const auto index : promised) request.promised.push_back({index});
    gradients_.add({kCaller, std::move(request)});
  }
  void give(std::uint32_t number, std::uint32_t index, bool failed = false) {
    gradients_.take({kCaller, {number, 1}, index, failed, {at::full({1}, int64_t{index})}});
  }

  std::vector<std::pair<std::uint32_t, int>> started_, failed_;  // with the sum of what came
  PromisedGradients gradients_{[this](BackwardTask&& task, bool failed) {
    int sum = 0;
    for (const auto& input : task.request.promised) {
      ASSERT_EQ(input.tensors.size(), 1u);
      EXPECT_EQ(input.tensors[0].item<int>(), static_cast<int>(input.index));
      sum += input.tensors[0].item<int>();
    }
    (failed ? failed_ : started_).emplace_back(task.request.request.slot, sum);
  }};
};

TEST_F(PromisedGradientsTest, StartWhenAllHaveCome) {
  add(10, {1, 4});
  add(11, {2});
  give(10, 4);
  EXPECT_THAT(started_, IsEmpty());
  ASSERT_EQ(gradients_.waiting().size(), 2u);
  EXPECT_EQ(gradients_.waiting()[0]->request.record, (RecordId{110, 1}));
  EXPECT_EQ(gradients_.waiting()[1]->request.record, (RecordId{111, 1}));
  give(11, 2);
  give(10, 1);
  EXPECT_THAT(started_, ElementsAre(Pair(11, 2), Pair(10, 5)));
  EXPECT_EQ(gradients_.size(), 0u);
}

TEST_F(PromisedGradientsTest, MayComeBeforeTheirRequest) {
  give(10, 4);
  give(10, 1);
  give(11, 2);
  EXPECT_EQ(gradients_.size(), 2u);
  add(10, {1, 4});
  EXPECT_THAT(started_, ElementsAre(Pair(10, 5)));
  gradients_.clear();
  EXPECT_EQ(gradients_.size(), 0u);
}

TEST_F(PromisedGradientsTest, FailWithOneOfThem) {
  add(10, {1, 4});
  give(10, 1, /*failed=*/true);
  EXPECT_THAT(failed_, IsEmpty());
  give(10, 4);
  EXPECT_THAT(failed_, ElementsAre(Pair(10, 5)));
  EXPECT_THAT(started_, IsEmpty());
}

}  // namespace promised_gradients_test
}  // namespace smp::server
