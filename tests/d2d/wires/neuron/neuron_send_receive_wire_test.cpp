// Tensors of cores by send and receive keep the contract of wires, on each release.
#include "d2d/wires/neuron_paths/neuron_send_receive_wire.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "d2d/wires/neuron/neuron_wire_cluster.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace neuron_send_receive_wire_test {

using testing::AllOf;
using testing::HasSubstr;

class SendReceiveWires : public NeuronWireCluster {
 public:
  explicit SendReceiveWires(int minor, const NeuronSendReceiveOptions& options = {},
                            bool connected = true)
      : NeuronWireCluster(minor) {
    for (int i = 0; i < PlayedCores::kRanks; ++i) {
      auto wire = std::make_unique<NeuronSendReceiveWire>(
          std::make_unique<LocalWire>(cores_.hub, GlobalRank(i)),
          std::make_unique<NeuronSendReceive>(cores_.runtime, RelativeCore(i), 2),
          *cores_.places[static_cast<std::size_t>(i)], options);
      wires_.push_back(wire.get());
      ends_.push_back(std::make_unique<WireEnd>(std::move(wire)));
      addresses_.push_back({"127.0.0.1", cores_.runtime.claim().absolute(RelativeCore(i))});
    }
    for (int i = 0; connected && i < PlayedCores::kRanks; ++i) connect(i);
  }
  void connect(int rank) { wires_[static_cast<std::size_t>(rank)]->connect(addresses_); }
  PlayedNeuron& neuron() { return cores_.neuron; }

 private:
  std::vector<NeuronSendReceiveWire*> wires_;
  std::vector<NeuronAddress> addresses_;
};

struct SendReceiveWiresOf228 : SendReceiveWires {
  SendReceiveWiresOf228() : SendReceiveWires(30) {}
};
struct SendReceiveWiresOf229 : SendReceiveWires {
  SendReceiveWiresOf229() : SendReceiveWires(31) {}
};
struct SendReceiveWiresOf232 : SendReceiveWires {
  SendReceiveWiresOf232() : SendReceiveWires(34) {}
};
/// The played runtime serves requests of a communicator in order.
struct SendReceiveWiresWithTwoAtOnce : SendReceiveWires {
  SendReceiveWiresWithTwoAtOnce() : SendReceiveWires(34, {.at_once = 2}) {}
};
using SendReceiveTypes = testing::Types<SendReceiveWiresOf228, SendReceiveWiresOf229,
                                        SendReceiveWiresOf232, SendReceiveWiresWithTwoAtOnce>;
INSTANTIATE_TYPED_TEST_SUITE_P(neuron_send_receive_wire_test, WireContract, SendReceiveTypes);

void send_one(SendReceiveWires& cluster, const Bytes& bytes, std::span<std::byte> place) {
  cluster.ends()[0]->wire().send(bytes, GlobalRank(1), 1, 1);
  cluster.ends()[1]->wire().receive(place, GlobalRank(0), 1, 1);
}

/// Of what the wires say that do not get on.
std::string loss(SendReceiveWires& cluster) {
  return refusal<PeerLostError>([&] { cluster.run_until([](WireEnd&) { return false; }); });
}

TEST(NeuronSendReceiveWire, FlushesBeforeAReceiveCounts) {
  SendReceiveWires cluster(34);
  const Bytes bytes = random_bytes(9'000, 1);
  Bytes place(bytes.size());
  send_one(cluster, bytes, place);
  while (cluster.ends()[1]->received.empty()) {
    for (auto& end : cluster.ends()) end->wire().poll();
  }
  EXPECT_EQ(place, bytes);
  EXPECT_EQ(cluster.neuron().counters().flushes, 1);
}

/// Nothing is posted before both sides have connected, in whichever order.
TEST(NeuronSendReceiveWire, WaitsForItsPeers) {
  SendReceiveWires cluster(34, {}, /*connected=*/false);
  const Bytes bytes = random_bytes(9'000, 1);
  Bytes place(bytes.size());
  cluster.connect(1);
  send_one(cluster, bytes, place);
  for (int i = 0; i < 100; ++i) {
    for (auto& end : cluster.ends()) end->wire().poll();
  }
  EXPECT_THAT(cluster.ends()[1]->received, testing::IsEmpty());
  EXPECT_FALSE(cluster.ends()[1]->wire().leave()) << "the runtime could not end";
  cluster.connect(2);
  cluster.connect(0);
  cluster.run_until([](WireEnd& end) { return end.rank() != 1 || end.received.size() == 1; });
  EXPECT_EQ(place, bytes);
}

TEST(NeuronSendReceiveWire, SaysWhichPeerNeverConnected) {
  SendReceiveWires cluster(34, {.connect_patience = 50 * base::kMillisecond}, false);
  cluster.connect(1);
  EXPECT_THAT(loss(cluster),
              AllOf(HasSubstr("rank 1, Neuron core 4"), HasSubstr("has not connected"),
                    HasSubstr("of 127.0.0.1"), HasSubstr("security group")));
  cluster.ends().clear();
}

TEST(NeuronSendReceiveWire, SaysWhatIsNotSwitchedOn) {
  PlayedCores cores(34);
  ::unsetenv("NEURON_RT_ASYNC_SENDRECV_EXPERIMENTAL_ENABLED");
  EXPECT_THAT(
      refusal<PeerLostError>([&] { NeuronSendReceive(cores.runtime, RelativeCore(0), 2); }),
      AllOf(HasSubstr("nrt_async_sendrecv_init"), HasSubstr("EFA"),
            HasSubstr("EXPERIMENTAL_ENABLED is not set"), HasSubstr("BOOTSTRAP_PORT=45645")));
}

TEST(NeuronSendReceiveWire, SaysWhenThereAreTooManyPeers) {
  PlayedCores cores(34);
  cores.neuron.knobs().communicators = 3;
  EXPECT_THAT(refusal<PeerLostError>([&] { NeuronSendReceive(cores.runtime, RelativeCore(0), 2); }),
              AllOf(HasSubstr("4 communicators for 2 peers"), HasSubstr("has 3"),
                    HasSubstr("host memory")));
}

/// Nobody says what the runtime does with a transfer of two lengths.
TEST(NeuronSendReceiveWire, BeginsNoTransferOfTwoLengths) {
  SendReceiveWires cluster(34);
  Bytes bytes(1000), place(900);
  send_one(cluster, bytes, place);
  EXPECT_THAT(refusal<InternalError>([&] { cluster.run_until([](WireEnd&) { return false; }); }),
              AllOf(HasSubstr("receiving 900 bytes from rank 0"), HasSubstr("sent 1000")));
  cluster.ends().clear();
}

TEST(NeuronSendReceiveWire, SaysWhichTransferFailed) {
  SendReceiveWires cluster(34);
  Bytes bytes(1000), place(1000);
  cluster.neuron().knobs().fail_result = 0;
  cluster.neuron().knobs().fail_status = 1206;
  send_one(cluster, bytes, place);
  EXPECT_THAT(loss(cluster),
              AllOf(HasSubstr("1000 bytes, transfer 1, with rank "), HasSubstr("test_request"),
                    HasSubstr("NRT_NETWORK_PROXY_FAILURE (1206)")));
  cluster.ends().clear();
}

}  // namespace neuron_send_receive_wire_test
}  // namespace smp::d2d
