// samples/llama/report.h: what the trainer shows and keeps of a run.
#pragma once

#include <smp/recipe/progress_line.h>
#include <smp/recipe/throughput.h>
#include <smp/run_log.h>
#include <smp/smp.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "options.h"
#include "training.h"

namespace llama {

/// Shows lines, and fills the run folder. Every rank has one and calls it alike.
class Report {
 public:
  /// @param trainer         outlives it
  /// @param alone           the first steps of one process, to compare with; may be none
  /// @param price_per_hour  of a machine; 0: not known
  Report(const Options& options, Trainer& trainer, std::vector<StepNumbers> alone,
         double price_per_hour);

  /// After a step. Now and then it asks for the loss of the held-out text; not after the last step,
  /// which the pictures show, and which therefore is one of training.
  /// @throws std::runtime_error  the step is not what one process computed.
  void step(const StepNumbers& numbers);

  /// After the last one: the outcome, and where it lies.
  void finish(std::optional<double> held_out, const std::string& written);

 private:
  void introduce() const;
  void compare(const StepNumbers& numbers);
  void show(const StepNumbers& numbers, std::optional<double> held_out,
            const smp::StepTiming& timing, const smp::Throughput& rates);
  void say(const char* topic, const std::string& text);

  const Options& options_;
  Trainer& trainer_;
  smp::RunLog log_;
  smp::ThroughputMeter meter_;
  smp::ProgressLine progress_;
  const std::vector<StepNumbers> alone_;
  const bool priced_;
  std::size_t compared_ = 0;
  double difference_ = 0;  // relative, the largest
};

/// The folder in which the jobs before this one logged, as save() notes it; empty if there is none.
std::string log_before(const std::filesystem::path& checkpoint);

}  // namespace llama
