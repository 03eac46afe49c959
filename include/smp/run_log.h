// smp/run_log.h: what a training run leaves behind: numbers per step, the plan, pictures.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "smp/detail/export.h"

namespace smp {

class DistributedModelBase;

/// The timing of one step, over all stages.
struct StepTiming {
  double seconds = 0;  ///< from the first rank's start to the last one's end
  /// Share of all stages' time in which no module ran; of processor time if oversubscribed.
  double bubble = 0;
  bool oversubscribed = false;  ///< ranks outnumber cores
};

/// Where a RunLog makes its folder, and what its picture of the loss shows; the same on all ranks.
struct RunLogOptions {
  std::string parent_folder = "runs";
  std::string loss_unit = {};  ///< shown on the axis: "nats per byte"
  /// A loss worth comparing with, drawn as a dashed line.
  std::optional<double> loss_baseline = {};
  std::string loss_baseline_name = "baseline";
  /// Number of append() calls of the job that this one continues; the numbers of lines go on from
  /// it.
  std::int64_t lines_before = 0;
  /// The folder() of the run that this job goes on with, after `lines_before` lines: they stay, and
  /// what later steps left is removed from metrics.jsonl and the file for TensorBoard before
  /// anything is appended, so that no step is there twice. Empty: a new folder. What rank 0 says
  /// counts. Runs that `smp sweep` starts take a new folder in any case.
  std::string continues = {};
};

/// A folder `runs/NAME-YYYYmmdd-HHMMSS` (UTC) that rank 0 fills: run.json (with how many threads
/// and on which processors the ranks compute, too), plan.json, metrics.jsonl and the same for
/// TensorBoard as the run goes; trace.json, the pictures (loss, timeline, partition, memory) and
/// report.html, which shows all of it, at its end. Every rank makes one, after smp::init, with the
/// same arguments. From then on steps record when which module ran (a pipeline's step takes as long
/// as without; a remote call there and back half a microsecond more), and what was between them: an
/// optimizer's step(), or the program itself.
class SMP_API RunLog {
 public:
  /// Makes the folder, or goes on in that of an earlier job. All ranks call it, outside of steps.
  /// @param name     the beginning of the folder's name
  /// @param model    must outlive this object
  /// @param options  where the folder is made, and what its pictures show
  /// @throws ResourceError  the folder or what is in it cannot be made; on every rank.
  /// @throws UsageError     options are wrong; RunLogOptions::continues is no run's folder, or one
  ///                        of its files is broken; on every rank.
  RunLog(const std::string& name, const DistributedModelBase& model,
         const RunLogOptions& options = {});
  /// Ends the log. If finish() was not called, rank 0 draws what it can from its own files, and
  /// logs what it cannot.
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  /// Returns the path of the folder, on every rank.
  const std::string& folder() const noexcept;

  /// Returns the last step's timing, the same on all stages of a replica. All ranks call it, after
  /// steps.
  StepTiming measure();

  /// Appends a line to metrics.jsonl: the number of the step, counted from 1 (after
  /// RunLogOptions::lines_before), these numbers in their order, the last measure(), and where the
  /// program has a GradScaler its factor and the steps that it has skipped so far, as of its last
  /// update(): "loss_scale" and "skipped_steps", unless `numbers` has such names. "loss" is what
  /// loss.svg shows. Does nothing on other ranks than 0.
  /// @throws UsageError  after finish().
  void append(const std::vector<std::pair<std::string, double>>& numbers);

  /// Collects the trace of the last step (the last with gradients, if evaluations came after it)
  /// and draws the pictures. All ranks call it, outside of steps.
  /// @return  the paths of the pictures, on rank 0.
  std::vector<std::string> finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace smp
