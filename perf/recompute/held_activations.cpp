// perf/recompute/held_activations.cpp: see the header.
#include "recompute/held_activations.h"

#include <ATen/ATen.h>

#include <string>

#include "base/check.h"
#include "sleeping_stages.h"
#include "smp/smp.h"
#include "smp/tp.h"
#include "support/tensor_bytes.h"

namespace smp::perf::recompute {
namespace {

using at::Tensor;

/// The letters of the paper: s tokens, b rows, h wide, a heads, L layers.
struct Sizes {
  std::int64_t s = 128, b = 4, h = 256, a = 8, layers = 12;

  double tokens_of_layers() const { return static_cast<double>(s * b * h * layers); }
  /// Inputs of layers.
  double full_bytes() const { return 4 * tokens_of_layers(); }
  /// The paper's 34 sbhL: 16 values of an activation and two masks of dropout, of 2 bytes and of
  /// one there, of 4 here, where LibTorch keeps a mask on CPUs as numbers.
  double selective_bytes() const { return 4 * (16 + 2) * tokens_of_layers(); }
};

struct StackImpl : torch::nn::Module {
  explicit StackImpl(const Sizes& sizes) {
    torch::manual_seed(1);
    AttentionLayerOptions attention;
    attention.num_attention_heads = sizes.a;
    attention.attention_head_size = sizes.h / sizes.a;
    attention.hidden_size = sizes.h;
    attention.causal_mask_size = sizes.s;
    attention.pre_layernorm = true;
    attention.post_layernorm = false;
    TransformerOutputLayerOptions output;
    output.hidden_size = sizes.h;
    output.intermediate_size = 4 * sizes.h;
    output.pre_layernorm = true;
    output.post_layernorm = false;
    layers = register_module("layers", nn::DistributedTransformer(attention, output, sizes.layers));
  }
  Tensor forward(const Tensor& x) { return layers(TransformerState{x, {}, {}, {}}).hidden; }
  nn::DistributedTransformer layers{nullptr};
};
SMP_MODULE(Stack);

/// Returns the bytes between forward and backward beyond those before.
double held_bytes(const Sizes& sizes, const std::string& again, int argc, char** argv) {
  Config config{.intra_op_threads = 1};
  config.checkpoint_modules = again;
  config.plan_cache = "off";
  std::int64_t held = 0;
  in_session(argc, argv, config, [&] {
    Stack net(sizes);
    DistributedModel model(net);
    const auto x = at::randn({sizes.b, sizes.s, sizes.h});
    auto train = step([&](const Tensor& batch) {
      const auto before = support::live_tensor_bytes();
      const auto loss = model(batch).square().mean();
      held = support::live_tensor_bytes() - before;
      model.backward(loss);
    });
    for (int i = 0; i < 2; ++i) train(x);
  });
  return static_cast<double>(held);
}

}  // namespace

void measure_held_activations(Report& report, int argc, char** argv) {
  Sizes sizes;
  if (brief()) sizes = {16, 2, 32, 2, 2};
  const auto add = [&](const char* way, const std::string& again, double formula) {
    const double held = held_bytes(sizes, again, argc, argv);
    report.add(std::string("peak_over_formula.") + way, held / formula, "1",
               base::concat(held / 1e6, " of ", formula / 1e6,
                            " MB between forward and backward; aim: 0.98 to 1.02"));
  };
  add("full", "DistributedTransformerLayer", sizes.full_bytes());
  add("selective", "DistributedAttentionCore", sizes.selective_bytes());
}

}  // namespace smp::perf::recompute
