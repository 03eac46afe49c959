// Tensors of cores through the memory of hosts keep the contract of wires, on each release.
#include "d2d/wires/neuron_paths/neuron_staging_wire.h"

#include <gmock/gmock.h>

#include "d2d/wires/neuron/neuron_wire_cluster.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace neuron_staging_wire_test {

using testing::AllOf;
using testing::HasSubstr;

class StagingWires : public NeuronWireCluster {
 public:
  explicit StagingWires(int minor, const NeuronStagingOptions& options = {})
      : NeuronWireCluster(minor), piece_bytes_(options.piece_bytes) {
    for (int i = 0; i < PlayedCores::kRanks; ++i) {
      ends_.push_back(std::make_unique<WireEnd>(std::make_unique<NeuronStagingWire>(
          std::make_unique<LocalWire>(cores_.hub, GlobalRank(i)),
          std::make_unique<NeuronCopies>(cores_.runtime, RelativeCore(i)),
          *cores_.places[static_cast<std::size_t>(i)], options)));
    }
  }
  std::vector<std::size_t> edges() const override { return {piece_bytes_, 2 * piece_bytes_}; }
  PlayedCores& cores() { return cores_; }

 private:
  std::size_t piece_bytes_;
};

struct StagingWiresOf228 : StagingWires {
  StagingWiresOf228() : StagingWires(30) {}
};
struct StagingWiresOf229 : StagingWires {
  StagingWiresOf229() : StagingWires(31) {}
};
struct StagingWiresOf232 : StagingWires {
  StagingWiresOf232() : StagingWires(34) {}
};
/// One buffer for each direction, and a queue of one.
struct ScarceStagingWires : StagingWires {
  ScarceStagingWires() : StagingWires(34, {.piece_bytes = 8192, .buffers = 1}) {
    cores_.neuron.knobs().queue_depth = 1;
  }
};
using StagingTypes =
    testing::Types<StagingWiresOf228, StagingWiresOf229, StagingWiresOf232, ScarceStagingWires>;
INSTANTIATE_TYPED_TEST_SUITE_P(neuron_staging_wire_test, WireContract, StagingTypes);

/// Two of the ranks, and what they tell each other.
class NeuronStaging : public testing::Test {
 protected:
  WireEnd& end(std::size_t rank) { return *cluster_.ends()[rank]; }
  void poll() {
    for (auto& each : cluster_.ends()) each->wire().poll();
  }
  StagingWires cluster_{34, {.piece_bytes = 1000, .buffers = 2}};
};

/// What is received only later holds no buffers that others need.
TEST_F(NeuronStaging, IsHeldUpByNoTransferThatNobodyReceivesYet) {
  const Bytes late = random_bytes(50'000, 1), soon = random_bytes(50'000, 2);
  Bytes late_place(late.size()), soon_place(soon.size());
  end(0).wire().send(late, GlobalRank(1), 1, 1);
  end(0).wire().send(soon, GlobalRank(1), 2, 2);
  end(1).wire().receive(soon_place, GlobalRank(0), 2, 2);
  while (end(1).received.empty()) poll();
  EXPECT_EQ(soon_place, soon);
  EXPECT_THAT(end(0).sent, testing::Each(2U));
  end(1).wire().receive(late_place, GlobalRank(0), 1, 1);
  cluster_.run_until([](WireEnd& each) { return each.rank() != 1 || each.received.size() == 2; });
  EXPECT_EQ(late_place, late);
}

/// Nor is a receive that nobody has sent yet.
TEST_F(NeuronStaging, IsHeldUpByNoReceiveThatNobodySendsYet) {
  const Bytes late = random_bytes(50'000, 1), soon = random_bytes(50'000, 2);
  Bytes late_place(late.size()), soon_place(soon.size());
  end(1).wire().receive(late_place, GlobalRank(0), 1, 1);
  end(1).wire().receive(soon_place, GlobalRank(2), 2, 2);
  end(2).wire().send(soon, GlobalRank(1), 2, 2);
  while (end(1).received.empty()) poll();
  EXPECT_EQ(soon_place, soon);
  end(0).wire().send(late, GlobalRank(1), 1, 1);
  cluster_.run_until([](WireEnd& each) { return each.rank() != 1 || each.received.size() == 2; });
  EXPECT_EQ(late_place, late);
}

TEST(NeuronStagingWire, RefusesATransferOfTwoLengths) {
  StagingWires cluster(34);
  Bytes bytes(1000), place(900);
  auto& ends = cluster.ends();
  ends[0]->wire().send(bytes, GlobalRank(1), 1, 1);
  ends[1]->wire().receive(place, GlobalRank(0), 1, 1);
  EXPECT_THAT(refusal<InternalError>([&] { ends[1]->wire().poll(); }),
              AllOf(HasSubstr("receiving 900 bytes from rank 0"), HasSubstr("sent 1000")));
  ends.clear();  // nothing more comes
}

TEST(NeuronStagingWire, CarriesNeuronMemoryOnly) {
  StagingWires cluster(31);
  for (auto& end : cluster.ends()) {
    EXPECT_STREQ(end->wire().name(), "neuron_staging");
    EXPECT_FALSE(end->wire().reaches(MemoryKind::kHost));
    EXPECT_FALSE(end->wire().reaches(MemoryKind::kCuda));
  }
}

/// A copy that went wrong is the end of the wire: nobody is told that it arrived.
TEST(NeuronStagingWire, SaysWhichCoreWasLost) {
  for (const int minor : kPlayedReleases) {
    StagingWires cluster(minor, {.piece_bytes = 1000, .buffers = 2});
    auto& knobs = cluster.cores().neuron.knobs();
    knobs.fail_result = 3;
    knobs.fail_status = 1202;
    Bytes bytes(9'500), place(9'500);
    auto& ends = cluster.ends();
    ends[0]->wire().send(bytes, GlobalRank(1), 1, 1);
    ends[1]->wire().receive(place, GlobalRank(0), 1, 1);
    EXPECT_THAT(refusal<PeerLostError>([&] { cluster.run_until([](WireEnd&) { return false; }); }),
                AllOf(HasSubstr("Neuron core "), HasSubstr("copying 1000 bytes"),
                      HasSubstr("NC_UE (1202)")));
    EXPECT_THAT(ends[1]->received, testing::IsEmpty());
    ends.clear();
  }
}

}  // namespace neuron_staging_wire_test
}  // namespace smp::d2d
