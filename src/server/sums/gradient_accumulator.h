// server/sums/gradient_accumulator.h: sums gradients in an order that timing cannot change
// (docs/design.md, Accumulation).
//
// Two levels, as one process does it: what one microbatch contributes to one parameter is summed in
// the natural order of backward (descending order key of the execution); then, in microbatch order,
// the leaf's hooks run once and one `.grad +=` follows. What follows the body's first backward is
// added at the end of the step, in the same order; what code of the step computes by LibTorch's own
// engine, after that. Only the accumulation is ordered, not the
// execution: executions begin, deliver and close in any order.
//
//   put() ─► Cell (microbatch, parameter): heap of what waits ─► sum      ─► turn of the parameter
//            passes the executions that reach the parameter,     complete:   passes microbatches;
//            last to first; stops at one that is open and        all are     hooks, `.grad +=`
//            has delivered nothing: its one blocker              passed
//
// What stops is registered with what stops it, and looked at again when that has ended. Nothing is
// passed twice, so a step costs O(executions x parameters that each reaches), and nothing but
// tensors is allocated once the arrays have grown. What is known of the microbatches stands in
// step_microbatches.h, the sums of cells in cell_sums.h; here are the turns of the parameters.
//
// Threads: the rank's; the calls that apply gradients run hooks and LibTorch code, so they belong
// on a fiber, never in a poll. A hook may suspend its fiber.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "server/graph/gradient_sink.h"
#include "server/protocol/order_key.h"
#include "server/sums/cell_sums.h"
#include "server/sums/gradient_listener.h"
#include "server/sums/own_pass_gradients.h"
#include "server/sums/parameter_numbers.h"
#include "server/sums/step_microbatches.h"
#include "server/sums/unplaced_leaves.h"
#include "server/sums/wide_sums.h"

namespace smp::server {

/// Says when a sum of gradients enters `.grad`.
class GradientAccumulator {
 public:
  using Leaf = torch::autograd::AccumulateGrad;
  /// Throws if a gradient of `parameter` must not exist on this rank (docs/design.md, Foreign
  /// parameters). Asked once a step about each parameter, so the answer must last for a step.
  using Guard = std::function<void(const at::Tensor& parameter)>;

  /// Returns the key of the random numbers that hooks of a leaf draw.
  using RandomKey = std::function<std::uint64_t(int microbatch, const at::Tensor& leaf)>;

  /// `numbers` outlives this object. It is changed by begin() and whenever an unknown leaf is met.
  /// @param random_key  gives hooks of a leaf a random stream of their own, wherever they run;
  /// none: they draw from the stream of the fiber that runs them
  /// @param wide_sums   gradients of 16 bits are added in float32
  GradientAccumulator(ParameterNumbers& numbers, Guard guard, RandomKey random_key = {},
                      bool wide_sums = false)
      : numbers_(numbers),
        guard_(std::move(guard)),
        random_key_(std::move(random_key)),
        sums_(numbers),
        own_(numbers, step_),
        wide_(wide_sums) {}
  GradientAccumulator(const GradientAccumulator&) = delete;
  GradientAccumulator& operator=(const GradientAccumulator&) = delete;

  /// Starts a step; nothing of an earlier one may be left.
  /// @param listener  is told which gradients are final; may be nullptr; must outlive the step
  void begin(int microbatches, GradientListener* listener = nullptr);
  /// Ends the step: adds everything that is left to `.grad`, gradients that followed a first
  /// backward last.
  /// @throws InternalError on a leak, and what hooks throw.
  void finish();
  /// Forgets everything because the step failed. Later marks and closes of its executions are
  /// ignored.
  void drop() noexcept;

