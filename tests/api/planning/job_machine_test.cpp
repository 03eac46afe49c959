// Where stages are taken to be.
#include "api/planning/job_machine.h"

#include "api/rank/rank.h"
#include "api/two_ranks.h"
#include "base/check.h"
#include "base/machine/device.h"
#include "base/memory/machine_memory.h"

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

/// What four ranks are taken to be.
simulate::Machine machine_of_four(const Config& config) {
  simulate::Machine machine;
  run_local(
      4,
      [&] {
        const auto own = job_machine(Rank::current());
        if (rank() == 0) machine = own;
      },
      config);
  return machine;
}

TEST(JobMachine, HasReplicasThatSumTheirGradients) {
  Config config;
  EXPECT_EQ(machine_of_four(config).replicas.count, 1) << "four stages";
  config.pipeline_parallel_degree = 2;
  config.bucket_cap_mb = 3;
  const auto two = machine_of_four(config).replicas;
  EXPECT_EQ(two.count, 2);
  EXPECT_EQ(two.bucket_bytes, 3 << 20);
  EXPECT_EQ(two.link.bytes_per_second, 4e9);
  config.shard_optimizer_state = true;
  const auto sharded = machine_of_four(config).replicas;
  EXPECT_EQ(sharded.bucket_bytes, 3 << 20) << "of sums to owners";
  EXPECT_FALSE(sharded.all_get_sums);
  config.shard_optimizer_state = false;
  config.pipeline_parallel_degree = 1;
  config.tensor_parallel_degree = 2;
  EXPECT_EQ(machine_of_four(config).replicas.count, 2) << "of each slice";
  config.pipeline_parallel_degree = 2;
  config.tensor_parallel_degree = 1;
  config.overlapping_allreduce = false;
  config.stages_per_node = 1;
  config.network_gbit = 8;
  const auto apart = machine_of_four(config).replicas;
  EXPECT_EQ(apart.bucket_bytes, 0);
  EXPECT_EQ(apart.link.bytes_per_second, 1e9);
  config.stages_per_node = 2;
  EXPECT_EQ(machine_of_four(config).replicas.link.bytes_per_second, 0.5e9) << "two on one adapter";
  config.network_ports = 2;
  EXPECT_EQ(machine_of_four(config).replicas.link.bytes_per_second, 1e9);
}

TEST(JobMachine, StagesOfOneSocketNeedNoPlaces) {
  EXPECT_THAT(places_of({0, 0, 0}, {-1, -1, -1}, 2), IsEmpty());
  EXPECT_THAT(places_of({0, 0, 0}, {1, 1, 1}, 2), IsEmpty());
  EXPECT_THAT(places_of({3}, {0}, 1), IsEmpty());
}

/// As "stages 0 2 on 1.5 cores", of each.
std::vector<std::string> hosts(const Arrangement& arrangement, double places,
                               std::vector<std::string> devices = {}) {
  simulate::Machine machine;
  machine.stages = arrangement.pp_size;
  machine.devices = std::move(devices);
  std::vector<std::string> texts;
  for (const auto& host : oversubscribed_hosts(Topology(arrangement, 0), places, machine)) {
    std::string text = "stages";
    for (const int stage : host.stages) text += base::concat(' ', stage);
    texts.push_back(base::concat(text, " on ", host.cores, " cores"));
  }
  return texts;
}

TEST(OversubscribedHosts, AreSharedByTheirRanks) {
  EXPECT_THAT(hosts({.world_size = 2, .pp_size = 2, .machine_of_rank = {}}, 2), IsEmpty());
  EXPECT_THAT(hosts({.world_size = 4, .pp_size = 4, .machine_of_rank = {}}, 2),
              ElementsAre("stages 0 1 2 3 on 2 cores"));
  EXPECT_THAT(hosts({.world_size = 4, .pp_size = 2, .machine_of_rank = {}}, 2),
              ElementsAre("stages 0 1 on 1 cores"))
      << "the other pipeline has the rest";
  EXPECT_THAT(hosts({.world_size = 4, .pp_size = 4, .machine_of_rank = {0, 0, 0, 1}}, 2),
              ElementsAre("stages 0 1 2 on 2 cores"));
}

TEST(OversubscribedHosts, CountNoRanksThatComputeOnDevices) {
  const Arrangement four{.world_size = 4, .pp_size = 4, .machine_of_rank = {}};
  EXPECT_THAT(hosts(four, 2, {"h100", "h100", "cpu", "h100"}), IsEmpty());
  EXPECT_THAT(hosts(four, 2, {"cpu", "h100", "cpu", "cpu"}),
              ElementsAre("stages 0 2 3 on 2 cores"));
}

/// As all ranks of a pipeline of `stages` see it.
simulate::Machine machine_of(const Config& config, int stages) {
  simulate::Machine machine;
  run_local(
      stages,
      [&] {
        const auto own = job_machine(Rank::current());
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
  EXPECT_DOUBLE_EQ(machine.near_bandwidth(0, 1), a100.reached_bandwidth * a100.link_bandwidth)
      << "as fast as the slower one";
  config.devices = "h100, cpu, h100";
  const auto mixed = machine_of(config, 3);
  EXPECT_DOUBLE_EQ(mixed.near_bandwidth(0, 2), h100.reached_bandwidth * h100.link_bandwidth);
  EXPECT_EQ(mixed.near_bandwidth(0, 1), simulate::Machine().bytes_per_second)
      << "a core has no link";
  EXPECT_THAT(mixed.memory,
              ElementsAre(h100.memory_bytes, base::machine_memory() / 3, h100.memory_bytes));
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
