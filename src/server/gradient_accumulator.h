// server/gradient_accumulator.h: sums gradients in an order that timing cannot change (§4.6).
//
// Two levels, as one process does it: what one microbatch contributes to one parameter is summed in
// the natural order of backward (descending execution index); then, in microbatch order, the leaf's
// hooks run once and one `.grad +=` follows. Only the accumulation is ordered, not the execution.
// Threads: the rank's; the calls that apply gradients run hooks and LibTorch code, so they belong
// on a fiber, never in a poll.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "server/executor.h"

namespace smp::server {

class GradientAccumulator {
 public:
  using Leaf = torch::autograd::AccumulateGrad;
  /// Throws if a gradient of `parameter` must not exist on this rank (§4.2).
  using Guard = std::function<void(const at::Tensor& parameter)>;

  explicit GradientAccumulator(Guard guard) : guard_(std::move(guard)) {}

  /// Starts a step; nothing of an earlier one may be left.
  void begin(int microbatches);
  /// Adds everything that is left, late contributions last. @throws InternalError on a leak.
  void finish();
  /// Forgets everything: the step failed.
  void drop() noexcept;

  /// An execution of `microbatch` starts on this rank; returns its index.
  int open(int microbatch, bool late);
  /// The graph that backward of the execution would walk.
  void recorded(int microbatch, int index, edge_list roots);
  /// No backward of the execution will follow.
  void close(int microbatch, int index);
  bool is_late(int microbatch, int index) const;

  // Marks only; settle() draws the conclusions. Safe in a poll.
  void mark_forward_done(int microbatch) noexcept;
  void mark_microbatch_done(int microbatch) noexcept;
  void mark_closed(int microbatch, int index) noexcept;

  /// Accumulates what has become certain.
  void settle();

  /// Sink of one backward pass over one execution.
  class Pass final : public GradientSink {
   public:
    /// `late`: the pass follows the microbatch's first backward.
    Pass(GradientAccumulator& accumulator, int microbatch, int index, bool late)
        : accumulator_(accumulator), microbatch_(microbatch), index_(index), late_(late) {}
    void put(Leaf& leaf, variable_list&& gradients) override;
    void check_capture(Leaf& leaf) override { accumulator_.guard_(leaf.variable); }

   private:
    GradientAccumulator& accumulator_;
    int microbatch_;
    int index_;
    bool late_;
  };

  /// Bytes of gradients that wait for their turn, now and at most since begin().
  std::size_t waiting_bytes() const noexcept { return waiting_bytes_; }
  std::size_t most_waiting_bytes() const noexcept { return most_waiting_bytes_; }

 private:
  using ParameterId = const void*;
  using NodePtr = c10::intrusive_ptr<Node>;

  struct Run {  // one execution
    bool late = false;
    bool live = true;
    bool walked = false;
    edge_list roots;
    std::unordered_set<ParameterId> reached;
    std::unordered_set<ParameterId> delivered;
  };
  struct Microbatch {
    bool forward_done = false;
    bool done = false;
    std::vector<Run> runs;
  };
  struct Contribution {
    int index;
    at::Tensor gradient;
  };
  struct Partial {  // what one microbatch has given to one parameter
    NodePtr leaf;
    bool grad_mode = false;
    at::Tensor sum;
    std::vector<Contribution> waiting;  // by descending index, then arrival
  };
  using Key = std::pair<bool, int>;  // (late, microbatch)
  using Partials = std::map<Key, Partial>;

  void put(Leaf& leaf, variable_list&& gradients, int microbatch, int index, bool late);
  void settle(ParameterId parameter);
  bool settle(ParameterId parameter, const Partials& all, const Key& key, Partial& partial);
  void absorb_waiting(ParameterId parameter, const Key& key, Partial& partial);
  bool lower_microbatches_closed(ParameterId parameter, const Partials& all, int microbatch);
  bool may_still_come(Microbatch& microbatch, ParameterId parameter, int above, bool late);
  static bool reaches(Run& run, ParameterId parameter);
  static void add(Partial& partial, at::Tensor&& gradient);
  void apply(Partial& partial);

  Guard guard_;
  std::vector<Microbatch> microbatches_;
  std::unordered_map<ParameterId, Partials> parameters_;
  bool finishing_ = false;
  std::size_t waiting_bytes_ = 0;
  std::size_t most_waiting_bytes_ = 0;
};

}  // namespace smp::server
