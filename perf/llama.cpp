// perf/llama.cpp: layers of a Llama on two ranks beside what they are made of: how much sooner are
// several projections ready as one product with one collective; how many bytes do activations take
// that are cut along the sequence, beside a formula; how much do routing and exchange add to the
// products of experts? `./smp perf llama` runs it after contests with torch's plans.
#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/check.h"
#include "d2d/job/mpi_session.h"
#include "harness.h"
#include "program.h"
#include "sleeping_stages.h"
#include "smp/smp.h"
#include "smp/tp.h"
#include "support/tensor_bytes.h"
#include "tp/slices/block_products.h"
#include "tp/slices/joined_product.h"

namespace smp::perf::llama_program {
namespace {

using at::Tensor;
using support::live_tensor_bytes;
using support::take_peak_tensor_bytes;

constexpr int kWarmUpSteps = 2;

Config config_of(int ranks, const char* optimize, bool prescaled) {
  Config config;
  config.pipeline_parallel_degree = 1;
  config.tensor_parallel_degree = ranks;
  config.optimize = optimize;
  config.prescaled_batch = prescaled;
  config.intra_op_threads = 1;
  config.plan_cache = "off";
  return config;
}

Tensor samples(std::int64_t rows, std::int64_t tokens, std::int64_t width, int batch) {
  torch::manual_seed(2 + static_cast<std::uint64_t>(batch));
  return at::randn({rows, tokens, width});
}

/// A model and its step, forward and backward; all ranks call it alike.
template <class Net>
class Steps {
 public:
  explicit Steps(const Net& net)
      : model_(net), train_(step([this](const Tensor& x) {
          const auto loss = model_(x).square().mean();
          model_.backward(loss);
          return loss;
        })) {}
  double microseconds_of(const Tensor& x) {
    barrier();
    return microseconds([&] {
      loss_ = train_(x).reduce_mean().template item<double>();
      barrier();
    });
  }
  double loss() const { return loss_; }

 private:
  DistributedModel<Net> model_;
  std::function<StepOutput<Tensor>(const Tensor&)> train_;
  double loss_ = 0;
};

void require_equal_losses(double one, double other, const char* what) {
  SMP_REQUIRE(std::abs(one - other) <= 1e-5 * std::abs(one), "perf llama: the losses of ", what,
              " are ", one, " and ", other);
}

// ---- one product and one collective ------------------------------------------------------------

/// Queries, keys and values of attention, together or each by itself.
struct ProjectionsImpl : torch::nn::Module {
  ProjectionsImpl(std::int64_t width, tp::Layout between, bool each_apart)
      : layout(between), apart(each_apart) {
    torch::manual_seed(1);
    const int ranks = tp_size();
    shares = {tp::ChannelShare::even(width, 1, ranks), tp::ChannelShare::even(width / 2, 1, ranks),
              tp::ChannelShare::even(width / 2, 1, ranks)};
    const std::vector<std::int64_t> channels{width, width / 2, width / 2};
    for (std::size_t i = 0; i < channels.size(); ++i) {
      layers.push_back(
          register_module("layer" + std::to_string(i),
                          tp::first_product(layout, width, channels[i], shares[i], std::nullopt,
                                            /*has_bias=*/true)));
    }
  }
  Tensor forward(const Tensor& x) {
    std::vector<tp::Projection> all;
    for (std::size_t i = 0; i < layers.size(); ++i) all.push_back({layers[i], shares[i]});
    const auto own = layout == tp::Layout::kMemory ? slices_of_batch_for_tp(x, -1) : x;
    std::vector<Tensor> channels;
    if (!apart) {
      channels = tp::channels_of(layout, tp::read_by_products(layout, own), all);
    } else {
      for (const auto& one : all) {
        channels.push_back(
            tp::channels_of(layout, tp::read_by_products(layout, own), {one}).front());
      }
    }
    return at::cat(channels, -1);
  }
  const tp::Layout layout;
  const bool apart;
  std::vector<tp::ChannelShare> shares;
  std::vector<tp::SplitLinear> layers;
};
SMP_MODULE(Projections);

void compare_projections(Report* report, const char* name) {
  const std::int64_t width = brief() ? 32 : 256, tokens = brief() ? 8 : 64;
  const bool memory = std::string(name) == "memory";
  const auto layout = memory ? tp::Layout::kMemory : tp::Layout::kSpeed;
  Steps<Projections> together(Projections(width, layout, false));
  Steps<Projections> apart(Projections(width, layout, true));
  const auto x = samples(4, tokens, width, dp_rank());
  const auto times = alternate(
      rounds(60), [&] { return together.microseconds_of(x); },
      [&] { return apart.microseconds_of(x); });
  require_equal_losses(together.loss(), apart.loss(), "projections together and apart");
  if (report == nullptr) return;
  const auto suffix = memory ? std::string(".memory") : std::string();
  report->add("coalesced_over_apart" + suffix, times.ratio(), "1",
              "q, k and v as one product with one collective, over each with its own");
}

// ---- activations along the sequence ------------------------------------------------------------

struct Block {
  std::int64_t rows = 8, tokens = 128, width = 256, heads = 8, keys = 4, inner = 704, layers = 4;

