// What messages cost by a clock. Durations are the machine's: only their order of magnitude is
// certain.
#include "api/planning/message_probe.h"

#include <gtest/gtest.h>

#include "api/rank/rank.h"
#include "smp/session.h"

namespace smp {
namespace message_probe_test {

TEST(MessageProbe, MeasuresOnTheFirstRankWithAnyNumberOfPeers) {
  for (const int ranks : {2, 3, 12}) {
    run_local(ranks, [&] {
      const simulate::Machine usual;
      const auto measured = with_measured_messages(Rank::current(), usual, /*lends=*/false);
      if (rank() == 0) {
        EXPECT_NE(measured.latency, usual.latency) << "of " << ranks;
        EXPECT_GT(measured.latency, 1e-8);
        EXPECT_LT(measured.latency, 1);
        EXPECT_DOUBLE_EQ(measured.handling / measured.latency, usual.handling / usual.latency);
        EXPECT_GT(measured.bytes_per_second, 1e6);
      } else {
        EXPECT_EQ(measured.latency, usual.latency);
      }
    });
  }
}

TEST(MessageProbe, TellsTheNetworkFromWhatIsNear) {
  run_local(4, [&] {
    simulate::Machine usual;
    usual.places = {{0, 0, 0}, {0, 0, 0}, {1, 0, 0}, {1, 0, 0}};
    const auto both = with_measured_messages(Rank::current(), usual, /*lends=*/false);
    usual.places = {{0, 0, 0}, {1, 0, 0}, {2, 0, 0}, {3, 0, 0}};
    const auto far = with_measured_messages(Rank::current(), usual, /*lends=*/false);
    if (rank() != 0) return;
    EXPECT_NE(both.latency, usual.latency);
    EXPECT_NE(both.network.latency, usual.network.latency);
    EXPECT_NE(both.network.bytes_per_second, usual.network.bytes_per_second);
    EXPECT_EQ(far.latency, usual.latency) << "nobody is near";
    EXPECT_NE(far.network.latency, usual.network.latency);
  });
}

TEST(MessageProbe, AloneKeepsWhatItWasGiven) {
  run_local(1, [] {
    simulate::Machine machine;
    machine.latency = 0.5;
    EXPECT_EQ(with_measured_messages(Rank::current(), machine, /*lends=*/false).latency, 0.5);
  });
}

}  // namespace message_probe_test
}  // namespace smp
