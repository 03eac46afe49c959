// The channel keeps its contract over local wires, alone and mixed, with and without simulated
// time, and what only channels in one process can show.
#include "d2d/channel/channel.h"

#include <unistd.h>

#include <functional>
#include <utility>
#include <vector>

#include "d2d/channel/channel_contract.h"
#include "d2d/channel/frame_encoder.h"
#include "d2d/wires/local_cluster.h"

namespace smp::d2d {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct PlainCluster : LocalCluster {
  PlainCluster() : LocalCluster({}) {}
};
struct SimulatedCluster : ClockHolder, LocalCluster {
  SimulatedCluster() : LocalCluster({.clock = &clock}) {}
};
struct SeparatePlanesCluster : LocalCluster {
  SeparatePlanesCluster() : LocalCluster({}, 4, separate_planes) {}
};
struct SimulatedSeparatePlanesCluster : ClockHolder, LocalCluster {
  SimulatedSeparatePlanesCluster() : LocalCluster({.clock = &clock}, 4, separate_planes) {}
};
struct SimulatedPairsCluster : ClockHolder, LocalCluster {
  SimulatedPairsCluster() : LocalCluster({.clock = &clock}, 4, wires_of_pairs) {}
};

using LocalClusters = testing::Types<PlainCluster, SimulatedCluster, SeparatePlanesCluster,
                                     SimulatedSeparatePlanesCluster, SimulatedPairsCluster>;
INSTANTIATE_TYPED_TEST_SUITE_P(channel_test, ChannelContract, LocalClusters);
INSTANTIATE_TYPED_TEST_SUITE_P(channel_test, ChannelTensorsContract, LocalClusters);

// Random traffic between 3 ranks in simulated time; the hash of its trace.
std::uint64_t traced_run(std::uint64_t seed, const std::string& text = "h") {
  fiber::SimClock clock(seed);
  LocalCluster cluster({.clock = &clock}, 3);
  for (int i = 0; i < 20; ++i) {
    cluster.player(i % 3).send((i + 1) % 3, Frame{text, {at::ones({i * 100})}});
  }
  cluster.run_until([](Player&) { return true; });
  return clock.trace_hash();
}

std::vector<std::string> texts_in_order(LocalCluster& cluster, int rank) {
  std::vector<std::string> texts;
  for (auto& mail : cluster.player(rank).arrived) texts.push_back(mail.frame.text);
  return texts;
}

TEST(Channel, ReplaysARunFromItsSeed) {
  EXPECT_EQ(traced_run(1), traced_run(1));
  EXPECT_NE(traced_run(1), traced_run(2));
  EXPECT_NE(traced_run(1), traced_run(1, "another text"));
}

TEST(Channel, LetsSmallFramesOvertakeLargeOnes) {
  int overtaken = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    fiber::SimClock clock(seed);
    LocalCluster cluster({.clock = &clock}, 2);
    cluster.player(0).send(1, Frame{"tensor", {at::ones({5000})}});
    cluster.player(0).send(1, Frame{"text", {}});
    cluster.run_until(
        [](Player& player) { return player.rank() == 0 || player.arrived.size() == 2; });
    overtaken += texts_in_order(cluster, 1).front() == "text";
  }
  EXPECT_GT(overtaken, 0);
  EXPECT_LT(overtaken, 50);
}

TEST(Channel, LosesTheFrameThatTheHubIsToldTo) {
  LocalCluster cluster({}, 2);
  cluster.hub().lose_frame(1);
  for (const char* text : {"0", "1", "2"}) {
    cluster.player(0).send(1, Frame{text, {at::ones({3000})}});
  }
  cluster.run_until(
      [](Player& player) { return player.rank() == 0 || player.arrived.size() == 2; });
  EXPECT_THAT(texts_in_order(cluster, 1), ElementsAre("0", "2"));
  EXPECT_EQ(cluster.player(0).channel->counters().frames_sent, 3u);
  EXPECT_EQ(cluster.hub().frames_sent(), 3u);
}

/// Sends no data until it is told to.
class HoldsData final : public Wire, private WireHandler {
 public:
  explicit HoldsData(std::unique_ptr<Wire> wire)
      : Wire(wire->rank(), wire->members()), wire_(std::move(wire)) {
    wire_->set_handler(this);
  }
  const char* name() const noexcept override { return "lossy"; }
  BufferPool& buffers() noexcept override { return wire_->buffers(); }
  void post(GlobalRank peer, ByteBuffer&& bytes) override { wire_->post(peer, std::move(bytes)); }
  void send(std::span<const std::byte> bytes, GlobalRank peer, TransferId id,
            Token token) override {
    held_.push_back([=, this] { wire_->send(bytes, peer, id, token); });
  }
  void send_held() {
    for (const auto& send : std::exchange(held_, {})) send();
  }
  void receive(std::span<std::byte> bytes, GlobalRank peer, TransferId id, Token token) override {
    wire_->receive(bytes, peer, id, token);
  }
  bool complete() override { return wire_->complete(); }
  bool poll() override { return wire_->poll(); }
  bool drained() const noexcept override { return wire_->drained(); }
  bool leave() override { return wire_->leave(); }

