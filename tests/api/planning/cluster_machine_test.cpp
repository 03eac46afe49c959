// Where a job's stages, replicas and slices are on a cluster, and what published layouts come to
// there.
#include "api/planning/cluster_machine.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "api/planning/cluster_text.h"
#include "base/machine/device.h"
#include "partition/model/replica_sums.h"
#include "schedule/schedule.h"
#include "simulate/simulator.h"
#include "smp/error.h"

namespace smp {
namespace cluster_machine_test {

using base::Cluster;
using simulate::Machine;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Place = Machine::Place;

constexpr double kGibi = 1073741824;
constexpr double kLink = 0.8 * 48 * kGibi;  // of a trn1's torus, as reached
constexpr double kNetwork = 0.9 * 100e9;    // of a trn1.32xlarge

/// A job on all cores of a cluster.
Machine machine_on(const std::string& name, int pp, int tp,
                   const std::string& placement = "cluster") {
  const auto cluster = Cluster::named(name);
  const Topology topology({.world_size = cluster.ranks(),
                           .pp_size = pp,
                           .tp_size = tp,
                           .placement = placement,
                           .machine_of_rank = {}},
                          0);
  Machine machine;
  machine.stages = pp;
  machine.direct_links.assign(static_cast<std::size_t>(pp), 1e9);
  machine.replicas.count = topology.rdp_size();
  machine.sharers.count = tp;
  place_on(cluster, topology, machine);
  return machine;
}

TEST(ClusterMachine, LinksStagesByTheirPlaceOnTheTorus) {
  const auto machine = machine_on("trn1.32xlarge:2", 8, 1);
  EXPECT_THAT(machine.places, IsEmpty()) << "four chips of one machine";
  EXPECT_THAT(machine.direct_links, IsEmpty());
  ASSERT_EQ(machine.pairs.size(), 64u);
  const auto cluster = Cluster::named("trn1.32xlarge:2");
  for (int from = 0; from < 8; ++from) {
    for (int to = 0; to < 8; ++to) {
      if (from == to) continue;
      EXPECT_EQ(machine.pair(from, to).bytes_per_second, cluster.path(from, to).bytes_per_second);
      EXPECT_EQ(machine.pair(from, to).latency, cluster.path(from, to).latency);
      EXPECT_EQ(machine.pair(from, to), machine.pair(to, from));
    }
  }
  EXPECT_DOUBLE_EQ(machine.bytes_per_second, kLink) << "of the slowest two";
}

TEST(ClusterMachine, StagesOfSeveralMachinesUseTheAdapterNearThem) {
  const auto machine = machine_on("trn1.32xlarge:2", 2, 32);
  EXPECT_THAT(machine.places, ElementsAre(Place{0, 0, 0}, Place{1, 0, 0}));
  EXPECT_DOUBLE_EQ(machine.network.bytes_per_second, 0.9 * 12.5e9);
  EXPECT_GT(machine.network.latency, machine.latency);
  const auto spread = machine_on("trn1.32xlarge:2", 64, 1);
  EXPECT_EQ(spread.places[31], (Place{0, 0, 7}));
  EXPECT_EQ(spread.places[32], (Place{1, 0, 0}));
  EXPECT_TRUE(spread.on_network(31, 32));
}

TEST(ClusterMachine, RingsOfSlicesAndReplicasPassWhatTheirWiresDo) {
  const auto hlat = machine_on("trn1.32xlarge:64", 1, 8);
  EXPECT_NEAR(hlat.sharers.link.bytes_per_second, 2 * kLink, 1) << "a row, both ways";
  EXPECT_NEAR(hlat.replicas.link.bytes_per_second, kNetwork / 8, 1) << "eight rings a machine";
  const auto wide = machine_on("trn1.32xlarge:64", 1, 32);
  EXPECT_NEAR(wide.replicas.link.bytes_per_second, kNetwork / 32, 1);
  const auto outward = machine_on("trn1.32xlarge:64", 1, 32, "TPD");
  EXPECT_LT(outward.sharers.link.bytes_per_second, kNetwork / 31)
      << "slices on other machines, replicas on this one";
  EXPECT_GT(outward.replicas.link.bytes_per_second, kNetwork / 32);
}

TEST(ClusterMachine, OneRankIsNoRing) {
  const auto machine = machine_on("trn1.2xlarge:1", 2, 1);
  EXPECT_EQ(machine.replicas.seconds_for(1 << 20), 0);
  EXPECT_TRUE(std::isfinite(machine.bytes_per_second));
  for (const auto& link : machine.pairs) EXPECT_TRUE(std::isfinite(link.bytes_per_second));
}

TEST(PlannedCluster, IsOfAsManyRanksAsTheJob) {
  ::setenv(kPlanClusterVariable, "trn2.48xlarge:2", 1);
  const auto topology = [](int ranks) {
    return Topology({.world_size = ranks, .machine_of_rank = {}}, 0);
  };
  EXPECT_EQ(planned_cluster(topology(128))->name(), "trn2.48xlarge:2");
  EXPECT_THROW(static_cast<void>(planned_cluster(topology(64))), UsageError);
  ::setenv(kPlanClusterVariable, "", 1);
  EXPECT_FALSE(planned_cluster(topology(64)).has_value());
  ::unsetenv(kPlanClusterVariable);
  EXPECT_FALSE(planned_cluster(topology(64)).has_value());
}

// ---- published layouts
// ---------------------------------------------------------------------------

/// Llama 7B: 32 layers of 4,096, 32 heads, 11,008 within; 32,000 tokens.
struct Llama7B {
  static constexpr double kLayers = 32, kHidden = 4096, kInner = 11008, kHeads = 32;
  static constexpr double kVocabulary = 32000, kTokens = 4096;  // of a row
  static constexpr double kMatrices =
      kLayers * (4 * kHidden * kHidden + 3 * kHidden * kInner) + kVocabulary * kHidden;
  static constexpr double kParameters = kMatrices + kVocabulary * kHidden;
};

/// One core's part of a row: eight ranks share every layer, and between layers the tokens
/// ("sequence parallelism"). Numbers of 16 bits; the attention's scores are written and read.
class SlicedRow {
 public:
  explicit SlicedRow(const Machine::Sharers& sharers) : sharers_(sharers) {}

