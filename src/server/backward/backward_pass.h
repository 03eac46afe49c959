// server/backward/backward_pass.h: one backward over torch::autograd::Node (paper §4.1, App. B),
// whole or in two parts (Qi et al., Zero Bubble Pipeline Parallelism, 2023).
//
// Of a backward in two parts the first leaves out what only leaves need: it puts nodes off below
// which there are leaves alone, and of nodes that lead to leaves and to others the part for the
// leaves. A product is computed twice, each time for some of its edges; what other such nodes give
// for leaves is kept. The second part takes up what was put off in the order in which one pass
// would have come to it, so sums have the same bits.
//
// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/backward/backward_graph.h"
#include "server/backward/executor.h"
#include "server/backward/reply_queue.h"

namespace smp::server {

class BackwardPass {
 public:
  /// @param sink        nullptr: gradients go into `.grad` of the leaves
  /// @param statistics  receives the counts of this pass in addition; must outlive it
  BackwardPass(const edge_list& roots, const edge_list& captures, const BackwardOptions& options,
               GradientSink* sink, BackwardStatistics& statistics)
      : graph_(roots, captures, options.accumulate, options.border),
        options_(options),
        sink_(sink),
        statistics_(statistics),
        captured_(captures.size()) {
    if (options.accumulate && !options.create_graph) graph_.find_older_nodes();
  }

  /// Runs the pass, except for what is put off; may suspend the fiber. @return the captured
  /// gradients, in the order of the captures
  variable_list run(const edge_list& roots, variable_list&& gradients);

  /// Makes run() put off what only leaves need. Must be called before run().
  void put_off_what_only_leaves_need();
  bool has_put_off() const noexcept { return !put_off_.empty(); }
  /// Runs what run() has put off; may suspend the fiber. Must be called once, after run().
  void run_put_off();

 private:
  enum class Part : std::uint8_t { kWhole, kFirst, kSecond };
  enum class Targets : std::uint8_t { kAll, kLeavesOnly, kAllOthers };

  /// A node all of whose gradients have arrived, or whose part for leaves was put off.
  struct ReadyNode {
    std::uint64_t replies;  // taken before
    std::uint64_t sequence_number;
    NodeIndex index;
    /// Puts nodes that became ready after fewer replies first, then those with higher sequence
    /// numbers, as LibTorch's engine does. Equal nodes (leaves) keep the order that LibTorch's heap
    /// gives them.
    bool operator<(const ReadyNode& other) const noexcept {
      return replies != other.replies ? replies > other.replies
                                      : sequence_number < other.sequence_number;
    }
  };
  using ReadyNodes = std::priority_queue<ReadyNode>;
  /// The part that is put off of a node which leads to leaves and to other nodes: its gradients for
  /// the leaves.
  struct ForLeaves {
    variable_list inputs = {};  // of a product, to be computed again; else none
    variable_list outputs = {};
    bool reaches = false;
  };

  void deliver_roots(const edge_list& roots, variable_list&& gradients);
  void work();
  void deliver(NodeIndex target, std::uint32_t input, at::Tensor&& gradient, bool reaches);
  void tie(NodeIndex index, AsyncNode& node);
  void note_rest(NodeIndex index, const AsyncNode& node);
  void evaluate(NodeIndex index);
  void execute(NodeIndex index, variable_list&& inputs);
  variable_list compute(const GraphNode& entry, Targets targets, variable_list&& inputs);
  void compute_for_others(NodeIndex index, variable_list&& inputs);
  void finish_for_leaves(NodeIndex index, ForLeaves&& kept);
  void start(NodeIndex index, AsyncNode& node, variable_list&& inputs);
  void suspend_in(NodeIndex index, module::SuspendingNode& node, variable_list&& inputs);
  void give_place(NodeIndex index);
  void finish_started(Reply&& reply);
  void finish(NodeIndex index, variable_list&& outputs, const variable_list* inputs, bool reaches);
  void pass_on(NodeIndex index, variable_list&& outputs, bool reaches);
  void pass_on_to(Targets targets, NodeIndex index, variable_list& outputs, bool reaches);
  void put_off(NodeIndex index, ForLeaves&& kept);
  bool is_among(Targets targets, NodeIndex target) const;
  void keep_captures(const GraphNode& entry, const variable_list& inputs);
  bool give_to_sink(Node& node, variable_list& inputs);
  void park();

  BackwardGraph graph_;
  const BackwardOptions options_;
  GradientSink* const sink_;
  BackwardStatistics& statistics_;
  variable_list captured_;
  Part part_ = Part::kWhole;
  ReadyNodes ready_;
  std::uint64_t replies_taken_ = 0;
  ReplyQueue replies_;
  ReadyNodes put_off_;
  std::unordered_map<NodeIndex, ForLeaves> for_leaves_;
  /// Older nodes, and who has left them something.
  std::vector<std::pair<NodeIndex, NodeIndex>> left_;
  Node* current_ = nullptr;  // to blame for an exception
};

}  // namespace smp::server
