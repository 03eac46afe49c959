// Edit distance and "did you mean".
#include "base/text/edit_distance.h"

#include <gtest/gtest.h>

namespace smp::base {
namespace {

TEST(Nearest, CountsEditsAndSwaps) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("pipeline", "pipeline"), 0);
  EXPECT_EQ(edit_distance("pipline", "pipeline"), 1);
  EXPECT_EQ(edit_distance("pipeilne", "pipeline"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(Nearest, OffersOnlyWhatIsNear) {
  const std::vector<std::string> keys = {"pipeline", "partitions", "seed"};
  EXPECT_EQ(did_you_mean("pipline", keys), "; did you mean \"pipeline\"?");
  EXPECT_EQ(did_you_mean("sede", keys), "; did you mean \"seed\"?");
  EXPECT_EQ(did_you_mean("checkpoint", keys), "");
}

}  // namespace
}  // namespace smp::base