  double forward() const { return Llama7B::kLayers * (dense() + attention() + sums()) + head(); }
  /// Products twice; the attention again ("selective recomputation") and its backward.
  double backward() const {
    return Llama7B::kLayers * (2 * dense() + 3 * attention() + sums()) + 2 * head();
  }

 private:
  using M = Llama7B;

  double time(double flops, double bytes) const {
    return core_.seconds(flops / kSlices, base::Precision::kHalf, bytes / kSlices);
  }
  /// Four products, and eight passes over activations between them.
  double dense() const {
    const double weights = 4 * M::kHidden * M::kHidden + 3 * M::kHidden * M::kInner;
    return time(2 * M::kTokens * weights, 0) + 8 * time(0, 2 * 2 * M::kTokens * M::kHidden);
  }
  /// Two products, and a softmax that reads and writes the scores.
  double attention() const {
    const double scores = M::kTokens * M::kTokens;
    return 2 * time(2 * scores * M::kHidden, 2 * scores * M::kHeads) +
           time(0, 2 * 2 * scores * M::kHeads);
  }
  double head() const { return time(2 * M::kTokens * M::kHidden * M::kVocabulary, 0); }
  /// Two gathers and two scattered sums, as much as two sums.
  double sums() const {
    const double bytes = 2 * M::kTokens * M::kHidden;
    return 2 * sharers_.seconds_for(2, 2 * (kSlices - 1) / kSlices * bytes);
  }

