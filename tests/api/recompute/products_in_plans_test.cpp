// Plans know that a marked module keeps what its products return.
#include <gmock/gmock.h>
#include <torch/types.h>

#include <cstdint>
#include <string>

#include "smp/distributed_model.h"
#include "smp/recompute/activation_checkpointing.h"
#include "smp/session.h"
#include "smp/step.h"
#include "support/residual_net.h"

namespace smp {
namespace products_in_plans_test {

using at::Tensor;

constexpr std::int64_t kRows = 64, kWidth = 32;
constexpr int kBlocks = 4, kStages = 2;

/// The predicted most activations of both stages, and seconds of a step.
struct Promise {
  std::int64_t activations = 0;
  double seconds = 0;
};

Promise promise_of(bool marked, KeepPolicy keep) {
  Config config;
  config.pipeline_parallel_degree = kStages;
  config.microbatches = 4;
  config.pipeline = "simple";
  config.plan_cache = "off";
  Promise promise;
  run_local(kStages,
            [&] {
              support::ResidualNet net(kBlocks, kWidth);
              for (auto& block : net->blocks) {
                if (marked) set_activation_checkpointing(block, {.keep = keep});
              }
              DistributedModel model(net);
              for (int i = kBlocks / 2; i < kBlocks; ++i) {
                model.set_partition("block" + std::to_string(i), 1);
              }
              auto run = step([&](const Tensor& x) {
                const auto loss = model(x);
                model.backward(loss);
                return loss;
              });
              run(torch::ones({4 * kRows, kWidth}));
              const auto& summary = *model.plan().summary();
              if (rank() != 0) return;
              for (const auto& stage : summary.stages) {
                promise.activations += stage.most_activations;
              }
              promise.seconds = summary.chosen.step_seconds;
            },
            config, {1});
  return promise;
}

TEST(ProductsInPlans, AreHeldAndNotComputedAgain) {
  const auto held = promise_of(false, KeepPolicy::kNothing);
  const auto products = promise_of(true, KeepPolicy::kProducts);
  const auto nothing = promise_of(true, KeepPolicy::kNothing);
  // Of a block and microbatch: the results of both products, 4 widths and 1.
  constexpr std::int64_t kProductsOfBlock = 5 * kRows * kWidth * 4;
  const auto more = products.activations - nothing.activations;
  EXPECT_GE(more, (4 * kBlocks - kStages) * kProductsOfBlock)
      << "but for those of each stage's block that is whole again";
  EXPECT_LE(more, 4 * kBlocks * kProductsOfBlock);
  EXPECT_LT(products.activations, held.activations);
  EXPECT_LT(held.seconds, products.seconds);
  EXPECT_LT(products.seconds, nothing.seconds);
}

}  // namespace products_in_plans_test
}  // namespace smp
