// Requests of one execution start in their order, each when its inputs are there.
#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "server/admission/admission_testing.h"

namespace smp::server {
namespace rows_test {

using testing::ElementsAre;
using testing::IsEmpty;

const PpRank kSelf(1), kOther(2), kCaller(0);

class RequestRowsTest : public test::AdmissionTest {
 protected:
  /// Request `number` of row `row`, with inputs from the ranks in `sources`.
  void add(std::uint64_t row, std::uint32_t place, std::uint32_t number,
           const std::vector<PpRank>& sources = {}) {
    ForwardRequest request;
    request.request = {number, 1};
    request.microbatch = 3;
    request.module = ModuleId{static_cast<int>(number)};
    request.row = row;
    request.place = place;
    for (std::uint32_t i = 0; i < sources.size(); ++i) {
      request.promised.push_back({i, {sources[i], {90 + i, 1}, 0}});
    }
    admission_.add(ForwardTask{kCaller, std::move(request), {}});
  }
  void give(std::uint32_t number, std::uint32_t index, bool failed = false) {
    admission_.take({kCaller, {number, 1}, index, failed, {at::ones({1})}});
  }
  /// The one that started last.
  void end() {
    const auto& last = starter_.forwards.back();
    admission_.forward_ended(last.source, last.request);
  }
  /// PromisedInput::shared of all inputs that came.
  std::vector<bool> shared() const {
    std::vector<bool> all;
    for (const auto& forward : starter_.forwards) {
      for (const auto& input : forward.request.promised) {
        EXPECT_FALSE(input.tensors.empty());
        all.push_back(input.shared);
      }
    }
    return all;
  }

