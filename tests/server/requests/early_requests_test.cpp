// A backward request and the end of the forward that it names: whoever comes first waits.
#include "server/requests/early_requests.h"

#include <gmock/gmock.h>

#include <utility>
#include <vector>

namespace smp::server {
namespace early_requests_test {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr RequestId kForward{3, 1};
const RequestName kName{PpRank(2), kForward};
constexpr RecordId kRecord{7, 1};

class EarlyRequestsTest : public testing::Test {
 protected:
  void ask() {
    BackwardRequest request;
    request.request = {9, 1};
    request.early = EarlyStart{kForward, 0, 1};
    early_.add({PpRank(2), std::move(request)});
  }
  std::vector<std::pair<std::uint32_t, bool>> started_;
  EarlyRequests early_{[this](BackwardTask&& task, bool may_run) {
    started_.emplace_back(task.request.request.slot, may_run);
  }};
};

TEST_F(EarlyRequestsTest, RunWhenTheForwardHasAnswered) {
  ask();
  early_.note(kName, kRecord, true);
  EXPECT_THAT(started_, IsEmpty());
  early_.ended(kName);
  EXPECT_THAT(started_, ElementsAre(Pair(9u, true)));
  EXPECT_EQ(early_.record_of(kName), kRecord);
  early_.ended(kName);
  EXPECT_THAT(started_, testing::SizeIs(1));
}

TEST_F(EarlyRequestsTest, MayComeAfterIt) {
  early_.note(kName, kRecord, true);
  early_.ended(kName);
  ask();
  EXPECT_THAT(started_, ElementsAre(Pair(9u, true)));
}

TEST_F(EarlyRequestsTest, DoNotRunIfItFailedOrWasNotAsPromised) {
  ask();
  early_.ended(kName);
  EXPECT_THAT(started_, ElementsAre(Pair(9u, false)));
  early_.clear();
  early_.note(kName, kRecord, false);
  early_.ended(kName);
  EXPECT_FALSE(early_.record_of(kName));
  ask();
  EXPECT_THAT(started_, ElementsAre(Pair(9u, false), Pair(9u, false)));
}

TEST_F(EarlyRequestsTest, OfAnotherCallerAreOthers) {
  early_.note({PpRank(1), kForward}, kRecord, true);
  early_.ended({PpRank(1), kForward});
  ask();
  EXPECT_THAT(started_, IsEmpty());
  EXPECT_FALSE(early_.record_of(kName));
}

}  // namespace early_requests_test
}  // namespace smp::server
