// The tree of calls, and which ways their results will go.
#include "server/replay/recorded_flow.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <set>
#include <vector>

namespace smp::server {
namespace recorded_flow_test {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::uint64_t kBranch = 100, kOtherBranch = 200;
const SendAhead kTo1{0, PpRank(1)}, kTo2{0, PpRank(2)}, kSecondTo1{1, PpRank(1)};

/// Which calls of an execution depart from the ways of those before.
std::vector<bool> follow(RecordedFlow& flow, const std::vector<std::uint64_t>& kinds,
                         ModuleId module = kBody) {
  std::vector<bool> departures;
  RecordedFlow::Way way(module);
  for (const auto kind : kinds) departures.push_back(flow.next(way, kind).departs);
  return departures;
}

TEST(RecordedFlow, KnowsEachWayOnceItWasTaken) {
  RecordedFlow flow;
  EXPECT_THAT(follow(flow, {1, kBranch, 3}), ElementsAre(true, false, false));
  EXPECT_THAT(follow(flow, {1, kBranch, 3}), ElementsAre(false, false, false));
  EXPECT_THAT(follow(flow, {1, kOtherBranch, 3}), ElementsAre(false, true, false));
  EXPECT_THAT(follow(flow, {1, kBranch, 3}), ElementsAre(false, false, false));
  EXPECT_THAT(follow(flow, {1, kOtherBranch, 3}), ElementsAre(false, false, false));
  EXPECT_THAT(follow(flow, {1, kBranch}, ModuleId{4}), ElementsAre(true, false));
  EXPECT_THAT(follow(flow, {1, 1, 1}), ElementsAre(false, true, false)) << "a loop";
  EXPECT_THAT(follow(flow, {1, 1, 1, 1}), ElementsAre(false, false, false, true));
}

TEST(RecordedFlow, ACallsResultsGoAheadOnceTheyWentTheSameWaysTwice) {
  RecordedFlow flow;
  RecordedFlow::Way way(kBody);
  auto& call = *flow.next(way, 1).call;
  EXPECT_THAT(call.ahead(), IsEmpty());
  call.went({kTo1, kSecondTo1});
  EXPECT_THAT(call.ahead(), IsEmpty());
  call.went({kTo1, kSecondTo1});
  EXPECT_THAT(call.ahead(), ElementsAre(kTo1, kSecondTo1));
  call.went({kTo2});
  EXPECT_THAT(call.ahead(), IsEmpty());
  call.went({kTo2});
  EXPECT_THAT(call.ahead(), ElementsAre(kTo2));
  call.went({{0, PpRank(2), 3}});
  EXPECT_THAT(call.ahead(), ElementsAre(kTo2)) << "the other two ask";
  call.went({{0, PpRank(2), 4}});
  EXPECT_THAT(call.ahead(), ElementsAre(SendAhead{0, PpRank(2), 3}));
  call.went({});
  call.went({});
  EXPECT_THAT(call.ahead(), IsEmpty());
}

TEST(RecordedFlow, AfterTheSameCallsItIsTheSameCall) {
  RecordedFlow flow;
  RecordedFlow::Way a(kBody), b = a, c = a;
  auto* const first = flow.next(a, 1).call;
  EXPECT_EQ(flow.next(b, 1).call, first);
  flow.next(c, 2);
  EXPECT_NE(flow.next(c, 1).call, first);
}

/// Arguments may hold a number that is another at each call.
TEST(RecordedFlow, HasAnEnd) {
  RecordedFlow flow;
  RecordedFlow::Way way(kBody);
  std::set<RecordedFlow::Call*> all;
  for (std::uint64_t i = 0; i < (1 << 16); ++i) all.insert(flow.next(way, i).call);
  EXPECT_EQ(all.size(), std::size_t{1} << 16);
  EXPECT_EQ(all.count(nullptr), 0u);
  const auto [call, departs] = flow.next(way, 1);
  EXPECT_EQ(call, nullptr);
  EXPECT_FALSE(departs);
}

}  // namespace recorded_flow_test
}  // namespace smp::server
