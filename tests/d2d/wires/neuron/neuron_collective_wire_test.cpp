// Tensors of cores by collectives of two keep the contract of wires, on each release.
#include "d2d/wires/neuron_paths/neuron_collective_wire.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "d2d/wires/neuron/neuron_wire_cluster.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace neuron_collective_wire_test {

using testing::AllOf;
using testing::HasSubstr;

constexpr base::Nanoseconds kPatience = 20 * base::kSecond;

class CollectiveWires : public NeuronWireCluster {
 public:
  explicit CollectiveWires(int minor, std::size_t bytes = 8192)
      : NeuronWireCluster(minor), bytes_(bytes) {
    for (int i = 0; i < PlayedCores::kRanks; ++i) {
      auto gathers =
          std::make_unique<NeuronGathers>(cores_.runtime, RelativeCore(i), bytes, kPatience);
      gathers->join(i, PlayedCores::kRanks);
      ends_.push_back(std::make_unique<WireEnd>(std::make_unique<NeuronCollectiveWire>(
          std::make_unique<LocalWire>(cores_.hub, GlobalRank(i)), std::move(gathers),
          *cores_.places[static_cast<std::size_t>(i)])));
    }
  }
  std::vector<std::size_t> edges() const override { return {bytes_, 2 * bytes_, 512}; }
  PlayedNeuron& neuron() { return cores_.neuron; }

 private:
  std::size_t bytes_;
};

struct CollectiveWiresOf228 : CollectiveWires {
  CollectiveWiresOf228() : CollectiveWires(30) {}
};
struct CollectiveWiresOf229 : CollectiveWires {
  CollectiveWiresOf229() : CollectiveWires(31) {}
};
/// In pieces of the size that jobs take.
struct CollectiveWiresOf232 : CollectiveWires {
  CollectiveWiresOf232() : CollectiveWires(34, 1 << 20) {}
};
using CollectiveTypes =
    testing::Types<CollectiveWiresOf228, CollectiveWiresOf229, CollectiveWiresOf232>;
INSTANTIATE_TYPED_TEST_SUITE_P(neuron_collective_wire_test, WireContract, CollectiveTypes);

/// Pieces that two ranks have for each other go the two ways at once.
TEST(NeuronCollectiveWire, ExchangesWhatBothHave) {
  CollectiveWires cluster(34, 4096);
  const Bytes there = random_bytes(4 * 4096, 1), back = random_bytes(4 * 4096, 2);
  Bytes place(there.size()), other(back.size());
  auto& ends = cluster.ends();
  ends[0]->wire().send(there, GlobalRank(1), 1, 1);
  ends[1]->wire().send(back, GlobalRank(0), 1, 2);
  ends[0]->wire().receive(other, GlobalRank(1), 1, 3);
  ends[1]->wire().receive(place, GlobalRank(0), 1, 4);
  cluster.run_until(
      [](WireEnd& end) { return end.rank() == 2 || end.received.size() + end.sent.size() == 2; });
  EXPECT_EQ(place, there);
  EXPECT_EQ(other, back);
  EXPECT_LE(cluster.neuron().counters().prepared, 2 * 5) << "on both sides";
}

/// A ring of ranks that all send at once: each collective needs two cores, and those of a core are
/// done one after the other.
TEST(NeuronCollectiveWire, IsHeldUpByNoRing) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CollectiveWires cluster(34, 512);
    cluster.neuron().knobs().seed = seed;
    const Bytes bytes = random_bytes(5'000, 1);
    std::vector<Bytes> places(PlayedCores::kRanks, Bytes(bytes.size()));
    auto& ends = cluster.ends();
    for (int i = 0; i < PlayedCores::kRanks; ++i) {
      const int next = (i + 1) % PlayedCores::kRanks;
      ends[static_cast<std::size_t>(i)]->wire().send(bytes, GlobalRank(next), 1, 1);
      ends[static_cast<std::size_t>(next)]->wire().receive(places[static_cast<std::size_t>(next)],
                                                           GlobalRank(i), 1, 2);
    }
    cluster.run_until([](WireEnd& end) { return end.received.size() + end.sent.size() == 2; });
    for (const auto& place : places) EXPECT_EQ(place, bytes);
  }
}

