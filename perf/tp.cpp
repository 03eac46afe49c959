// perf/tp.cpp: how long does a step of a stack of transformer layers take that all ranks share, in
// the layouts "speed" and "memory" (paper App. F), with samples of their own and with one batch for
// all (`prescaled_batch`), how many bytes do activations take between forward and backward beside a
// closed formula, and at the worst moment, and how many bytes are sent?
#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "api/rank/rank.h"
#include "base/check.h"
#include "d2d/job/mpi_session.h"
#include "harness.h"
#include "program.h"
#include "sleeping_stages.h"
#include "smp/smp.h"
#include "smp/tp.h"
#include "support/tensor_bytes.h"

namespace smp::perf::tp_program {
namespace {

using support::live_tensor_bytes;
using support::take_peak_tensor_bytes;

constexpr int kWarmUpSteps = 2;
constexpr double kFloat = 4, kDouble = 8;  // bytes

/// A GPT's layers: norms before the blocks, causal.
struct Shape {
  std::int64_t batch = 4, sequence = 128, hidden = 256, heads = 8, inner = 1024, layers = 8;

  double rows() const { return static_cast<double>(batch * sequence); }
  double row_of_hidden() const { return rows() * static_cast<double>(hidden); }
};

Shape shape() {
  if (!brief()) return {};
  return {.batch = 2, .sequence = 16, .hidden = 32, .heads = 4, .inner = 128, .layers = 2};
}

AttentionLayerOptions attention_of(const Shape& s) {
  AttentionLayerOptions options;
  options.num_attention_heads = s.heads;
  options.attention_head_size = s.hidden / s.heads;
  options.hidden_size = s.hidden;
  options.attention_dropout_prob = options.hidden_dropout_prob = 0;
  options.causal_mask_size = s.sequence;
  options.pre_layernorm = true;
  options.post_layernorm = false;
  return options;
}

TransformerOutputLayerOptions output_of(const Shape& s) {
  TransformerOutputLayerOptions options;
  options.hidden_size = s.hidden;
  options.intermediate_size = s.inner;
  options.hidden_dropout_prob = 0;
  options.pre_layernorm = true;
  options.post_layernorm = false;
  return options;
}

struct StackImpl : torch::nn::Module {
  explicit StackImpl(const Shape& s)
      : layers(register_module(
            "layers", nn::DistributedTransformer(attention_of(s), output_of(s), s.layers))) {}
  at::Tensor forward(const at::Tensor& x) { return layers(TransformerState{x, {}, {}, {}}).hidden; }
  nn::DistributedTransformer layers;
};
SMP_MODULE(Stack);

// ---- formulas ----------------------------------------------------------------------------------

/// Elements that a layer keeps for its backward, in both layouts: queries, keys, values and what
/// heads mix, before and after the activation, attention; and the bytes of the causal mask.
double kept_by_blocks(const Shape& s) {
  const auto attention = s.rows() * static_cast<double>(s.heads * s.sequence);
  const auto mask = static_cast<double>(s.sequence * s.sequence);
  const auto inner = 2 * s.rows() * static_cast<double>(s.inner);
  return (4 * s.row_of_hidden() + inner + attention) * kFloat + mask;
}

/// How the layers are spread.
struct Spread {
  int ranks = 0;
  bool memory = false;     ///< layout "memory", else "speed"
  bool prescaled = false;  ///< one batch for all ranks, of the samples of all