  /// Opens an execution of `microbatch` on this rank. `order` must differ from those of its other
  /// executions, which may be opened in any order. One that is opened when the microbatch's forward
  /// is done counts as after the first backward, too.
  ExecutionId open(int microbatch, OrderKey order, bool after_first_backward);
  /// Sets the graph that backward of the execution would walk. Called once per execution, before
  /// the microbatch's forward is marked as done; after that only a repetition is possible, which is
  /// ignored.
  void recorded(ExecutionId id, edge_list roots);
  /// Calls mark_closed() and settle(), because no backward of the execution will follow.
  void close(ExecutionId id);
  /// True if everything that the execution gives follows the body's first backward.
  bool after_first_backward(ExecutionId id) const { return step_.at(id).after_first_backward; }

  // Marks only: settle() draws the conclusions. Neither allocates nor frees; safe in a poll.

  /// Marks that the body of `microbatch` begins its first backward: all executions before it are
  /// open, and recorded or closed.
  void mark_forward_done(int microbatch) noexcept { step_.mark_forward_done(microbatch); }
  /// Marks that the body of `microbatch` has ended: all its executions have delivered.
  void mark_microbatch_done(int microbatch) noexcept { step_.mark_done(microbatch); }
  void mark_closed(ExecutionId id) noexcept { step_.mark_closed(id); }

  /// Accumulates what the marks have made certain. Runs hooks, which may suspend the fiber.
  void settle();

  /// The sink of one backward pass over one execution.
  class Pass final : public GradientSink {
   public:
    /// `after_first_backward`: the pass follows the microbatch's first backward, though the
    /// execution may not.
    Pass(GradientAccumulator& accumulator, ExecutionId id, bool after_first_backward)
        : accumulator_(accumulator), id_(id), after_first_backward_(after_first_backward) {}
    void put(Leaf& leaf, variable_list&& gradients) override;
    void check_capture(Leaf& leaf) override { accumulator_.guard_(leaf.variable); }

   private:
    GradientAccumulator& accumulator_;
    ExecutionId id_;
    bool after_first_backward_;
  };

  /// Takes what code of the step computes by LibTorch's own engine.
  OwnPasses& own_passes() noexcept { return own_; }
  /// The gradients that wait for their turn.
  const WaitingGradients& waiting() const noexcept { return sums_.waiting(); }
  /// Counts of the work done since begin(); for tests.
  const CellSums::Effort& effort() const noexcept { return sums_.effort(); }

 private:
  static constexpr std::uint32_t kNone = ExecutionId::kNone;

  struct Parameter {
    std::uint32_t turn = 0;           // lower microbatches have given everything
    std::uint32_t sums = 0;           // cells that something was given to, not applied yet
    std::uint32_t waits_for = kNone;  // the microbatch, if its forward must be done first
    bool admitted = false;            // the guard has seen it
    bool applying = false;            // a hook may have suspended its fiber
  };

  void put(Leaf& leaf, variable_list&& gradients, ExecutionId id, bool after_first_backward);
  ParameterNumber admit(const at::Tensor& parameter);
  void look_at(std::uint32_t microbatch, ParameterNumber number);
  void take_turns(ParameterNumber number);
  bool turn_is_over(ParameterNumber number);
  void draw_conclusions(std::uint32_t microbatch);
  void wake_waiters(ExecutionId id);
  void apply_cell(std::uint32_t microbatch, ParameterNumber number);
  void tell_if_final(const Leaf& leaf, ParameterNumber number);
  void apply(LeafSum&& sum, ParameterNumber number, std::uint32_t microbatch,
             bool after_first_backward);
  /// True for a leaf that belongs to no placed model. Such a leaf waits for no microbatch whose
  /// graph is not known to reach it: a body that made it reads its gradient right after the
  /// backward.
  bool of_no_model(ParameterNumber number) const noexcept { return number >= numbers_.placed(); }

  ParameterNumbers& numbers_;
  Guard guard_;
  RandomKey random_key_;
  GradientListener* listener_ = nullptr;
  StepMicrobatches step_;
  std::vector<Parameter> parameters_;  // by number
  CellSums sums_;
  UnplacedLeaves unplaced_;
  OwnPassGradients own_;
  WideSums wide_;
  std::uint64_t arrivals_ = 0;
};

}  // namespace smp::server
