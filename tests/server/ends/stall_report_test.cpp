// Of several ranks that a stall holds up, one reports it, with waits as old as they are.
#include "server/ends/stall_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "d2d/wires/local/local_wire.h"
#include "fiber/scheduler.h"
#include "server/hand_clock.h"

namespace smp::server {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const char* const kFirst =
    "rank 1, backward, microbatch 11, for rank 0: waits for a gradient that comes from";
const char* const kSecond =
    "rank 2, backward, microbatch 12, for rank 0: waits for a gradient that comes from";

class StallReportTest : public testing::Test {
 protected:
  struct Rank {
    Rank(StallReportTest& test, int number)
        : channel(std::make_unique<d2d::LocalWire>(test.hub_, GlobalRank(number))),
          port(channel, {GlobalRank(0), GlobalRank(1), GlobalRank(2)}),
          waiting(test.clock_),
          report(port, test.modules_, test.clock_, waiting) {
      waiting.add(Reason::kPromisedGradient, 10 + number, kBody, BackwardTask{PpRank(0), {}});
      port.open(
          [this](PpRank source, std::int64_t, Message&& message) {
            if (std::holds_alternative<StallQuestion>(message)) return report.on_question(source);
            report.on_answer(source, std::get<StallAnswer>(std::move(message)));
          },
          [](std::exception_ptr) { FAIL(); });
    }
    d2d::Channel channel;
    PipelinePort port;
    WaitingList waiting;
    StallReport report;
  };

  void SetUp() override {
    fiber::Scheduler::install();
    for (int rank = 0; rank < 3; ++rank) ranks_.push_back(std::make_unique<Rank>(*this, rank));
  }
  void pass(double seconds) {
    clock_.time += static_cast<base::Nanoseconds>(seconds * base::kSecond);
  }
  /// Messages between all ranks but `stopped`, then what they have to say.
  void talk(int stopped = -1) {
    for (int round = 0; round < 4; ++round) {
      for (int rank = 0; rank < 3; ++rank) {
        if (rank == stopped) continue;
        while (ranks_[rank]->channel.poll()) {
        }
      }
    }
    for (int rank = 0; rank < 3; ++rank) {
      if (rank != stopped) ranks_[rank]->report.poll();
    }
  }
  int reports() const {
    int count = 0;
    const auto text = log_.text();
    for (std::size_t at = 0; (at = text.find("nothing happened", at)) != text.npos; ++at) ++count;
    return count;
  }

  base::LogCapture log_;
  HandClock clock_;
  ModuleTable modules_;
  std::shared_ptr<d2d::LocalHub> hub_ = std::make_shared<d2d::LocalHub>(3);
  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST_F(StallReportTest, TheLowestOfThoseThatAskAtOnceReports) {
  ranks_[2]->report.ask(30);
  ranks_[1]->report.ask(30);
  talk(0);
  pass(1.5);
  talk(0);
  EXPECT_EQ(reports(), 1);
  EXPECT_THAT(log_.text(), AllOf(HasSubstr("rank 1: nothing happened for 30 s"), HasSubstr(kFirst),
                                 HasSubstr(kSecond), HasSubstr("rank 0 does not answer")));
  EXPECT_EQ(ranks_[2]->report.reporter(31.5), PpRank(1));
  EXPECT_FALSE(ranks_[1]->report.reporter(31.5));
}

TEST_F(StallReportTest, WhoIsAskedInAStallDoesNotReportIt) {
  ranks_[2]->report.ask(30);
  talk(0);
  pass(5);
  talk(0);
  ranks_[1]->report.ask(20);
  talk(0);
  pass(5);
  talk(0);
  EXPECT_EQ(reports(), 1);
  EXPECT_EQ(ranks_[1]->report.reporter(25), PpRank(2));
}

TEST_F(StallReportTest, ALaterStallIsReportedAnew) {
  ranks_[2]->report.ask(30);
  talk(0);
  pass(60);
  talk(0);
  ranks_[1]->report.ask(30);
  talk(0);
  pass(2);
  talk(0);
  EXPECT_EQ(reports(), 2);
  EXPECT_FALSE(ranks_[1]->report.reporter(32));
}

TEST_F(StallReportTest, WhatOthersWaitForGrowsOlder) {
  ranks_[1]->port.send(PpRank(0), Message(StallAnswer{"2500000000 rank 1 waits for an answer\n"}));
  talk(2);
  pass(4);
  EXPECT_THAT(ranks_[0]->report.text(7), HasSubstr("rank 1 waits for an answer, for 6.5 s"));
}

TEST_F(StallReportTest, AskingAgainReportsNothing) {
  ranks_[1]->report.refresh(30);
  talk(0);
  pass(2);
  talk(0);
  EXPECT_EQ(reports(), 0);
  EXPECT_THAT(ranks_[1]->report.text(32), HasSubstr(kSecond));
  EXPECT_EQ(ranks_[2]->report.reporter(32), PpRank(1));
}

/// With its reason, and since when; requests of one execution as one, fibers not: the scheduler
/// tells of these.
TEST_F(StallReportTest, WhatMayNotStartIsTold) {
  auto& rank = *ranks_[1];
  const auto forward = [&rank](Reason reason, int microbatch, std::uint64_t row) {
    ForwardTask task{PpRank(2), {}, {}};
    task.request.row = row;
    rank.waiting.add(reason, microbatch, kBody, std::move(task));
  };
  forward(Reason::kRow, 3, 7);
  forward(Reason::kRow, 4, 7);
  forward(Reason::kRow, 5, 8);
  pass(2.5);
  forward(Reason::kWindow, 6, 0);
  rank.waiting.add(Reason::kBackwardGate, 9, kBody);
  const auto text = rank.report.text(1);
  EXPECT_THAT(text,
              AllOf(HasSubstr("rank 1, microbatch 3, for rank 2: waits for an earlier request "
                              "of the same execution, for 2.5 s"),
                    HasSubstr("microbatch 5, for rank 2"), Not(HasSubstr("microbatch 4")),
                    Not(HasSubstr("microbatch 9"))));
  EXPECT_THAT(text, HasSubstr("rank 1, microbatch 6, for rank 2: waits for a lower microbatch to "
                              "end here, as the schedule wants, for 0 s"));
}

}  // namespace
}  // namespace smp::server
