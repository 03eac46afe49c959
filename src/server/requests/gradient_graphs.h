// server/requests/gradient_graphs.h: gradients that have a graph themselves (create_graph).
#pragma once

#include <optional>

#include "server/graph/graph_border.h"
#include "server/running/execution_scope.h"
#include "server/step/record.h"
#include "server/step/server_core.h"

namespace smp::server {

/// Walks a record such that what it gives can be differentiated again. That graph leads to the
/// gradients of the request, to the inputs of the record, and to leaves; it is a record like that
/// of a forward, so there are derivatives of any order. Threads: the rank's.
class GradientGraphs {
 public:
  explicit GradientGraphs(ServerCore& core) : core_(core) {}

  /// Computes the gradients of the record's inputs, of which the answer has the values. May suspend
  /// the fiber.
  /// @param record  the one that `request` names, whose turn it is
  /// @param scope   of the execution of `request`
  BackwardResponse run(BackwardRequest& request, const Record& record, ExecutionScope& scope);

  /// Where the pass of `request` over such a graph ends, since one over the record whose gradients
  /// it is the graph of follows; nothing: nowhere.
  std::optional<GraphBorder> border_of(const BackwardRequest& request) const;
  /// Keeps what the pass has brought there.
  void leave(const BackwardRequest& request, GraphBorder&& border);
  /// True if it has brought anything, and nobody has taken it yet.
  bool has_left(const BackwardRequest& request) const;
  /// Adds to the roots of a pass over `record` what others have left at it for `request`.
  static void add_rest(const BackwardRequest& request, const Record& record, edge_list& roots,
                       variable_list& gradients);

 private:
  void keep_record(const Record& of, NodePointer<BoundaryInput> inputs, BackwardResponse& response,
                   RecordId older, ExecutionScope& scope);

  ServerCore& core_;
};

}  // namespace smp::server
