// Stages of a pipeline that are any ranks of the job.
#include "server/protocol/pipeline_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "d2d/wires/local/local_wire.h"
#include "server/protocol/exception_text.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The last two of five ranks are a pipeline, in descending order.
class PipelinePortTest : public ::testing::Test {
 protected:
  struct Rank {
    Rank(const std::shared_ptr<d2d::LocalHub>& hub, int number,
         const std::vector<GlobalRank>& stages)
        : channel(std::make_unique<d2d::LocalWire>(hub, GlobalRank(number))),
          port(channel, stages) {
      port.open(
          [this](PpRank source, std::int64_t step, Message&& message) {
            EXPECT_TRUE(port.receiving());
            received.push_back({source, step});
            microbatches.push_back(std::get<MicrobatchDone>(message).microbatch);
          },
          [this](std::exception_ptr error) { errors.push_back(text_of(error)); });
    }
    void poll() {
      while (channel.poll()) {
      }
    }
    d2d::Channel channel;
    PipelinePort port;
    std::vector<std::pair<PpRank, std::int64_t>> received;
    std::vector<int> microbatches;
    std::vector<std::string> errors;
  };

  std::shared_ptr<d2d::LocalHub> hub_ = std::make_shared<d2d::LocalHub>(5);
  std::vector<GlobalRank> stages_{GlobalRank(4), GlobalRank(3)};
  Rank first_{hub_, 4, stages_};
  Rank second_{hub_, 3, stages_};
};

TEST_F(PipelinePortTest, KnowsItsStageAndTheRanksOfAll) {
  EXPECT_EQ(first_.port.rank(), PpRank(0));
  EXPECT_EQ(second_.port.rank(), PpRank(1));
  EXPECT_TRUE(first_.port.is_first());
  EXPECT_FALSE(second_.port.is_first());
  EXPECT_EQ(first_.port.size(), 2);
  EXPECT_EQ(second_.port.name(), GlobalRank(3));
  EXPECT_EQ(second_.port.name(PpRank(0)), GlobalRank(4));
}

TEST_F(PipelinePortTest, MessagesCarryStageAndStep) {
  second_.port.begin_step();
  second_.port.begin_step();
  second_.port.send(PpRank(0), Message(MicrobatchDone{7}));
  first_.poll();
  EXPECT_THAT(first_.received, ElementsAre(std::pair(PpRank(1), std::int64_t{2})));
  EXPECT_THAT(first_.microbatches, ElementsAre(7));
  first_.port.send(PpRank(1), Message(MicrobatchDone{8}));
  second_.poll();
  EXPECT_THAT(second_.received, ElementsAre(std::pair(PpRank(0), std::int64_t{0})));
  EXPECT_FALSE(first_.port.receiving());
}

TEST_F(PipelinePortTest, ABrokenWayKeepsItsReason) {
  first_.port.require_open();
  d2d::LocalWire stranger(hub_, GlobalRank(2));
  d2d::ByteBuffer nonsense;
  nonsense.resize(100);
  std::fill_n(nonsense.data(), 100, std::byte{1});
  stranger.post(GlobalRank(4), std::move(nonsense));
  first_.poll();
  EXPECT_THAT(first_.errors, ElementsAre(AllOf(HasSubstr("rank 4"), HasSubstr("malformed"))));
  EXPECT_THAT(refusal<PeerLostError>([&] { first_.port.require_open(); }),
              AllOf(HasSubstr("step 1 cannot start"), HasSubstr("malformed")));
  EXPECT_THAT(
      refusal<PeerLostError>([&] { first_.port.send(PpRank(1), Message(MicrobatchDone{7})); }),
      HasSubstr("malformed"));
}

TEST_F(PipelinePortTest, SendsToTheOtherStagesOnly) {
  stages_.insert(stages_.begin(), GlobalRank(1));
  const auto hub = std::make_shared<d2d::LocalHub>(5);
  Rank all[] = {{hub, 1, stages_}, {hub, 4, stages_}, {hub, 3, stages_}};
  all[1].port.send_to_others(MicrobatchDone{2});
  EXPECT_EQ(hub->frames_sent(), 2u);
  for (auto& rank : all) rank.poll();
  EXPECT_THAT(all[0].microbatches, ElementsAre(2));
  EXPECT_THAT(all[1].microbatches, IsEmpty());
  EXPECT_THAT(all[2].microbatches, ElementsAre(2));
}

TEST_F(PipelinePortTest, AMessageOfARankThatIsNoStageIsAnError) {
  Rank stranger(hub_, 0, {GlobalRank(0), GlobalRank(4)});
  stranger.port.send(PpRank(1), Message(MicrobatchDone{1}));
  first_.poll();
  EXPECT_THAT(first_.received, IsEmpty());
  EXPECT_THAT(first_.errors, ElementsAre(HasSubstr("rank 0 is no stage of this pipeline")));
  EXPECT_FALSE(first_.port.receiving());
}

TEST_F(PipelinePortTest, ARankThatIsNoStageHasNoPort) {
  d2d::Channel channel(std::make_unique<d2d::LocalWire>(hub_, GlobalRank(0)));
  EXPECT_THROW(PipelinePort(channel, stages_), InternalError);
}

TEST_F(PipelinePortTest, WhatAReceiverThrowsAndFramesWithoutSenseAreErrors) {
  second_.port.send(PpRank(0), Message(ForwardDone{1}));  // of a kind that this receiver refuses
  const std::string nonsense = "nonsense";
  second_.channel.send(GlobalRank(4), d2d::Port::kServer, std::as_bytes(std::span(nonsense)), {},
                       {});
  second_.port.send(PpRank(0), Message(MicrobatchDone{7}));
  first_.poll();
  EXPECT_EQ(first_.errors.size(), 2u);
  EXPECT_THAT(first_.microbatches, ElementsAre(7)) << "the next message is received";
  EXPECT_FALSE(first_.port.receiving());
}

TEST_F(PipelinePortTest, AClosedPortDropsWhatComes) {
  first_.port.close();
  second_.port.send(PpRank(0), Message(MicrobatchDone{7}));
  first_.poll();
  EXPECT_THAT(first_.received, IsEmpty());
  EXPECT_THAT(first_.errors, IsEmpty());
}

}  // namespace
}  // namespace smp::server
