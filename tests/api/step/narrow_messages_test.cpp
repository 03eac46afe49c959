// Bytes of tensors that ranks send in a step: half of those of float32 in 16 bits.
#include <gmock/gmock.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <string>

#include "api/rank/rank.h"
#include "smp/smp.h"

namespace smp {
namespace narrow_messages_test {

using at::Tensor;

constexpr int kMicrobatches = 4, kSteps = 3;
constexpr std::int64_t kRows = 8, kWidth = 40;  // of a microbatch

struct Layout {
  int stages, replicas;
  bool static_mode = false;
};

struct StageImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return linear(x).tanh(); }
  nn::Linear linear = register_module("linear", nn::Linear(kWidth, kWidth));
};
SMP_MODULE(Stage);

std::int64_t sent() {
  return static_cast<std::int64_t>(Rank::current().channel().counters().tensor_bytes_sent);
}

/// Returns what all ranks send in the last step of some, replicas' gradients included.
std::int64_t bytes_of_step(const std::string& precision, const Layout& layout) {
  Config config;
  config.precision = precision;
  config.microbatches = kMicrobatches;
  config.pipeline_parallel_degree = layout.stages;
  config.static_mode = layout.static_mode;
  config.plan_cache = "off";
  config.skip_tracing = true;
  std::int64_t bytes = 0;
  run_local(layout.stages * layout.replicas,
            [&] {
              torch::manual_seed(1);
              nn::Sequential net;
              for (int i = 0; i < layout.stages; ++i) net->push_back(Stage());
              DistributedModel model(net);
              model.set_partition("", 0);
              for (int i = 0; i < layout.stages; ++i) model.set_partition(std::to_string(i), i);
              auto train = smp::step([&](const Tensor& x) {
                const auto type = net->parameters()[0].scalar_type();
                model.backward(model(x.to(type)).to(at::kFloat).square().mean());
              });
              for (int step = 0; step < kSteps; ++step) {
                barrier();
                const auto before = sent();
                train(torch::ones({kMicrobatches * kRows, kWidth}));
                barrier();
                if (step == kSteps - 1) bytes += sent() - before;
              }
            },
            config, {.seed = 1});
  return bytes;
}

/// At least to each of the other stages and back to the first one, forward and backward.
TEST(NarrowMessages, OfAChainAreHalfOfFloat32) {
  for (const int stages : {2, 3, 4}) {
    for (const bool static_mode : {false, true}) {
      SCOPED_TRACE(testing::Message() << stages << " stages, static " << static_mode);
      const Layout layout{stages, 1, static_mode};
      const auto wide = bytes_of_step("fp32", layout);
      EXPECT_GE(wide, 2 * stages * kMicrobatches * kRows * kWidth * 4);
      for (const char* precision : {"bf16", "bf16_sr", "fp16", "amp"}) {
        EXPECT_EQ(2 * bytes_of_step(precision, layout), wide) << precision;
      }
    }
  }
}

/// Gradients of replicas travel in their parameters' type: under autocast in float32.
TEST(NarrowMessages, OfReplicasAreHalfOfFloat32) {
  for (const int stages : {1, 2}) {
    SCOPED_TRACE(testing::Message() << stages << " stages");
    const Layout layout{stages, 2};
    const auto wide = bytes_of_step("fp32", layout);
    EXPECT_GT(wide, stages * kWidth * kWidth * 4);
    for (const char* precision : {"bf16", "bf16_sr", "fp16"}) {
      EXPECT_EQ(2 * bytes_of_step(precision, layout), wide) << precision;
    }
    const auto chain = stages == 1 ? 0 : 2 * 2 * stages * kMicrobatches * kRows * kWidth * 2;
    EXPECT_EQ(wide - bytes_of_step("amp", layout), chain);
  }
}

}  // namespace narrow_messages_test
}  // namespace smp
