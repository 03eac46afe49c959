// Calls that were given up are launched if they have a turn, and forgotten once they cannot get
// one.
#include "d2d/collectives/launch_order.h"

#include <gtest/gtest.h>

namespace smp::d2d {
namespace launch_order_test {

struct CountedCall final : DeviceCall {
  explicit CountedCall(int& count) : launched(count) {}
  bool launch() override {
    ++launched;
    return true;
  }
  void join() override {}
  int& launched;
};

CollectiveId id_of(std::uint64_t lane, std::uint64_t number, std::uint64_t epoch = 0) {
  return {{1, lane, epoch}, number};
}

std::shared_ptr<AnnouncedCall> announced(LaunchOrder& order, const CollectiveId& id, int& count) {
  auto call = std::make_shared<AnnouncedCall>(std::make_unique<CountedCall>(count));
  order.announce(id, call);
  return call;
}

TEST(LaunchOrder, ForgetsEarlierCallsOfALaneThatWereGivenUp) {
  LaunchOrder order;
  int launched = 0;
  announced(order, id_of(5, 0), launched)->awaited = false;
  announced(order, id_of(6, 0), launched)->awaited = false;
  const auto next = announced(order, id_of(5, 1), launched);
  order.set_turn(id_of(5, 1), 0);
  EXPECT_TRUE(order.launch());
  EXPECT_EQ(launched, 1);
  EXPECT_EQ(order.announced(), 1u) << "that of the other lane may still get its turn";
}

TEST(LaunchOrder, ForgetsCallsOfEarlierEpochsThatWereGivenUp) {
  LaunchOrder order;
  int launched = 0;
  announced(order, id_of(5, 0, /*epoch=*/2), launched)->awaited = false;
  announced(order, id_of(6, 0, /*epoch=*/3), launched)->awaited = false;
  const auto next = announced(order, id_of(7, 0, /*epoch=*/3), launched);
  order.set_turn(id_of(7, 0, 3), 0);
  EXPECT_TRUE(order.launch());
  EXPECT_EQ(order.announced(), 1u);
}

TEST(LaunchOrder, LaunchesAGivenUpCallWhoseTurnComes) {
  LaunchOrder order;
  int launched = 0;
  announced(order, id_of(5, 0), launched)->awaited = false;
  order.set_turn(id_of(5, 0), 0);
  EXPECT_TRUE(order.launch());
  EXPECT_EQ(launched, 1);
}

}  // namespace launch_order_test
}  // namespace smp::d2d