/// A rank that has got and sent everything may be elsewhere, in a call of MPI say: it is not needed
/// for a turn that moves nothing.
TEST(NeuronCollectiveWire, NeedsNobodyWhoIsDone) {
  const Bytes bytes = random_bytes(300, 1);
  for (unsigned seed = 0; seed < 100; ++seed) {
    CollectiveWires cluster(34, 4096);
    auto& ends = cluster.ends();
    std::vector<Bytes> places(3, Bytes(bytes.size()));
    const auto move = [&](int from, int to, Bytes& place) {
      ends[static_cast<std::size_t>(from)]->wire().send(bytes, GlobalRank(to), 1, 1);
      ends[static_cast<std::size_t>(to)]->wire().receive(place, GlobalRank(from), 1, 2);
    };
    move(0, 1, places[0]);
    move(1, 0, places[1]);
    const auto is_done = [&](std::size_t rank, std::size_t transfers) {
      auto& end = *ends[rank];
      return end.received.size() + end.sent.size() == transfers && end.wire().drained();
    };
    std::minstd_rand random(seed + 1);
    while (!is_done(1, 2)) ends[random() % 2]->wire().poll();
    move(2, 0, places[2]);
    const auto end = base::SteadyClock().now() + kPatience;
    while (!is_done(0, 3) && base::SteadyClock().now() < end) {
      ends[0]->wire().poll();
      ends[2]->wire().poll();
    }
    ASSERT_TRUE(is_done(0, 3)) << seed;
    for (const auto& place : places) EXPECT_EQ(place, bytes);
  }
}

TEST(NeuronCollectiveWire, SaysWhichExchangeFailed) {
  CollectiveWires cluster(34, 4096);
  Bytes bytes(1000), place(1000);
  cluster.neuron().knobs().fail_result = 1;  // after what was copied for it
  cluster.neuron().knobs().fail_status = 1200;
  auto& ends = cluster.ends();
  ends[0]->wire().send(bytes, GlobalRank(1), 1, 1);
  ends[1]->wire().receive(place, GlobalRank(0), 1, 1);
  EXPECT_THAT(
      refusal<PeerLostError>([&] { cluster.run_until([](WireEnd&) { return false; }); }),
      AllOf(HasSubstr("exchanging bytes with rank "), HasSubstr("HW_ERR_COLLECTIVES (1200)")));
  EXPECT_THAT(ends[1]->received, testing::IsEmpty());
  ends.clear();
}

/// What gathers say when one of two cores enters.
std::string said_alone(int minor, base::Nanoseconds patience) {
  PlayedCores cores(minor);
  const std::string peer = "rank 1";
  NeuronGathers own(cores.runtime, RelativeCore(0), 4096, patience);
  NeuronGathers other(cores.runtime, RelativeCore(1), 4096, patience);
  own.join(0, 2);
  other.join(1, 2);
  return refusal<PeerLostError>([&] {
    EXPECT_TRUE(own.enter(1, 100, peer));
    while (!own.done()) continue;
  });
}

/// Later releases wait for ever, earlier ones a while.
TEST(NeuronGathers, EndWhereOnlyOneSideEnters) {
  EXPECT_THAT(said_alone(34, 50 * base::kMillisecond),
              AllOf(HasSubstr("Neuron core 3: exchanging bytes with rank 1 is not done after"),
                    HasSubstr("the other side has not entered"), HasSubstr("checkpoint")));
  EXPECT_THAT(said_alone(31, kPatience),
              AllOf(HasSubstr("Neuron core 3 of its host: exchanging bytes with rank 1"),
                    HasSubstr("NRT_TIMEOUT (5)")));
}

TEST(NeuronGathers, SayWhatIsNotSet) {
  PlayedCores cores(34);
  ::unsetenv("NEURON_RT_ROOT_COMM_ID");
  NeuronGathers own(cores.runtime, RelativeCore(0), 4096, kPatience);
  EXPECT_THAT(refusal<PeerLostError>([&] { own.join(0, 2); }),
              AllOf(HasSubstr("NEURON_RT_ROOT_COMM_ID is not set"),
                    HasSubstr("nrt_cc_global_comm_init"), HasSubstr("HOST:PORT")));
}

TEST(NeuronGathers, AreRefusedWhereTheCoreHasNoRoom) {
  PlayedCores cores(34);
  cores.neuron.knobs().hbm_bytes = 10'000;
  EXPECT_THAT(refusal<ResourceError>(
                  [&] { NeuronGathers(cores.runtime, RelativeCore(0), 4096, kPatience); }),
              HasSubstr("setting 8192 bytes of its memory aside"));
  cores.neuron.expect_empty(PlayedCores::kRanks);
}

}  // namespace neuron_collective_wire_test
}  // namespace smp::d2d
