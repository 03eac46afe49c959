// Wires over UCX keep the contract of wires and of channels, here over TCP within this process; and
// a rank that is gone is noticed.
#include "d2d/wires/ucx_wire.h"

#include <cstdlib>

#include "d2d/channel_contract.h"
#include "d2d/wire_contract.h"

namespace smp::d2d {
namespace ucx_wire_test {

std::vector<std::unique_ptr<Wire>> make_wires(const Members& members) {
  ::setenv("UCX_TLS", "tcp", /*overwrite=*/1);
  ::setenv("UCX_NET_DEVICES", "lo", /*overwrite=*/1);
  ::setenv("UCX_LOG_LEVEL", "error", /*overwrite=*/1);  // some tests end in the middle
  std::vector<std::unique_ptr<UcxWorker>> workers;
  std::vector<std::string> addresses;
  for (int i = 0; i < members.size(); ++i) {
    workers.push_back(std::make_unique<UcxWorker>());
    addresses.push_back(workers.back()->address());
  }
  std::vector<std::unique_ptr<Wire>> wires;
  for (int i = 0; i < members.size(); ++i) {
    wires.push_back(std::make_unique<UcxWire>(
        members[i], members, std::move(workers[static_cast<std::size_t>(i)]), addresses));
  }
  return wires;
}

/// All wires of the process leave together.
bool leave_all(const std::vector<Wire*>& wires) {
  const base::SteadyClock clock;
  const auto end = clock.now() + 30 * base::kSecond;
  for (std::size_t left = 0; left < wires.size();) {
    if (clock.now() > end) return false;
    left = 0;
    for (auto* const wire : wires) {
      if (wire->leave()) ++left;
    }
  }
  return true;
}

class UcxWires : public WireCluster {
 public:
  explicit UcxWires(const Members& members = Members({GlobalRank(3), GlobalRank(0),
                                                      GlobalRank(4)})) {
    for (auto& wire : make_wires(members)) {
      ends_.push_back(std::make_unique<WireEnd>(std::move(wire)));
    }
  }
  ~UcxWires() override {
    std::vector<Wire*> wires;
    for (auto& end : ends_) wires.push_back(&end->wire());
    EXPECT_TRUE(leave_all(wires));
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(ucx_wire_test, WireContract, UcxWires);

class UcxCluster : public Cluster {
 public:
  UcxCluster() {
    for (auto& wire : make_wires(Members::all(4))) {
      players_.push_back(std::make_unique<Player>(Routes(std::move(wire))));
    }
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(ucx_channel_test, ChannelContract, UcxCluster);
INSTANTIATE_TYPED_TEST_SUITE_P(ucx_channel_test, ChannelTensorsContract, UcxCluster);

class UcxPair : public testing::Test {
 protected:
  /// Polls both until `wire` tells what it lost.
  std::string loss_of(Wire& wire) {
    const base::SteadyClock clock;
    const auto end = clock.now() + 30 * base::kSecond;
    while (clock.now() < end) try {
        wire.poll();
      } catch (const PeerLostError& error) {
        return error.what();
      }
    return "nothing";
  }
  std::vector<std::unique_ptr<Wire>> wires_ = make_wires(Members::all(2));
};

TEST_F(UcxPair, ARankThatIsGoneIsLost) {
  ByteBuffer greeting = wires_[0]->buffers().take();
  greeting.resize(10);
  wires_[0]->post(GlobalRank(1), std::move(greeting));
  for (int i = 0; i < 1000; ++i) {
    for (auto& wire : wires_) wire->poll();
  }
  wires_[1].reset();  // without a goodbye
  EXPECT_THAT(loss_of(*wires_[0]),
              testing::AllOf(testing::HasSubstr("rank 0"), testing::HasSubstr("rank 1"),
                             testing::HasSubstr("UCX"), testing::HasSubstr("checkpoint")));
  EXPECT_THROW(wires_[0]->post(GlobalRank(1), {}), PeerLostError);
}

TEST_F(UcxPair, ReceivingLessThanWasSentIsAnError) {
  const Bytes bytes(100'000);
  Bytes place(90'000);
  wires_[1]->receive(place, GlobalRank(0), 1, 1);
  wires_[0]->send(bytes, GlobalRank(1), 1, 1);
  const base::SteadyClock clock;
  const auto end = clock.now() + 30 * base::kSecond;
  std::string error;
  while (error.empty() && clock.now() < end) try {
      for (auto& wire : wires_) wire->poll();
    } catch (const PeerLostError& lost) {
      error = lost.what();
    }
  EXPECT_THAT(error, testing::HasSubstr("receiving 90000 bytes from rank 0"));
}

TEST_F(UcxPair, LeavesWhenBothHaveSaidGoodbye) {
  EXPECT_FALSE(wires_[0]->leave());
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(wires_[0]->leave());
  EXPECT_TRUE(leave_all({wires_[0].get(), wires_[1].get()}));
  wires_[1].reset();
  for (int i = 0; i < 1000; ++i) wires_[0]->poll();
}

}  // namespace ucx_wire_test
}  // namespace smp::d2d
