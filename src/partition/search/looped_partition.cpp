// partition/search/looped_partition.cpp: a contiguous partition for more stages than there are.
#include "partition/search/strategies.h"

namespace smp::partitioning {

std::vector<int> looped_partition(const CostTree& tree, const simulate::Machine& machine,
                                  int loops) {
  simulate::Machine rounds = machine;
  rounds.stages = machine.stages * loops;
  rounds.memory.clear();
  for (int s = machine.stages; s < rounds.stages && !machine.speeds.empty(); ++s) {
    rounds.speeds.push_back(machine.speeds[s % machine.stages]);
  }
  std::vector<int> stages = contiguous_partition(tree, rounds);
  for (int& stage : stages) stage %= machine.stages;
  return stages;
}

}  // namespace smp::partitioning
