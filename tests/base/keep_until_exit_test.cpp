// What is kept does not end.
#include "base/keep_until_exit.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

namespace smp::base {
namespace keep_until_exit_test {

TEST(KeepUntilExit, DestroysNothing) {
  std::weak_ptr<int> first, second;
  for (auto* const watched : {&first, &second}) {
    auto thing = std::make_shared<int>(7);
    *watched = thing;
    keep_until_exit(std::move(thing));
  }
  EXPECT_EQ(first.use_count(), 1);
  EXPECT_EQ(second.use_count(), 1);
}

}  // namespace keep_until_exit_test
}  // namespace smp::base
