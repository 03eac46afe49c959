// trial/tracer/traced_run.h: what is noted while a body runs once.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <vector>

#include "base/machine/device.h"
#include "base/work_clock.h"
#include "partition/model/module_tree.h"
#include "simulate/trace.h"
#include "trial/graph/call_recorder.h"
#include "trial/graph/live_log.h"
#include "trial/operators/operator_watch.h"
#include "trial/tracer/parameter_reads.h"

namespace smp::partitioning {

/// The purpose of a run.
enum class Watching {
  kSizes,  ///< to price operators and to measure tensors
  kClock,  ///< to measure times; operators are not watched, which would take time too
  kState,  ///< to see what modules write
  kNothing,
};

/// One run of a body: its calls, its times, and the tensors that its calls hand to each other.
/// Threads: the rank's.
class TracedRun {
 public:
  /// The run begins. References must outlive it.
  /// @param trees    of the models that the body calls
  /// @param devices  for which operators are priced
  /// @param clock    of timed runs
  /// @param reads    which module gets which weight
  TracedRun(std::vector<const ModuleTree*> trees, const std::vector<const base::Device*>& devices,
            Watching watching, base::WorkClock& clock, ParameterReads& reads);
  TracedRun(const TracedRun&) = delete;
  TracedRun& operator=(const TracedRun&) = delete;

  Watching watching() const noexcept { return watching_; }
  bool takes_sizes() const noexcept { return watching_ == Watching::kSizes; }
  CallRecorder& calls() noexcept { return calls_; }
  LiveLog& live() noexcept { return live_; }
  OperatorMeter& meter() noexcept { return meter_; }
  /// The present reading. If operators are priced, it ends with one more device, on which nothing
  /// computes and only waits are counted.
  Reading now() const;

  /// Notes that the innermost call would wait so long for other ranks in a step.
  void note_wait(double forward_seconds, double backward_seconds);
  /// Notes that the backward of `roots` would follow here in a step.
  void note_backward(const std::vector<at::Tensor>& roots);
  /// Notes that the innermost call passes these tensors to the next call.
  void note_passed(const std::vector<at::Tensor>& tensors);
  /// Notes that these tensors are handed to the innermost call, as arguments or as results.
  void note_handed(const std::vector<at::Tensor>& tensors, bool returned);
  /// Notes these tensors as results of the innermost call. A tensor that it got from a call of its
  /// own still counts as that call's result.
  void note_result(const std::vector<at::Tensor>& tensors);

  /// While it lives, time counts for no module: the tracer itself is at work.
  class Bookkeeping {
   public:
    explicit Bookkeeping(TracedRun& run) : run_(run) {
      if (run_.watching_ == Watching::kClock) static_cast<void>(run_.clock_.now());
    }
    ~Bookkeeping() {
      if (run_.watching_ == Watching::kClock) run_.clock_.skip();
    }
    Bookkeeping(const Bookkeeping&) = delete;
    Bookkeeping& operator=(const Bookkeeping&) = delete;

   private:
    TracedRun& run_;
  };

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  /// A tensor that a call returned. It may be gone, but no other tensor gets its address meanwhile.
  struct Returned {
    CallRecorder::Call call;
    Weak tensor;
  };

  const Watching watching_;
  base::WorkClock& clock_;
  ParameterReads& reads_;
  OperatorMeter meter_;
  simulate::IntervalTimes waited_;  // for other ranks, so far
  LiveLog live_;
  std::unordered_map<const c10::TensorImpl*, Returned> returned_by_;
  CallRecorder calls_;
};

}  // namespace smp::partitioning
