// partition/model/cut_bytes.cpp: one pass over the requests of traced microbatches.
#include "partition/model/cut_bytes.h"

#include "simulate/step_program.h"

namespace smp::partitioning {

std::vector<CutBytes> cut_bytes(const simulate::Trace& trace, const std::vector<int>& stages,
                                const simulate::Machine& machine) {
  std::vector<CutBytes> cuts(static_cast<std::size_t>(machine.stages));
  const auto move = [&](std::int64_t bytes, int from, int to) {
    if (from == to) return;  // passed on within a stage
    cuts[from].out += bytes;
    cuts[to].in += bytes;
  };
  const auto program = simulate::compile(trace, stages, machine);
  for (const simulate::Task& task : program.tasks) {
    if (task.is_body()) continue;
    const int giver = task.passed_on_by >= 0 ? task.passed_on_by : task.caller;
    move(task.there.bytes, program.tasks[giver].stage, task.stage);
    if (task.passed_on_to < 0) move(task.back.bytes, task.stage, program.tasks[task.caller].stage);
  }
  const auto traced = static_cast<std::int64_t>(program.num_traced());
  for (CutBytes& cut : cuts) {
    cut.in /= traced;
    cut.out /= traced;
  }
  return cuts;
}

}  // namespace smp::partitioning