  const std::vector<std::uint32_t>&started_ = starter_.started, &failed_ = starter_.failed;
};

TEST_F(RequestRowsTest, StartInOrderAndOneAfterTheOther) {
  add(5, 1, 11);
  add(5, 0, 10);  // overtaken
  add(5, 2, 12);
  EXPECT_THAT(started_, ElementsAre(10));
  end();
  EXPECT_THAT(started_, ElementsAre(10, 11));
  end();
  EXPECT_THAT(started_, ElementsAre(10, 11, 12));
  end();
  add(5, 3, 13);
  EXPECT_THAT(started_, ElementsAre(10, 11, 12, 13));
}

/// One that fails ends in the midst of its start.
TEST_F(RequestRowsTest, ARowThatFailsNeedsNoDeepStack) {
  int depth = 0, deepest = 0, ended = 0;
  starter_.on_forward = [&](const ForwardTask& task, bool failed) {
    deepest = std::max(deepest, ++depth);
    ended += failed ? 1 : 0;
    admission_.forward_ended(task.source, ForwardRequest(task.request));
    --depth;
  };
  for (std::uint32_t i = 0; i < 1000; ++i) {
    ForwardRequest request;
    request.request = {i, 1};
    request.row = 5;
    request.place = i;
    request.promised.push_back({0, {kOther, {90, 1}, 0}});
    admission_.add(ForwardTask{kCaller, std::move(request), {}});
  }
  for (std::uint32_t i = 1000; i-- > 0;) admission_.take({kCaller, {i, 1}, 0, true, {}});
  EXPECT_EQ(ended, 1000);
  EXPECT_EQ(deepest, 1);
}

/// While requests before it run, and while its inputs have not come.
TEST_F(RequestRowsTest, SayWhatTheyWaitFor) {
  add(5, 0, 10);
  add(5, 1, 11);
  add(5, 2, 12, {kOther});
  EXPECT_THAT(reasons(), ElementsAre(Reason::kRow, Reason::kPromisedInput));
  give(12, 0);
  EXPECT_THAT(reasons(), ElementsAre(Reason::kRow, Reason::kRow));
  end();
  end();
  EXPECT_THAT(started_, ElementsAre(10, 11, 12));
  EXPECT_THAT(reasons(), IsEmpty());
}

TEST_F(RequestRowsTest, OfOtherExecutionsDoNotWaitForEachOther) {
  add(5, 0, 10, {kOther});
  add(6, 0, 20);
  EXPECT_THAT(started_, ElementsAre(20));
  EXPECT_THAT(waiting(), ElementsAre(3));
  EXPECT_EQ(list_.begin()->module, ModuleId{10});
  EXPECT_EQ(*list_.begin()->asker(), kCaller);
  EXPECT_THAT(reasons(), ElementsAre(Reason::kPromisedInput));
}

TEST_F(RequestRowsTest, WaitForAllInputsAndAskForThoseOfTheirOwnRank) {
  add(5, 0, 10, {kOther, kSelf});
  EXPECT_THAT(starter_.asked, ElementsAre(91));
  add(5, 1, 11);
  give(10, 1);
  EXPECT_THAT(started_, IsEmpty());
  give(10, 0);
  EXPECT_THAT(started_, ElementsAre(10));
  end();
  EXPECT_THAT(started_, ElementsAre(10, 11));
  EXPECT_EQ(admission_.size(), 0u);
}

/// Output `output` of request 90 is input 0 of request `number`, and nobody has to ask for it.
class InputsThatComeAhead : public RequestRowsTest {
 protected:
  void add_consumer(std::uint32_t number, std::uint32_t output, std::uint32_t place) {
    ForwardRequest request;
    request.request = {number, 1};
    request.row = 5;
    request.place = place;
    request.promised.push_back({0, {kOther, {90, 1}, output}, /*ahead=*/true});
    admission_.add(ForwardTask{kCaller, std::move(request), {}});
  }
  void give_ahead(std::uint32_t output, PpRank caller = kCaller, bool failed = false,
                  std::uint32_t times = 1) {
    PassedOn message{caller, {90, 1}, output, failed, {at::ones({1})}};
    message.ahead = true;
    message.times = times;
    admission_.take(std::move(message));
  }
};

TEST_F(InputsThatComeAhead, MayComeBeforeTheRequestOrAfterIt) {
  give_ahead(7);
  give_ahead(8, PpRank(3));  // a request of the same number, of another caller
  EXPECT_EQ(admission_.size(), 2u);
  add_consumer(10, 8, 0);
  EXPECT_THAT(started_, IsEmpty());
  give_ahead(8);
  EXPECT_THAT(started_, ElementsAre(10));
  end();
  add_consumer(11, 7, 1);
  EXPECT_THAT(started_, ElementsAre(10, 11));
  EXPECT_THAT(starter_.asked, IsEmpty());
  EXPECT_EQ(admission_.size(), 1u);
  admission_.clear();
  EXPECT_EQ(admission_.size(), 0u);
}

/// Two of three requests are there before it, in either order.
TEST_F(InputsThatComeAhead, ComeOnceForSeveralRequests) {
  add_consumer(11, 7, 1);
  add_consumer(10, 7, 0);
  give_ahead(7, kCaller, /*failed=*/false, /*times=*/3);
  EXPECT_THAT(started_, ElementsAre(10));
  end();
  EXPECT_THAT(started_, ElementsAre(10, 11));
  EXPECT_EQ(admission_.size(), 1u) << "kept for the third";
  end();
  add_consumer(12, 7, 2);
  EXPECT_THAT(started_, ElementsAre(10, 11, 12));
  EXPECT_EQ(admission_.size(), 0u);
  EXPECT_THAT(shared(), ElementsAre(true, true, true));
  end();
  add_consumer(13, 8, 3);
  give_ahead(8);
  EXPECT_FALSE(shared().back());
}

TEST_F(InputsThatComeAhead, OfACallThatFailedFailAllTheirRequests) {
  add_consumer(10, 7, 0);
  give_ahead(7, kCaller, /*failed=*/true, /*times=*/2);
  end();
  add_consumer(11, 7, 1);
  EXPECT_THAT(failed_, ElementsAre(10, 11));
  EXPECT_EQ(admission_.size(), 0u);
}

TEST_F(InputsThatComeAhead, MayBeTakenByFewerThanWereTold) {
  give_ahead(7, kCaller, /*failed=*/false, /*times=*/3);
  add_consumer(10, 7, 0);
  EXPECT_EQ(admission_.size(), 1u);
  admission_.clear();
  EXPECT_EQ(admission_.size(), 0u);
}

TEST_F(InputsThatComeAhead, OfACallThatFailedFailTheirRequest) {
  give_ahead(7, kCaller, /*failed=*/true);
  add_consumer(10, 7, 0);
  EXPECT_THAT(failed_, ElementsAre(10));
}

/// The first of two that start ends the step.
TEST_F(InputsThatComeAhead, AreForgottenWhileTheyAreGiven) {
  starter_.on_forward = [&](const ForwardTask&, bool) { admission_.clear(); };
  for (const std::uint32_t number : {10u, 11u}) {
    ForwardRequest request;
    request.request = {number, 1};
    request.row = number;
    request.promised.push_back({0, {kOther, {90, 1}, 7}, /*ahead=*/true});
    admission_.add(ForwardTask{kCaller, std::move(request), {}});
  }
  PassedOn message{kCaller, {90, 1}, 7, false, {at::ones({1})}};
  message.ahead = true;
  message.times = 2;
  admission_.take(std::move(message));
  EXPECT_THAT(started_, testing::SizeIs(1));
  EXPECT_EQ(admission_.size(), 0u);
}

TEST_F(InputsThatComeAhead, AreForgottenWithTheStep) {
  add_consumer(10, 7, 0);
  admission_.clear();
  give_ahead(7);
  EXPECT_THAT(started_, IsEmpty());
}

TEST_F(RequestRowsTest, MayComeAfterTheirInputs) {
  give(10, 0);
  EXPECT_EQ(admission_.size(), 1u);
  add(5, 0, 10, {kOther});
  EXPECT_THAT(started_, ElementsAre(10));
}

TEST_F(RequestRowsTest, FailWithAnInput) {
  add(5, 0, 10, {kOther, kOther});
  give(10, 0, /*failed=*/true);
  EXPECT_THAT(failed_, IsEmpty());
  give(10, 1);
  EXPECT_THAT(failed_, ElementsAre(10));
  EXPECT_THAT(started_, IsEmpty());
}

}  // namespace rows_test
}  // namespace smp::server
