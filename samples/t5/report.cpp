// samples/t5/report.cpp: introduction, a line a step, outcome.
#include "report.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace t5 {
namespace {

constexpr double kTolerance = 1e-4;      // float32, summed in another order
constexpr int64_t kStepsInOutcome = 10;  // one batch alone makes the loss jump
constexpr const char* kOversubscribed =
    "ranks outnumber the cores of this machine: they take turns, and the bubble, which then counts "
    "processor time, cannot come near 0";

double relative_difference(double value, double expected) {
  return std::abs(value - expected) / std::abs(expected);
}

/// Of text beside the name of a line: what the terminal has, as ./smp tells it.
int text_width() {
  const char* const columns = std::getenv("COLUMNS");
  const int wide = columns == nullptr ? 0 : std::atoi(columns);
  return wide > 0 ? std::clamp(wide, 80, 200) - 8 : 100;
}

smp::RunLogOptions pictures(double entropy) {
  smp::RunLogOptions options;
  options.loss_unit = "nats per byte of text";
  options.loss_baseline = entropy;
  options.loss_baseline_name = "byte frequencies alone";
  return options;
}

}  // namespace

void EqualityCheck::compare(int64_t step, const StepResult& result) {
  if (step >= num_steps()) return;
  const StepResult& expected = reference_.at(step);
  const double loss = relative_difference(result.loss, expected.loss);
  const double norm = relative_difference(result.gradient_norm, expected.gradient_norm);
  loss_difference_ = std::max(loss_difference_, loss);
  norm_difference_ = std::max(norm_difference_, norm);
  if (loss < kTolerance && norm < kTolerance) return;  // written so that NaN fails
  throw std::runtime_error(format(
      "step %ld differs from one process: loss %.6f instead of %.6f, gradient norm %.6f instead of "
      "%.6f",
      step + 1, result.loss, expected.loss, result.gradient_norm, expected.gradient_norm));
}

std::string EqualityCheck::summary() const {
  return format(
      "%ld steps equal those of one process; largest difference: loss %.1e, gradient norm %.1e "
      "(relative)",
      num_steps(), loss_difference_, norm_difference_);
}

Report::Report(const Options& options, const Corpus* corpus, smp::DistributedModel<T5>& model,
               EqualityCheck check)
    : options_(options),
      entropy_(smp::broadcast(corpus ? corpus->unigram_entropy() : 0.0)),
      console_(options.steps),
      log_("demo", model, pictures(entropy_)),
      check_(std::move(check)) {
  if (!corpus) return;
  introduce(*corpus, model);
  model.on_placed([this, &model] { console_.say("plan", model.plan().table(text_width())); });
}

void Report::introduce(const Corpus& corpus, const smp::DistributedModel<T5>& model) {
  int64_t size = 0;
  for (const auto& parameter : model.parameters()) size += parameter.numel();
  console_.say("model", format("T5 \"%s\": %ld + %ld blocks, %.1f M parameters, %d rank%s",
                               options_.config_name.c_str(), options_.config.num_layers,
                               options_.config.num_decoder_layers, static_cast<double>(size) / 1e6,
                               smp::size(), smp::size() == 1 ? "" : "s"));
  console_.say(
      "text", format("%s, %.1f MB; byte frequencies alone: %.2f nats a byte", options_.data.c_str(),
                     static_cast<double>(corpus.size_bytes()) / 1e6, entropy_));
  if (check_.num_steps() == 0 && !smp::is_planning()) {
    console_.say("check", "left out: one process would have to hold the whole model");
  }
}

void Report::step(int64_t step, const StepResult& result) {
  const smp::StepTiming timing = log_.measure();
  seconds_ += timing.seconds;
  byte_losses_.push_back(result.byte_loss);
  log_.append({{"loss", result.byte_loss},
               {"loss_all_labels", result.loss},
               {"gradient_norm", result.gradient_norm},
               {"tokens_per_second", options_.tokens_per_step() / timing.seconds}});
  check_.compare(step, result);
  held_lines_.push_back(line(step, result, timing));
  if (step + 1 < check_.num_steps()) return;
  if (step + 1 == check_.num_steps()) console_.say("check", check_.summary());
  if (timing.oversubscribed && !std::exchange(said_oversubscribed_, true)) {
    console_.say("note", kOversubscribed);
  }
  for (const auto& held : held_lines_) console_.say("step", held);
  held_lines_.clear();
  const double seconds_a_step = seconds_ / static_cast<double>(step + 1);
  console_.progress(step + 1, seconds_a_step * static_cast<double>(options_.steps - step - 1));
}

std::string Report::line(int64_t step, const StepResult& result,
                         const smp::StepTiming& timing) const {
  return format("%3ld/%ld   loss %.3f   %5.0f tokens/s   %.2f s   bubble %2.0f %%", step + 1,
                options_.steps, result.byte_loss, options_.tokens_per_step() / timing.seconds,
                timing.seconds, 100 * timing.bubble);
}

double Report::final_loss() const {
  const auto count = std::min<int64_t>(kStepsInOutcome, static_cast<int64_t>(byte_losses_.size()));
  return std::accumulate(byte_losses_.end() - count, byte_losses_.end(), 0.0) /
         static_cast<double>(count);
}

void Report::finish() {
  console_.say("done", format("%ld steps in %.0f s; loss of the last ones %.2f nats a byte, byte "
                              "frequencies alone %.2f",
                              options_.steps, seconds_, final_loss(), entropy_));
  const auto pictures = log_.finish();
  console_.say("wrote", log_.folder() + "/metrics.jsonl");
  console_.say("", log_.folder() + "/plan.json");
  for (const auto& picture : pictures) console_.say("", picture);
}

}  // namespace t5
