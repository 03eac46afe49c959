// Writes to weights are seen by their version, or by a few elements.
#include "server/modules/weight_watch.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <string>

#include "support/refusal.h"

namespace smp::server {
namespace weight_watch_test {

using testing::HasSubstr;

class WeightWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    watch_.add("one", one_);
    watch_.add("two", two_);
    watch_.begin_step();
  }
  at::Tensor one_ = at::ones({2, 2}), two_ = at::ones({3});
  WeightWatch watch_;
};

TEST_F(WeightWatchTest, NamesTheFirstThatWasWritten) {
  EXPECT_EQ(watch_.written(), "");
  watch_.refuse_written(GlobalRank(1), 0);
  two_.add_(1);
  EXPECT_EQ(watch_.written(), "two");
  one_.data().add_(1);  // which no version shows
  EXPECT_EQ(watch_.written(), "one");
  EXPECT_THAT(refusal([&] { watch_.refuse_written(GlobalRank(1), 3); }),
              HasSubstr("rank 1: parameter 'one' was written while microbatch 3"));
  watch_.begin_step();
  EXPECT_EQ(watch_.written(), "");
}

TEST_F(WeightWatchTest, KnowsViewsOfWhatWasWritten) {
  EXPECT_FALSE(watch_.has_written(one_));
  one_.add_(1);
  EXPECT_TRUE(watch_.has_written(one_));
  EXPECT_TRUE(watch_.has_written(one_.t()));
  EXPECT_FALSE(watch_.has_written(two_));
  EXPECT_FALSE(watch_.has_written(at::ones({2}))) << "a stranger";
  EXPECT_FALSE(watch_.has_written(at::Tensor()));
}

TEST_F(WeightWatchTest, LooksAgain) {
  one_.add_(1);
  watch_.look_again(one_);
  EXPECT_EQ(watch_.written(), "");
  two_.add_(1);
  watch_.look_again(one_);
  EXPECT_EQ(watch_.written(), "two");
}

}  // namespace weight_watch_test
}  // namespace smp::server
