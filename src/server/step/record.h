// server/step/record.h: what a module execution keeps for its backward.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "module/node_pointer.h"
#include "server/backward/executor.h"
#include "server/graph/graph_border.h"
#include "server/modules/settings_board.h"
#include "server/protocol/execution_modes.h"
#include "server/protocol/message.h"
#include "server/step/graph_turns.h"
#include "server/sums/gradient_accumulator.h"

namespace smp::server {

/// The autograd graph between the inputs and the outputs of one module execution, with what its
/// backward needs (paper App. B).
struct Record {
  NodePointer<BoundaryInput> inputs;
  edge_list outputs;  ///< one an output tensor; invalid where it needs no gradient
  ModuleId module;
  std::int32_t microbatch = -1;
  ExecutionId execution;
  ExecutionModes modes;
  CallPosition position;         ///< of the call that made it
  SettingsBoard::View settings;  ///< at the end of its forward
  std::uint32_t num_passes = 0;  ///< through it so far
  /// Of the records that share its graph: a backward with create_graph went through it, or made it.
  /// Passes leave that graph as it is; it goes with the last of the records. nullptr: its own.
  std::shared_ptr<GraphTurns> turns = nullptr;
  /// What passes over graphs of its gradients have brought into its nodes, for its own next pass:
  /// by the record that was walked.
  std::vector<std::pair<RecordId, LeftGradients>> left = {};

  /// Takes the position of the calls that hooks make during the next pass over the record: after
  /// all calls of its forward, and after those of earlier passes.
  CallPosition position_of_next_pass();
};

}  // namespace smp::server
