// A backward request and the end of the forward that it names: whoever comes first waits.
#include <optional>
#include <utility>
#include <vector>

#include "server/admission/admission_testing.h"

namespace smp::server {
namespace early_requests_test {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr RequestId kForward{3, 1};
const RequestName kName{PpRank(2), kForward};
constexpr RecordId kRecord{7, 1};

class EarlyRequestsTest : public test::AdmissionTest {
 protected:
  void ask() {
    BackwardRequest request;
    request.request = {9, 1};
    request.early = EarlyStart{kForward, 0, 1};
    admission_.add(BackwardTask{PpRank(2), std::move(request)});
  }
  /// A forward of row `row`, which no other request of it waits for.
  void end(PpRank caller = PpRank(2), std::uint64_t row = 1) {
    ForwardRequest request;
    request.request = kForward;
    request.row = row;
    request.place = place_++;
    admission_.add(ForwardTask{caller, ForwardRequest(request), {}});
    starter_.started.clear();
    admission_.forward_ended(caller, request);
  }
  /// Of the backward that started.
  RecordId record() const { return starter_.backwards.back().request.record; }

  std::uint32_t place_ = 0;
};

TEST_F(EarlyRequestsTest, RunWhenTheForwardHasAnswered) {
  ask();
  EXPECT_THAT(reasons(), ElementsAre(Reason::kForwardOfEarlyBackward));
  admission_.note_record(kName, kRecord, true);
  EXPECT_THAT(starter_.backwards, IsEmpty());
  end();
  EXPECT_THAT(starter_.started, ElementsAre(9u));
  EXPECT_EQ(record(), kRecord);
  end();
  EXPECT_THAT(starter_.backwards, testing::SizeIs(1));
  EXPECT_THAT(reasons(), IsEmpty());
}

TEST_F(EarlyRequestsTest, MayComeAfterIt) {
  admission_.note_record(kName, kRecord, true);
  end();
  ask();
  EXPECT_THAT(starter_.started, ElementsAre(9u));
  EXPECT_EQ(record(), kRecord);
}

TEST_F(EarlyRequestsTest, DoNotRunIfItFailed) {
  ask();
  end();
  EXPECT_THAT(starter_.failed, ElementsAre(9u));
  EXPECT_FALSE(record());
}

TEST_F(EarlyRequestsTest, DoNotRunIfItWasNotAsPromised) {
  admission_.note_record(kName, kRecord, false);
  end();
  ask();
  EXPECT_THAT(starter_.failed, ElementsAre(9u));
  EXPECT_FALSE(record());
}

TEST_F(EarlyRequestsTest, OfAnotherCallerAreOthers) {
  admission_.note_record({PpRank(1), kForward}, kRecord, true);
  end(PpRank(1));
  ask();
  EXPECT_THAT(starter_.backwards, IsEmpty());
  end();
  EXPECT_FALSE(record());
}

/// Its gradient comes from a backward that knows that all forwards have ended.
TEST_F(EarlyRequestsTest, WaitForTheirGradientOnlyIfOneIsPromised) {
  BackwardRequest request;
  request.request = {9, 1};
  request.early = EarlyStart{kForward, -1, 1};
  request.promised.push_back({0});
  admission_.add(BackwardTask{PpRank(2), std::move(request)});
  admission_.note_record(kName, kRecord, true);
  EXPECT_THAT(reasons(), ElementsAre(Reason::kPromisedGradient));
  admission_.take({PpRank(2), {9, 1}, 0});
  EXPECT_THAT(starter_.started, ElementsAre(9u));
  EXPECT_EQ(record(), kRecord);
}

}  // namespace early_requests_test
}  // namespace smp::server
