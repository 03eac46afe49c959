// samples/t5/report.h: what the trainer shows and keeps of a run.
#pragma once

#include <smp/run_log.h>
#include <smp/smp.h>

#include <cstdint>
#include <string>
#include <vector>

#include "console.h"
#include "corpus.h"
#include "options.h"
#include "recipe.h"
#include "t5.h"

namespace t5 {

/// Compares the first steps of the ranks with those of one process.
class EqualityCheck {
 public:
  /// @param reference  the steps of one process, in order
  explicit EqualityCheck(std::vector<StepResult> reference) : reference_(std::move(reference)) {}

  /// @throws std::runtime_error  `result` of `step` (from 0) is not what one process computed.
  void compare(int64_t step, const StepResult& result);

  int64_t num_steps() const { return static_cast<int64_t>(reference_.size()); }
  std::string summary() const;

 private:
  std::vector<StepResult> reference_;
  double loss_difference_ = 0;  // relative, like the next
  double norm_difference_ = 0;
};

/// Shows a line a step and fills the run folder. Every rank has one and calls it alike.
class Report {
 public:
  /// @param corpus  the text, on rank 0; null elsewhere
  Report(const Options& options, const Corpus* corpus, smp::DistributedModel<T5>& model,
         EqualityCheck check);

  /// After `step` (from 0). The first steps are shown once the check has passed.
  void step(int64_t step, const StepResult& result);

  /// After the last step: the outcome, and where it lies.
  void finish();

 private:
  void introduce(const Corpus& corpus, const smp::DistributedModel<T5>& model);
  std::string line(int64_t step, const StepResult& result, const smp::StepTiming& timing) const;
  double final_loss() const;

  const Options& options_;
  const double entropy_;  // of the bytes of the text
  Console console_;
  smp::RunLog log_;
  EqualityCheck check_;
  std::vector<std::string> held_lines_;
  std::vector<double> byte_losses_;
  double seconds_ = 0;
  bool said_oversubscribed_ = false;
};

}  // namespace t5