  double share() const { return prescaled ? ranks : 1; }  ///< of the samples outside of layers
  std::string name() const {
    return base::concat(prescaled ? "prescaled." : "", memory ? "memory" : "speed");
  }
};

/// Between forward and backward, beside the batch. Of each norm its input, two numbers a row, and
/// what it gives to the products: in "speed" of all ranks' samples. In "memory" the result too,
/// which in "speed" makes up for the first norm's input, the batch.
double held_bytes(const Shape& s, const Spread& to) {
  const double row = s.row_of_hidden(), ranks = to.ranks;
  const double norms = to.memory
                           ? 2 * (2 * row * kFloat + 4 * ranks * s.rows() * kDouble)
                           : 2 * ((to.share() + ranks) * row + 2 * to.share() * s.rows()) * kFloat;
  const double result = to.memory ? to.share() * row * kFloat : 0;
  return static_cast<double>(s.layers) * (kept_by_blocks(s) + norms) + result;
}

/// What a rank sends in a step but for gradients of parameters that are whole on each.
double sent_bytes(const Shape& s, const Spread& to) {
  const double others = to.ranks - 1, row = s.row_of_hidden() * kFloat;
  const auto hidden = static_cast<double>(s.hidden), inner = static_cast<double>(s.inner);
  if (!to.memory) return 2 * 4 * others * row * static_cast<double>(s.layers);
  const double layer = s.rows() * ((5 * hidden + inner) * kFloat + 2 * 4 * kDouble);
  // Whole samples to slices and back, and backward the last of these; or slices that are joined.
  const double around = to.prescaled ? 2 * row : 3 * row / to.ranks;
  return others * (2 * layer * static_cast<double>(s.layers) + around);
}

// ---- measurement -------------------------------------------------------------------------------

struct Way {
  Spread spread;
  std::vector<double> step_us = {};
  double held = 0, peak = 0, sent = 0;  ///< bytes of this rank
  double loss = 0;
};

/// Samples of one rank, which draws the same ones in every way.
at::Tensor samples_of(int rank, const Shape& s) {
  torch::manual_seed(2 + static_cast<std::uint64_t>(rank));
  return at::randn({s.batch, s.sequence, s.hidden});
}

at::Tensor batch_of(const Way& way) {
  if (!way.spread.prescaled) return samples_of(dp_rank(), shape());
  std::vector<at::Tensor> samples;
  for (int rank = 0; rank < way.spread.ranks; ++rank) samples.push_back(samples_of(rank, shape()));
  return at::cat(samples);
}

/// Over all samples.
double mean_over_ranks(double own) {
  double sum = 0;
  for (const double one : all_gather(own)) sum += one;
  return sum / size();
}

void measure(Way& way) {
  const auto s = shape();
  torch::manual_seed(1);
  Stack net(s);
  DistributedModel model(net);
  const auto x = batch_of(way);
  std::int64_t held = 0;
  auto train = step([&](const at::Tensor& batch) {
    const auto before = live_tensor_bytes();
    const auto y = model(batch);
    held = live_tensor_bytes() - before;
    const auto loss = y.square().mean();
    model.backward(loss);
    return loss;
  });
  const auto sent = [] { return Rank::current().channel().counters().tensor_bytes_sent; };
  const int steps = rounds(7);
  for (int i = 0; i < kWarmUpSteps + steps; ++i) {
    barrier();
    const auto before = live_tensor_bytes();
    const auto sent_before = sent();
    take_peak_tensor_bytes();
    const auto duration = microseconds([&] {
      way.loss = train(x).reduce_mean().template item<double>();
      barrier();
    });
    if (i < kWarmUpSteps) continue;
    way.step_us.push_back(duration);
    way.peak = static_cast<double>(take_peak_tensor_bytes() - before);
    way.held = static_cast<double>(held);
    way.sent = static_cast<double>(sent() - sent_before);
  }
  way.loss = mean_over_ranks(way.loss);
}

Config config_of(const Spread& spread) {
  Config config;
  config.pipeline_parallel_degree = 1;
  config.tensor_parallel_degree = spread.ranks;
  config.optimize = spread.memory ? "memory" : "speed";
  config.prescaled_batch = spread.prescaled;
  config.intra_op_threads = 1;
  config.plan_cache = "off";
  return config;
}

void add_rows(Report& report, const Way& way) {
  const auto s = shape();
  const auto suffix = base::concat(".", way.spread.name(), ".p", way.spread.ranks);
  const double held = held_bytes(s, way.spread), sent = sent_bytes(s, way.spread);
  report.add_samples("step" + suffix, way.step_us, "us",
                     base::concat(s.layers, " layers, hidden ", s.hidden, ", ", s.batch, " x ",
                                  s.sequence, way.spread.prescaled ? " for each rank" : " a rank"));
  report.add("held_over_formula" + suffix, way.held / held, "1",
             base::concat(way.held / 1e6, " of ", held / 1e6, " MB between forward and backward"));
  report.add("peak" + suffix, way.peak / 1e6, "MB", "of tensors at once, within a step");
  report.add("sent_over_formula" + suffix, way.sent / sent, "1",
             base::concat(way.sent / 1e6, " of ", sent / 1e6, " MB"));
}

/// Of `way` over `other`, of steps and peaks.
void add_ratios(Report& report, const Way& way, const Way& other) {
  const auto names =
      base::concat(way.spread.name(), "_over_", other.spread.name(), ".p", way.spread.ranks);
  report.add("peak_of_" + names, way.peak / other.peak, "1");
  report.add("step_of_" + names, median(way.step_us) / median(other.step_us), "1");
}

void run(int argc, char** argv) {
  CLI::App app("Transformer layers in two layouts", "smp perf tp");
  app.footer("--ranks N starts N ranks; without it 2, then 4.");
  if (!parse_options(app, argc, argv)) return;
  const d2d::MpiSession mpi;
  const int n = mpi.size();
  SMP_REQUIRE(n > 1 && shape().heads % n == 0, "perf tp runs on 2, 4 .. ranks that divide ",
              shape().heads, " heads, not on ", n);
  support::count_tensor_bytes();
  auto report = report_of_ranks(mpi.rank().value(), "tp", Report::Earlier::kKept);
  std::vector<Way> ways;
  for (const bool prescaled : {false, true}) {
    for (const bool memory : {false, true}) ways.push_back({.spread = {n, memory, prescaled}});
  }
  for (int round = 0; round < rounds(3); ++round) {
    for (auto& way : ways) in_session(argc, argv, config_of(way.spread), [&] { measure(way); });
  }
  const auto& speed = ways.front();
  for (const auto& way : ways) {
    SMP_REQUIRE(std::abs(speed.loss - way.loss) < 1e-4 * std::abs(speed.loss), "the loss of ",
                way.spread.name(), " is ", way.loss, ", that of speed ", speed.loss);
  }
  if (!report) return;
  for (const auto& way : ways) add_rows(*report, way);
  add_ratios(*report, ways[1], ways[0]);
  add_ratios(*report, ways[2], ways[0]);
  add_ratios(*report, ways[3], ways[1]);
  report->finish();
}

const Program program{"tp", run};

}  // namespace
}  // namespace smp::perf::tp_program
