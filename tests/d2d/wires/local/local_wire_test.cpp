// Local wires keep the contract of wires with and without simulated time; groups and delays.
#include "d2d/wires/local/local_wire.h"

#include "d2d/wire/wire_contract.h"
#include "fiber/sim_clock.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Members ranks(const std::vector<int>& numbers) {
  std::vector<GlobalRank> members;
  for (const int number : numbers) members.emplace_back(number);
  return Members(members);
}

/// Wires of `members`, all of them.
class LocalWires : public WireCluster {
 public:
  LocalWires(LocalOptions options, int size, const Members& members)
      : LocalWires(std::make_shared<LocalHub>(size, options), options.clock, members) {}
  LocalWires(std::shared_ptr<LocalHub> hub, fiber::SimClock* clock, const Members& members)
      : clock_(clock) {
    for (const GlobalRank rank : members) {
      ends_.push_back(std::make_unique<WireEnd>(std::make_unique<LocalWire>(hub, rank, members)));
    }
  }

 protected:
  void advance() override {
    if (clock_ != nullptr) clock_->advance();
    WireCluster::advance();
  }

 private:
  fiber::SimClock* clock_;
};

struct PlainWires : LocalWires {
  PlainWires() : LocalWires({}, 4, Members::all(4)) {}
};
struct GroupOfWires : LocalWires {
  GroupOfWires() : LocalWires({}, 5, ranks({3, 0, 4})) {}
};
struct ClockOfWires {
  fiber::SimClock clock{7};
};
struct SimulatedWires : ClockOfWires, LocalWires {
  SimulatedWires() : LocalWires({.clock = &clock}, 4, Members::all(4)) {}
};

using AllLocalWires = testing::Types<PlainWires, GroupOfWires, SimulatedWires>;
INSTANTIATE_TYPED_TEST_SUITE_P(local_wire_test, WireContract, AllLocalWires);

TEST(LocalWire, DeliversAtTheSimulatedTimeOfArrival) {
  fiber::SimClock clock(1);
  LocalWires cluster({.clock = &clock, .fixed_delay = 500}, 2, Members::all(2));
  WireEnd& sender = *cluster.ends()[0];
  WireEnd& receiver = *cluster.ends()[1];
  const Bytes bytes(10);
  Bytes place(10);
  sender.post(GlobalRank(1), bytes);
  sender.wire().send(bytes, GlobalRank(1), 1, 2);
  receiver.wire().receive(place, GlobalRank(0), 1, 3);
  EXPECT_FALSE(receiver.wire().poll());
  EXPECT_FALSE(sender.wire().drained());
  while (clock.advance()) {
  }
  EXPECT_EQ(clock.now(), 500);
  EXPECT_TRUE(receiver.wire().poll());
  EXPECT_TRUE(sender.wire().poll());
  EXPECT_EQ(receiver.control[0].size(), 1u);
  EXPECT_THAT(receiver.received, ElementsAre(3));
  EXPECT_THAT(sender.sent, ElementsAre(2));
  EXPECT_TRUE(sender.wire().drained());
}

TEST(LocalWire, CopiesWhenItSends) {
  LocalWires cluster({}, 2, Members::all(2));
  Bytes bytes(100, std::byte{1});
  Bytes place(100);
  cluster.ends()[0]->wire().send(bytes, GlobalRank(1), 1, 1);
  bytes.assign(100, std::byte{2});
  cluster.ends()[1]->wire().receive(place, GlobalRank(0), 1, 1);
  cluster.ends()[1]->wire().poll();
  EXPECT_EQ(place, Bytes(100, std::byte{1}));
}

// A ring of random messages in simulated time; the hash of its trace.
std::uint64_t wire_trace(std::uint64_t seed, std::size_t bytes = 20) {
  fiber::SimClock clock(seed);
  LocalWires cluster({.clock = &clock}, 3, Members::all(3));
  for (std::size_t i = 0; i < 20; ++i) {
    cluster.ends()[i % 3]->post(GlobalRank(static_cast<int>((i + 1) % 3)), random_bytes(bytes, i));
  }
  cluster.run_until([](WireEnd&) { return true; });
  return clock.trace_hash();
}

