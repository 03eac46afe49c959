// Which release is installed, and which calls it has.
#include "d2d/wires/neuron/neuron_library.h"

#include <gmock/gmock.h>

#include <string>

#include "d2d/wires/neuron/neuron_core.h"
#include "d2d/wires/neuron/neuron_status.h"
#include "d2d/wires/neuron/played_neuron.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace neuron_library_test {

using testing::AllOf;
using testing::HasSubstr;

TEST(NeuronLibrary, KnowsTheFormOfCallsByTheirVersion) {
  EXPECT_EQ(load_neuron(played_library(30).c_str()).interface, NeuronInterface::kErrorTracker);
  EXPECT_EQ(load_neuron(played_library(31).c_str()).interface, NeuronInterface::kResult);
  EXPECT_EQ(load_neuron(played_library(34).c_str()).version, "2.34.50 (SDK 2.32)");
  const auto newest = load_neuron(played_library(35).c_str());
  EXPECT_EQ(newest.interface, NeuronInterface::kResult);
  EXPECT_EQ(newest.version, "2.35.50 (SDK 2.33)");
  EXPECT_NE(newest.told.read, nullptr);
  EXPECT_EQ(newest.tracked.read, nullptr);
}

TEST(NeuronLibrary, ThatIsNotThereIsNamedWithItsPackage) {
  EXPECT_THAT(refusal<PeerLostError>([] { load_neuron("libnone.so.1"); }),
              AllOf(HasSubstr("libnone.so.1"), HasSubstr("aws-neuronx-runtime-lib"),
                    HasSubstr("device = cpu")));
  EXPECT_THAT(refusal<PeerLostError>([] { load_neuron("libc.so.6"); }),
              AllOf(HasSubstr("nrt_get_version"), HasSubstr("NRT_2.0.0"), HasSubstr("SDK 2.28")));
}

/// Its calls may have other arguments under the same names.
TEST(NeuronLibrary, ThatIsOfNoKnownReleaseIsRefusedByName) {
  EXPECT_THAT(refusal<PeerLostError>([] { load_neuron(played_library(99).c_str()); }),
              AllOf(HasSubstr("2.99.50"), HasSubstr("2.30 (SDK 2.28), 2.31 (SDK 2.29)"),
                    HasSubstr("2.35 (SDK 2.33)")));
}

/// A library beside the files of another package.
TEST(NeuronLibrary, WhoseVersionAndCallsDisagreeIsRefused) {
  EXPECT_THAT(refusal<PeerLostError>([] { load_neuron(played_library(32).c_str()); }),
              AllOf(HasSubstr("says that it is 2.32"), HasSubstr("not of version NRT_3.0.0")));
}

TEST(NeuronStatus, IsToldByNameAndNumber) {
  EXPECT_EQ(text_of_status(5), "NRT_TIMEOUT (5)");
  EXPECT_EQ(text_of_status(8), "an unknown status (8)");
  const NeuronCaller caller{GlobalRank(7), AbsoluteCore(3)};
  EXPECT_THAT(refusal<PeerLostError>([&] { throw_neuron_error(1203, "doing", "nrt_x", caller); }),
              AllOf(HasSubstr("rank 7"), HasSubstr("core 3"), HasSubstr("doing: nrt_x returned"),
                    HasSubstr("DMA_ABORT (1203)"), HasSubstr("checkpoint")));
  EXPECT_THAT(refusal<ResourceError>([&] { throw_neuron_error(4, "doing", "nrt_x", caller); }),
              HasSubstr("NRT_RESOURCE (4)"));
  for (const int status : {1, 2, 3, 4, 5, 6, 9, 11, 13, 101, 1005, 1206, 4711, -1}) {
    EXPECT_NE(remedy_of_status(status), "") << status;
  }
}

TEST(NeuronCore, IsNumberedInTwoWays) {
  const CoreClaim claim{4, 2, 16};
  EXPECT_EQ(claim.text(), "4-5");
  EXPECT_EQ((CoreClaim{3, 1}).text(), "3");
  EXPECT_EQ(claim.absolute(RelativeCore(1)), AbsoluteCore(21));
  EXPECT_THAT(refusal([&] { claim.absolute(RelativeCore(2)); }), HasSubstr("core 2 of the 2"));
  EXPECT_THAT(refusal([&] { claim.absolute(RelativeCore()); }), HasSubstr("core -1"));
}

TEST(NeuronCore, IsSharedOutInTheOrderOfRanks) {
  EXPECT_EQ(share_of_cores(8, 1, 3).text(), "2-3");
  EXPECT_EQ(share_of_cores(8, 2, 3).text(), "4-5");
  EXPECT_EQ(share_of_cores(4, 3, 4).text(), "3");
  EXPECT_THAT(refusal([] { share_of_cores(2, 0, 3); }),
              AllOf(HasSubstr("2 logical Neuron cores for 3 ranks"), HasSubstr("LOGICAL_NC")));
}

}  // namespace neuron_library_test
}  // namespace smp::d2d
