// perf/modes/half_split.cpp: see the header.
#include "modes/half_split.h"

#include <ATen/ATen.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "models/gpt.h"
#include "modes/recording.h"
#include "smp/smp.h"

namespace smp::perf::modes {
namespace {

using at::Tensor;

models::GptConfig gpt_config() {
  if (brief()) return {.vocabulary = 32, .length = 17, .width = 32, .heads = 2, .layers = 4};
  return {.vocabulary = 256, .length = 65, .width = 256, .heads = 8, .layers = 8};
}

void place_halves(DistributedModelBase& model) {
  const auto layers = gpt_config().layers;
  model.set_partition("", 0);
  for (auto i = layers / 2; i < layers; ++i) {
    model.set_partition("transformer.h." + std::to_string(i), 1);
  }
  model.set_partition("transformer.ln_f", 1);
  model.set_partition("lm_head", 1);
}

/// Ideal over measured duration of steps. The ideal is that of a pipeline of two equal halves.
void measure_gpt(bool by_hand, std::vector<double>& shares) {
  torch::manual_seed(1);
  models::Gpt alone(gpt_config());
  torch::manual_seed(1);
  models::Gpt net(gpt_config());
  DistributedModel model(net);
  if (by_hand) place_halves(model);
  auto train = step([&](const Tensor& tokens) {
    auto loss = model(tokens);
    model.backward(loss);
    return loss.detach();
  });
  const auto batch = models::draw_sequences(kMicrobatches * 4, gpt_config());
  const auto loss_of = [&](const Tensor& tokens) { return alone(tokens); };
  constexpr double kIdeal = (kMicrobatches + 1.0) / (2 * kMicrobatches);
  for (int i = 0; i < kWarmUpSteps + rounds(7); ++i) {
    alone->zero_grad();
    model.zero_grad();
    barrier();
    double loss = 0, reference = 0;
    const auto distributed =
        microseconds([&] { loss = train(batch).reduce_mean().item<double>(); });
    if (rank() != 0) continue;
    const auto in_one_process = alone_us(loss_of, batch, &reference);
    SMP_REQUIRE(std::abs(loss - reference) < 1e-4, "losses differ: ", loss, " and ", reference);
    if (i >= kWarmUpSteps) shares.push_back(in_one_process * kIdeal / distributed);
  }
}

/// Duration of a step that is written down over one that is not, by turns.
void measure_recording(std::vector<double>& ratios) {
  torch::manual_seed(1);
  models::Gpt net(gpt_config());
  DistributedModel model(net);
  place_halves(model);
  auto train = step([&](const Tensor& tokens) { model.backward(model(tokens)); });
  const auto batch = models::draw_sequences(kMicrobatches * 4, gpt_config());
  const auto duration = [&](bool recorded) {
    std::optional<Recording> recording;
    if (recorded) recording.emplace();
    barrier();
    return microseconds([&] { train(batch); });
  };
  for (int i = 0; i < kWarmUpSteps + rounds(15); ++i) {
    const bool recorded_first = i % 2 == 0;
    const auto first = duration(recorded_first), second = duration(!recorded_first);
    if (i >= kWarmUpSteps) ratios.push_back(recorded_first ? first / second : second / first);
  }
}

}  // namespace

void report_half_split(std::optional<Report>& report, const InSession& in_session) {
  std::vector<double> by_hand, awaited, planned, recorded;
  for (int round = 0; round < rounds(3); ++round) {
    in_session(Mode::kDynamic, [&] { measure_gpt(true, by_hand); });
    in_session(Mode::kAwaited, [&] { measure_gpt(true, awaited); });
    in_session(Mode::kDynamic, [&] { measure_gpt(false, planned); });
    in_session(Mode::kDynamic, [&] { measure_recording(recorded); });
  }
  if (!report) return;
  const std::string gpt =
      "of the ideal of a pipeline, from one process; GPT of 8 layers, width "
      "256, 8 microbatches of 4 x 64 tokens; ";
  report->add_samples("half_split.share_of_ideal", by_hand, "1",
                      gpt + "loop by hand over two halves; aim: at least 0.96");
  report->add_samples("half_split.awaited.share_of_ideal", awaited, "1",
                      gpt + "loop by hand, promised_outputs = false");
  report->add_samples("planned.share_of_ideal", planned, "1", gpt + "planned by default");
  report->add_samples("half_split.recorded_over_not", recorded, "1",
                      "step of the same GPT, loop by hand, while every span and message is "
                      "written down; aim: at most 1.02");
}

}  // namespace smp::perf::modes
