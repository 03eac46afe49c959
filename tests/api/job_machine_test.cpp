// Where stages are taken to be.
#include "api/job_machine.h"

#include "api/runtime.h"
#include "api/two_ranks.h"
#include "base/device.h"

namespace smp {
namespace job_machine_test {

using testing::ElementsAre;
using testing::IsEmpty;
using Place = simulate::Machine::Place;

TEST(JobMachine, DealsTheAdaptersOfANodeToItsStages) {
  EXPECT_THAT(places_of({0, 0, 1, 1}, {-1, -1, -1, -1}, 1),
              ElementsAre(Place{0, 0, 0}, Place{0, 0, 0}, Place{1, 0, 0}, Place{1, 0, 0}));
  EXPECT_THAT(places_of({0, 0, 0, 1}, {-1, -1, -1, -1}, 2),
              ElementsAre(Place{0, 0, 0}, Place{0, 0, 1}, Place{0, 0, 0}, Place{1, 0, 0}));
  EXPECT_THAT(places_of({0, 1, 0, 1}, {-1, -1, -1, -1}, 8),
              ElementsAre(Place{0, 0, 0}, Place{1, 0, 0}, Place{0, 0, 1}, Place{1, 0, 1}));
}

TEST(JobMachine, TellsSocketsOfANodeApart) {
  EXPECT_THAT(places_of({0, 0, 0}, {0, 1, -1}, 1),
              ElementsAre(Place{0, 0, 0}, Place{0, 1, 0}, Place{0, 0, 0}));
}

TEST(JobMachine, StagesOfOneSocketNeedNoPlaces) {
  EXPECT_THAT(places_of({0, 0, 0}, {-1, -1, -1}, 2), IsEmpty());
  EXPECT_THAT(places_of({0, 0, 0}, {1, 1, 1}, 2), IsEmpty());
  EXPECT_THAT(places_of({3}, {0}, 1), IsEmpty());
}

/// As all ranks of a pipeline of `stages` see it.
simulate::Machine machine_of(const Config& config, int stages) {
  simulate::Machine machine;
  run_local(
      stages,
      [&] {
        const auto own = job_machine(Runtime::current());
        if (rank() == 0) machine = own;
      },
      config);
  return machine;
}

TEST(JobMachine, HasTheMemoryAndTheLinksOfItsDevices) {
  Config config;
  config.devices = "h100, a100";
  const auto machine = machine_of(config, 2);
  const auto &h100 = *base::find_device("h100"), &a100 = *base::find_device("a100");
  EXPECT_THAT(machine.devices, ElementsAre("h100", "a100"));
  EXPECT_THAT(machine.memory, ElementsAre(h100.memory_bytes, a100.memory_bytes));
  EXPECT_DOUBLE_EQ(machine.bytes_per_second, a100.reached_bandwidth * a100.link_bandwidth)
      << "as fast as the slower one";
  config.devices = "h100, cpu";
  const auto mixed = machine_of(config, 2);
  EXPECT_EQ(mixed.bytes_per_second, simulate::Machine().bytes_per_second) << "a core has no link";
  EXPECT_NE(mixed.memory, machine.memory);
}

TEST(JobMachine, IsOnTheNodesThatWereAskedFor) {
  Config config;
  config.stages_per_node = 2;
  config.network_gbit = 200;
  const auto machine = machine_of(config, 3);
  EXPECT_THAT(machine.places, ElementsAre(Place{0, 0, 0}, Place{0, 0, 0}, Place{1, 0, 0}));
  EXPECT_DOUBLE_EQ(machine.network.bytes_per_second, 25e9);
}

}  // namespace job_machine_test
}  // namespace smp