TEST(LocalWire, ReplaysARunFromItsSeed) {
  EXPECT_EQ(wire_trace(1), wire_trace(1));
  EXPECT_NE(wire_trace(1), wire_trace(2));
  EXPECT_NE(wire_trace(1), wire_trace(1, 21)) << "other bytes";
}

TEST(LocalWire, LosesTheMessageItIsToldTo) {
  const auto hub = std::make_shared<LocalHub>(2);
  LocalWires cluster(hub, nullptr, Members::all(2));
  hub->lose_frame(1);
  for (const std::size_t size : {1, 2, 3}) cluster.ends()[0]->post(GlobalRank(1), Bytes(size));
  cluster.ends()[1]->wire().poll();
  EXPECT_THAT(cluster.ends()[1]->control[0], ElementsAre(Bytes(1), Bytes(3)));
  EXPECT_TRUE(cluster.ends()[0]->wire().drained());
  EXPECT_EQ(hub->frames_sent(), 3u);
}

TEST(LocalWire, GroupsHaveMessageSpacesOfTheirOwn) {
  const auto hub = std::make_shared<LocalHub>(3);
  LocalWires all(hub, nullptr, Members::all(3));
  LocalWires pair(hub, nullptr, ranks({2, 0}));
  LocalWires second(hub, nullptr, ranks({2, 0}));
  second.ends()[0]->post(GlobalRank(0), Bytes(2));
  pair.ends()[0]->post(GlobalRank(0), Bytes(1));
  all.ends()[2]->post(GlobalRank(0), Bytes(3));
  for (LocalWires* group : {&all, &pair, &second}) {
    group->run_until([](WireEnd&) { return true; });
  }
  EXPECT_THAT(all.ends()[0]->control[2], ElementsAre(Bytes(3)));
  EXPECT_THAT(pair.ends()[1]->control[2], ElementsAre(Bytes(1)));
  EXPECT_THAT(second.ends()[1]->control[2], ElementsAre(Bytes(2)));
  EXPECT_FALSE(pair.ends()[0]->wire().reaches(GlobalRank(1)));
}

TEST(LocalWire, KeepsWhatComesBeforeTheOtherEndIsOpen) {
  const auto hub = std::make_shared<LocalHub>(2);
  {
    WireEnd early(std::make_unique<LocalWire>(hub, GlobalRank(0)));
    early.post(GlobalRank(1), Bytes(5));
    EXPECT_TRUE(early.wire().close(0));
  }
  WireEnd late(std::make_unique<LocalWire>(hub, GlobalRank(1)));
  late.wire().poll();
  EXPECT_THAT(late.control[0], ElementsAre(Bytes(5)));
}

TEST(LocalWire, DropsWhatComesAfterTheOtherEndClosed) {
  LocalWires cluster({}, 2, Members::all(2));
  const Bytes bytes(10);
  cluster.ends()[0]->post(GlobalRank(1), bytes);
  EXPECT_TRUE(cluster.ends()[1]->wire().close(0));
  cluster.ends()[0]->post(GlobalRank(1), bytes);
  cluster.ends()[0]->wire().send(bytes, GlobalRank(1), 1, 1);
  cluster.ends()[0]->wire().poll();
  EXPECT_TRUE(cluster.ends()[0]->wire().drained());
  EXPECT_FALSE(cluster.ends()[1]->wire().poll());
  EXPECT_THAT(cluster.ends()[1]->control, IsEmpty());
}

TEST(LocalWire, RefusesGroupsThatCannotBe) {
  const auto hub = std::make_shared<LocalHub>(2);
  const auto open = [&](const std::vector<int>& members) {
    return refusal([&] { LocalWire(hub, GlobalRank(0), ranks(members)); });
  };
  EXPECT_THAT(open({0, 2}), AllOf(HasSubstr("{0, 2}"), HasSubstr("within 0 and 1")));
  EXPECT_THAT(open({1}), HasSubstr("rank 0"));
  EXPECT_THAT(open({0, 0}), HasSubstr("twice"));
  EXPECT_THAT(open({0, -1}), HasSubstr("-1"));
  EXPECT_THROW(LocalWire(hub, GlobalRank(2)), UsageError);
  EXPECT_THROW(LocalHub(0), UsageError);
}

}  // namespace
}  // namespace smp::d2d
