// trial/tracer/operator_notes.h: what is noted of every operator that a traced body runs.
#pragma once

#include <ATen/record_function.h>

#include "trial/graph/call_recorder.h"
#include "trial/graph/live_log.h"
#include "trial/operators/operator_watch.h"
#include "trial/operators/write_guard.h"
#include "trial/tracer/parameter_reads.h"
#include "trial/tracer/state_watch.h"

namespace smp::partitioning {

/// The notes about operators of one run; each operator counts for the innermost call. The objects
/// that are passed by reference must outlive this one.
class OperatorNotes final : public OperatorListener {
 public:
  OperatorNotes(CallRecorder& calls, WriteGuard& guard) : calls_(calls), guard_(guard) {}

  /// Starts to note also how long operators take, whose weights they read, and what products
  /// return.
  void note_costs(OperatorMeter& meter, ParameterReads& reads, LiveLog& live);
  /// Starts to note also what operators write that modules keep.
  void note_state(StateWatch& states) { states_ = &states; }
  /// True if costs or state are noted; else only what a run writes matters.
  bool are_wanted() const { return meter_ != nullptr || states_ != nullptr; }

  void before(const at::RecordFunction& op, const OperatorKind& kind) override;
  void after(const at::RecordFunction& op) override;

 private:
  void note_reads(const at::RecordFunction& op, const OperatorKind& kind);
  void note_writes(const at::RecordFunction& op, const OperatorKind& kind);
  void note_normalisation(const at::RecordFunction& op);
  void note_product(const at::RecordFunction& op);

  CallRecorder& calls_;
  WriteGuard& guard_;
  OperatorMeter* meter_ = nullptr;
  ParameterReads* reads_ = nullptr;
  LiveLog* live_ = nullptr;
  double product_began_ = 0;  // on the meter
  StateWatch* states_ = nullptr;
  int depth_ = 0;  // operators that call operators
};

}  // namespace smp::partitioning