 private:
  void on_control(GlobalRank source, ByteBuffer&& bytes) override {
    handler().on_control(source, std::move(bytes));
  }
  void on_sent(Token token) override { handler().on_sent(token); }
  void on_received(Token token) override { handler().on_received(token); }

  std::unique_ptr<Wire> wire_;
  std::vector<std::function<void()>> held_;
};

/// Other messages go on coming all the time.
TEST(Channel, FailsIfATensorDoesNotComeWithinTheDeadline) {
  const auto hub = std::make_shared<LocalHub>(2);
  Channel sender(std::make_unique<HoldsData>(std::make_unique<LocalWire>(hub, GlobalRank(0))));
  Channel receiver(std::make_unique<LocalWire>(hub, GlobalRank(1)));
  int received = 0;
  std::string failure;
  receiver.set_receiver(Port::kServer, [&](GlobalRank, ArrivedFrame&&) { ++received; });
  receiver.set_failure_handler([&](const std::string& what) { failure = what; });
  receiver.set_deadline(base::kSecond / 10);
  sender.send(GlobalRank(1), Port::kServer, {}, "", at::ones({5000}));
  const base::SteadyClock clock;
  const auto begin = clock.now();
  while (failure.empty() && clock.now() < begin + 30 * base::kSecond) {
    sender.send(GlobalRank(1), Port::kServer, {}, "text", {});
    receiver.poll();
  }
  EXPECT_GT(clock.now() - begin, base::kSecond / 10);
  EXPECT_GT(received, 100);
  EXPECT_THAT(failure, AllOf(HasSubstr("rank 1: 1 tensor of a message from rank 0 (0.0191 MiB in "
                                       "all) did not come within 0 s"),
                             HasSubstr("abort_seconds")));
  EXPECT_EQ(receiver.end(), failure);
}