  static constexpr double kSlices = 8;
  const Machine::Sharers sharers_;
  const base::Device& core_ = *base::find_device("neuroncore-v2");
};

/// The seconds of a step of 1,024 rows over eight slices and as many replicas as there is room for.
double step_seconds(int machines) {
  const auto machine = machine_on("trn1.32xlarge:" + std::to_string(machines), 1, 8);
  const SlicedRow row(machine.sharers);
  simulate::Trace trace;
  auto& call = trace.calls.emplace_back();
  call.after.seconds = row.forward();
  call.after.backward_seconds = row.backward();
  const auto schedule = schedule::make_simple();
  const int rows = 1024 / machine.replicas.count;
  const auto step =
      simulate::simulate(trace, {0}, machine, {.microbatches = rows, .schedule = schedule.get()});
  EXPECT_NEAR(step.seconds, rows * (row.forward() + row.backward()), 1e-6);
  const double gradients = 2 * Llama7B::kParameters / 8;
  const double sums =
      partitioning::replica_sum_seconds(step, machine.replicas, {std::llround(gradients)});
  const double others = machine.replicas.count - 1.0;
  EXPECT_NEAR(sums,
              2 * (machine.replicas.link.latency +
                   others / machine.replicas.count * gradients / (kNetwork / 8)),
              1e-6);
  return step.seconds + sums;
}

/// The AWS Neuron documentation (training performance of Trn1, SDK 2.16, which the paper on NxDT
/// uses too): 93.3 rows a second on 16 machines.
TEST(PublishedLayouts, SixteenMachinesTakeAsLongAsAwsSays) {
  EXPECT_NEAR(step_seconds(16), 1024 / 93.3, 0.15 * 1024 / 93.3);
}

/// HLAT (64 machines) and the report of 128 say that 1.8 T tokens took "a few weeks", and that 7B
/// scales a little worse than 90 % from the fewest machines to 64.
TEST(PublishedLayouts, OfHlatAndOf128MachinesTakeWeeksAndScale) {
  const double steps = 1.8e12 / (1024 * Llama7B::kTokens), day = 24 * 3600;
  const double hlat = step_seconds(64), report = step_seconds(128);
  EXPECT_GT(steps * hlat / day, 14);
  EXPECT_LT(steps * hlat / day, 28);
  EXPECT_LT(steps * report / day, steps * hlat / day);
  EXPECT_GT(steps * report / day, 7);
  const double scaling = step_seconds(4) * 4 / (hlat * 64);
  EXPECT_GT(scaling, 0.8);
  EXPECT_LT(scaling, 0.97);
  const double operations = 6 * Llama7B::kMatrices * 1024 * Llama7B::kTokens;
  EXPECT_GT(hlat, operations / (64 * 3040e12)) << "no faster than the chips can";
}

TEST(ClusterText, TellsTheStepOfTheJob) {
  const auto cluster = Cluster::named("trn1.32xlarge:64");
  auto machine = machine_on("trn1.32xlarge:64", 1, 8);
  machine.replicas.link.latency = 0;
  PlanSummary summary;
  summary.costs = "operators";
  summary.chosen.step_seconds = 2;
  summary.stages.resize(1);
  summary.stages[0].gradients = std::llround(kNetwork / 8 * 256 / 255);  // a second each way
  const auto text = cluster_text(cluster, machine, PartitionPlan(1, {}, summary));
  EXPECT_THAT(text, HasSubstr("trn1.32xlarge:64, 64 x 16 Trainium, 4 x 4 torus, 2048 ranks\n"));
  EXPECT_THAT(text, HasSubstr("tensor parallelism: rings of 8, 82.5 GB/s a rank\n"));
  EXPECT_THAT(text, HasSubstr("replicas: rings of 256, 11."));
  EXPECT_THAT(text, HasSubstr("step of the job: 4 s, of which 2 s are sums"));
  summary.costs = "counts";
  EXPECT_THAT(cluster_text(cluster, machine, PartitionPlan(1, {}, summary)),
              testing::Not(HasSubstr("step of the job")));
}

}  // namespace cluster_machine_test
}  // namespace smp
