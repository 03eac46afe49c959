// A backward request starts when the gradients that other ranks send have come.
#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "server/admission/admission_testing.h"

namespace smp::server {
namespace promised_gradients_test {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

const PpRank kCaller(0);

class PromisedGradientsTest : public test::AdmissionTest {
 protected:
  void add(std::uint32_t number, const std::vector<std::uint32_t>& promised) {
    BackwardRequest request;
    request.request = {number, 1};
    request.record = {number + 100, 1};
    request.microbatch = 3;
    request.gradients.resize(5);
    for (const auto index : promised) request.promised.push_back({index});
    admission_.add(BackwardTask{kCaller, std::move(request)}, ModuleId{static_cast<int>(number)});
  }
  void give(std::uint32_t number, std::uint32_t index, bool failed = false) {
    admission_.take({kCaller, {number, 1}, index, failed, {at::full({1}, int64_t{index})}});
  }

  /// Those that started or failed, with the sum of what came.
  std::vector<std::pair<std::uint32_t, int>> ended() const {
    std::vector<std::pair<std::uint32_t, int>> all;
    for (const auto& task : starter_.backwards) {
      int sum = 0;
      for (const auto& input : task.request.promised) {
        EXPECT_EQ(input.tensors.size(), 1u);
        EXPECT_EQ(input.tensors.at(0).item<int>(), static_cast<int>(input.index));
        sum += input.tensors[0].item<int>();
      }
      all.emplace_back(task.request.request.slot, sum);
    }
    return all;
  }
};

TEST_F(PromisedGradientsTest, StartWhenAllHaveCome) {
  add(10, {1, 4});
  add(11, {2});
  give(10, 4);
  EXPECT_THAT(ended(), IsEmpty());
  EXPECT_THAT(reasons(), ElementsAre(Reason::kPromisedGradient, Reason::kPromisedGradient));
  EXPECT_THAT(waiting(), ElementsAre(3, 3));
  EXPECT_EQ(list_.begin()->module, ModuleId{10});
  EXPECT_EQ(std::next(list_.begin())->module, ModuleId{11});
  give(11, 2);
  give(10, 1);
  EXPECT_THAT(ended(), ElementsAre(Pair(11, 2), Pair(10, 5)));
  EXPECT_THAT(starter_.started, ElementsAre(11, 10));
  EXPECT_EQ(starter_.backwards[0].request.record, (RecordId{111, 1}));
  EXPECT_EQ(admission_.size(), 0u);
}

TEST_F(PromisedGradientsTest, MayComeBeforeTheirRequest) {
  give(10, 4);
  give(10, 1);
  give(11, 2);
  EXPECT_EQ(admission_.size(), 2u);
  add(10, {1, 4});
  EXPECT_THAT(ended(), ElementsAre(Pair(10, 5)));
  admission_.clear();
  EXPECT_EQ(admission_.size(), 0u);
}

TEST_F(PromisedGradientsTest, FailWithOneOfThem) {
  add(10, {1, 4});
  give(10, 1, /*failed=*/true);
  EXPECT_THAT(starter_.failed, IsEmpty());
  give(10, 4);
  EXPECT_THAT(ended(), ElementsAre(Pair(10, 5)));
  EXPECT_THAT(starter_.failed, ElementsAre(10));
  EXPECT_THAT(starter_.started, IsEmpty());
}

}  // namespace promised_gradients_test
}  // namespace smp::server