/// It was away for longer than the deadline, and what it misses comes now.
TEST(Channel, WhoWasBusyForLongTakesWhatComes) {
  const auto hub = std::make_shared<LocalHub>(2);
  auto wire = std::make_unique<HoldsData>(std::make_unique<LocalWire>(hub, GlobalRank(0)));
  auto& holds = *wire;
  Channel sender(std::move(wire));
  Channel receiver(std::make_unique<LocalWire>(hub, GlobalRank(1)));
  int received = 0;
  receiver.set_receiver(Port::kServer, [&](GlobalRank, ArrivedFrame&&) { ++received; });
  receiver.set_deadline(base::kSecond / 20);
  sender.send(GlobalRank(1), Port::kServer, {}, "", at::ones({5000}));
  receiver.poll();
  ::usleep(200'000);
  for (int i = 0; i < 10'000; ++i) receiver.poll();
  holds.send_held();
  while (receiver.poll()) {
  }
  EXPECT_EQ(received, 1);
  EXPECT_EQ(receiver.end(), "");
}

// The answer comes over the wire that is polled first; the tensor left over the other.
TEST(Channel, LetsGoOfWhatHasLeftBeforeItReadsAnAnswerOverAnotherWire) {
  LocalCluster cluster({}, 2, separate_planes);
  Player& asking = cluster.player(0);
  Player& answering = cluster.player(1);
  const at::Tensor tensor = at::zeros({5000});
  asking.on_arrival([&](int, Frame&&) { tensor.add_(1); });
  answering.on_arrival([&](int, Frame&&) { answering.send(0, Frame{"answer", {}}); });
  asking.send(1, Frame{"", {tensor}});
  answering.channel->poll();
  asking.channel->poll();
  EXPECT_EQ(tensor[0].item<float>(), 1);
  EXPECT_THAT(asking.failures, IsEmpty());
}

// A receiver that comes in the middle of a poll finds the frames in their order.
TEST(Channel, DeliversKeptFramesBeforeLaterOnes) {
  LocalCluster cluster({}, 2);
  Player& receiver = cluster.player(1);
  receiver.channel->set_receiver(Port::kServer, {});
  receiver.channel->set_receiver(Port::kCollectives,
                                 [&](GlobalRank, ArrivedFrame&&) { receiver.listen(); });
  cluster.player(0).send(1, Frame{"kept", {}});
  cluster.player(0).send(1, Frame{"", {}}, Port::kCollectives);
  cluster.player(0).send(1, Frame{"later", {}});
  while (receiver.channel->poll()) {
  }
  EXPECT_THAT(texts_in_order(cluster, 1), ElementsAre("kept", "later"));
}

TEST(Channel, MayEndBeforeItsFramesArrive) {
  fiber::SimClock clock(1);
  {
    LocalCluster cluster({.clock = &clock}, 2);
    cluster.player(0).send(1, Frame{"nobody is there any more", {at::ones({3000})}});
  }
  while (clock.advance()) {
  }
}

TEST(Channel, DropsWhatArrivesWhileItIsClosed) {
  LocalCluster cluster({}, 2);
  cluster.player(0).send(1, Frame{"in time", {}});
  EXPECT_TRUE(cluster.player(1).channel->close(0));
  EXPECT_THAT(cluster.player(1).arrived, IsEmpty());
  EXPECT_THROW(cluster.player(1).send(0, Frame{}), UsageError);
  cluster.player(0).send(1, Frame{"too late", {at::ones({3000})}});
  cluster.player(0).channel->poll();
  EXPECT_TRUE(cluster.player(0).channel->drained());
}

// Nobody else moves time while a rank blocks.
TEST(Channel, ClosesAtOnceInSimulatedTime) {
  fiber::SimClock clock(1);
  LocalCluster cluster({.clock = &clock}, 2, separate_planes);
  cluster.player(0).send(1, Frame{"on its way", {at::ones({3000})}});
  EXPECT_TRUE(cluster.player(0).channel->close(3600 * base::kSecond));
  while (clock.advance()) {
  }
  cluster.player(1).channel->poll();
  EXPECT_THAT(texts_in_order(cluster, 1), ElementsAre("on its way"));
}

TEST(Channel, ConnectsGroupsByTheRanksOfTheJob) {
  const auto hub = std::make_shared<LocalHub>(4);
  const Members group({GlobalRank(3), GlobalRank(1)});
  Player three{Routes(std::make_unique<LocalWire>(hub, GlobalRank(3), group))};
  Player one{Routes(std::make_unique<LocalWire>(hub, GlobalRank(1), group))};
  EXPECT_EQ(three.channel->size(), 2);
  EXPECT_EQ(three.channel->rank(), GlobalRank(3));
  EXPECT_EQ(three.channel->members(), group);
  three.send(1, Frame{"to one", {}});
  EXPECT_THROW(three.send(0, Frame{}), UsageError);
  EXPECT_THROW(three.send(2, Frame{}), UsageError);
  one.channel->poll();
  ASSERT_EQ(one.arrived.size(), 1u);
  EXPECT_EQ(one.arrived[0].source, 3);
}

// A channel whose peer, rank 1, writes to the wire by hand.
class ChannelAndBareWire : public testing::Test {
 protected:
  void post(const std::vector<std::byte>& bytes) {
    ByteBuffer buffer;
    buffer.resize(bytes.size());
    std::copy(bytes.begin(), bytes.end(), buffer.data());
    bare_.post(GlobalRank(0), std::move(buffer));
  }
  static std::vector<std::byte> encoded(const at::Tensor& tensor, std::uint8_t wire) {
    ByteBuffer buffer;
    std::vector<DataTensor> data;
    TransferId next = 0;
    encode_frame({Port::kServer, {}, "text", tensor}, {wire, kNoWire, kNoWire}, next, buffer, data);
    return {buffer.span().begin(), buffer.span().end()};
  }

  std::shared_ptr<LocalHub> hub_ = std::make_shared<LocalHub>(2);
  Player player_{Routes(std::make_unique<LocalWire>(hub_, GlobalRank(0)))};
  LocalWire bare_{hub_, GlobalRank(1)};
};

TEST_F(ChannelAndBareWire, ReportsAMalformedFrameAndIsNotUsedAgain) {
  post(std::vector<std::byte>(100));
  player_.channel->poll();
  EXPECT_THAT(player_.failures,
              ElementsAre(HasSubstr("rank 0: from rank 1: a frame that arrived is malformed")));
  post(encoded(at::ones({2}), 0));
  EXPECT_FALSE(player_.channel->poll());
  EXPECT_THAT(player_.arrived, IsEmpty());
  EXPECT_THAT(player_.channel->end(), HasSubstr("malformed"));
  try {
    player_.send(1, Frame{});
    FAIL();
  } catch (const PeerLostError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("failed before"), HasSubstr("malformed")));
  }
  EXPECT_FALSE(player_.channel->close(0));
}

TEST_F(ChannelAndBareWire, ReportsATensorOverAWireThatItDoesNotHave) {
  post(encoded(at::ones({3000}), 1));
  player_.channel->poll();
  EXPECT_THAT(player_.failures,
              ElementsAre(AllOf(HasSubstr("rank 1"), HasSubstr("wire 1"), HasSubstr("local 0"))));
}

TEST_F(ChannelAndBareWire, TakesAnExceptionOfAReceiverForAFailure) {
  player_.on_arrival([](int, Frame&&) { throw InternalError("the receiver is broken"); });
  post(encoded(at::ones({2}), 0));
  player_.channel->poll();
  EXPECT_THAT(player_.failures, ElementsAre(HasSubstr("the receiver is broken")));
}

}  // namespace
}  // namespace smp::d2d
