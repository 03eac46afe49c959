// partition/call_recorder.h: from "a call began, a call ended" to the calls of a trace (paper App.
// C.1).
#pragma once

#include <cstdint>
#include <vector>

#include "partition/module_tree.h"
#include "simulate/trace.h"

namespace smp::partitioning {

/// Records one run of a step body that calls several models. The time between two events
/// counts for the innermost call; outside of calls, for the body, which every model sees as its
/// own.
class CallRecorder {
 public:
  struct Call {
    int model = -1;  ///< -1: the body
    int number = -1;
    bool operator==(const Call&) const = default;
  };

  /// @param trees  of the models; they outlive this
  /// @param now    of the caller's clock, in seconds; all later times are of the same clock
  CallRecorder(std::vector<const ModuleTree*> trees, double now);

  void begin(int model, int module, std::int64_t input_bytes, double now);
  void end(std::int64_t output_bytes, double now);
  /// The body calls backward on the result of `call`.
  void note_loss(const Call& call);
  /// The body returned.
  void finish(double now);

  /// The innermost call that has not ended.
  Call current() const;
  /// Index of its module in the tree of its model; 0, the model itself, for the body.
  int current_module() const;
  simulate::TracedCall& at(const Call& call) { return traces_[call.model].calls[call.number]; }

  /// One trace a model, without foreign uses and activations.
  std::vector<simulate::Trace>& traces() { return traces_; }

 private:
  struct Frame {
    Call call;
    double pending = 0;  // computed since its previous own call
  };
  void advance(double now);
  double& pending(int model);

  std::vector<const ModuleTree*> trees_;
  std::vector<simulate::Trace> traces_;
  std::vector<double> body_pending_;  // by model
  std::vector<Frame> frames_;
  double last_;
};

}  // namespace smp::partitioning