  nn::DecoderLayerOptions options() const {
    return {nn::GroupedQueryAttentionOptions(width, heads).kv_heads(keys),
            nn::GatedMlpOptions(width, inner), nn::RMSNormOptions(width)};
  }
  /// What a rank keeps of a microbatch, 1/T of what one process does (Korthikanti et al. 2022,
  /// section 4.2.2). Of each norm its input, its result before the weight and a root; what first
  /// products read; queries, keys, values and what heads mix, with a number a row and head; gate
  /// and up, activated and multiplied. The first norm's input is the batch. Angles of positions,
  /// and what leaves the last block, are whole on each rank.
  double held_bytes(int ranks) const {
    const auto w = static_cast<double>(width), h = static_cast<double>(heads);
    const double keys_and_values = 2 * w * static_cast<double>(keys) / h;
    const double row =
        2 * (2 * w + 1) + 2 * w + (2 * w + keys_and_values + h) + 4 * static_cast<double>(inner);
    const auto all = static_cast<double>(rows * tokens), blocks = static_cast<double>(layers);
    const double angles = 2 * static_cast<double>(tokens) * w / h;
    return 4 * (all * (blocks * row - w) / ranks + blocks * angles + all * w);
  }
};

struct BlocksImpl : torch::nn::Module {
  explicit BlocksImpl(const Block& block) {
    torch::manual_seed(1);
    for (std::int64_t i = 0; i < block.layers; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i),
                                       nn::DistributedDecoderLayer(block.options())));
    }
  }
  Tensor forward(Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return x;
  }
  std::vector<nn::DistributedDecoderLayer> layers;
};
SMP_MODULE(Blocks);

/// Bytes of tensors between forward and backward beyond those before.
void measure_sequence(Report* report, int ranks) {
  Block block;
  if (brief()) block = {2, 16, 32, 4, 2, 48, 2};
  Blocks net(block);
  DistributedModel model(net);
  const auto x = samples(block.rows, block.tokens, block.width, 0);
  std::int64_t held = 0;
  auto train = step([&](const Tensor& batch) {
    const auto before = live_tensor_bytes();
    const auto loss = model(batch).square().mean();
    held = live_tensor_bytes() - before;
    model.backward(loss);
    return loss;
  });
  for (int i = 0; i < kWarmUpSteps + 1; ++i) train(x);
  if (report == nullptr) return;
  const double expected = block.held_bytes(ranks);
  report->add("peak_sp_over_formula", static_cast<double>(held) / expected, "1",
              base::concat(static_cast<double>(held) / 1e6, " of ", expected / 1e6,
                           " MB between forward and backward"));
}

// ---- experts -----------------------------------------------------------------------------------

struct Experts {
  std::int64_t rows = 8, tokens = 128, width = 512, inner = 1024, experts = 8, top_k = 2;
};

struct RoutedExpertsImpl : torch::nn::Module {
  explicit RoutedExpertsImpl(const Experts& e)
      : mixture(register_module("mixture",
                                nn::DistributedMixtureOfExperts(nn::MixtureOfExpertsOptions(
                                    nn::GatedMlpOptions(e.width, e.inner), e.experts, e.top_k)))) {}
  Tensor forward(const Tensor& x) { return std::get<0>(mixture(x)); }
  nn::DistributedMixtureOfExperts mixture;
};
SMP_MODULE(RoutedExperts);

/// The products of a rank's experts alone, for as many rows as experts have if all are chosen
/// alike.
struct DenseExpertsImpl : DistributedModule {
  explicit DenseExpertsImpl(const Experts& e) : top_k(e.top_k) {
    gate = register_slice("gate", at::randn({e.experts, e.inner, e.width}) * 0.05, 0);
    up = register_slice("up", at::randn({e.experts, e.inner, e.width}) * 0.05, 0);
    down = register_slice("down", at::randn({e.experts, e.width, e.inner}) * 0.05, 0);
  }
  Tensor forward(const Tensor& x) {
    const auto parts = x.flatten(0, 1).repeat({top_k, 1}).chunk(gate.size(0));
    const auto gates = gate.unbind(0), ups = up.unbind(0), downs = down.unbind(0);
    std::vector<Tensor> results;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto inner = tp::joined_product(parts[i], {gates[i], ups[i]}, {}).chunk(2, -1);
      results.push_back(at::linear(at::silu(inner[0]) * inner[1], downs[i]));
    }
    return at::cat(results);
  }
  const std::int64_t top_k;
  Tensor gate, up, down;
};
SMP_MODULE(DenseExperts);

void compare_experts(Report* report) {
  Experts e;
  if (brief()) e = {2, 8, 32, 48, 4, 2};
  torch::manual_seed(1);
  Steps<RoutedExperts> routed{RoutedExperts(e)};
  Steps<DenseExperts> dense{DenseExperts(e)};
  const auto x = samples(e.rows, e.tokens, e.width, dp_rank());
  const auto times = alternate(
      rounds(15), [&] { return dense.microseconds_of(x); },
      [&] { return routed.microseconds_of(x); });
  if (report == nullptr) return;
  report->add("experts.over_dense_ideal", times.ratio(), "1",
              "tokens per second over those of the products alone, of experts that are chosen "
              "alike");
}

void run(int argc, char** argv) {
  CLI::App app("Layers of a Llama on two ranks beside what they are made of", "smp perf llama");
  if (!parse_options(app, argc, argv)) return;
  const d2d::MpiSession mpi;
  const int ranks = mpi.size();
  auto report = report_of_ranks(mpi.rank().value(), "llama");
  auto* const own = report ? &*report : nullptr;
  for (const auto* layout : {"speed", "memory"}) {
    in_session(argc, argv, config_of(ranks, layout, false),
               [&] { compare_projections(own, layout); });
  }
  in_session(argc, argv, config_of(ranks, "speed", false), [&] { compare_experts(own); });
  support::count_tensor_bytes();  // from here on tensors are copied instead of lent
  in_session(argc, argv, config_of(ranks, "sequence", true), [&] { measure_sequence(own, ranks); });
  if (report) report->finish();
}

const Program program{"llama", run};

}  // namespace
}  // namespace smp::perf::llama_program
