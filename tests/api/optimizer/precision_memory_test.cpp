// The bytes that each precision takes for a parameter, measured, against what `smp config` prints
// and what the planner counts.
#include <gmock/gmock.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "api/optimizer/optimizer_memory.h"
#include "api/rank/rank.h"
#include "config/precision_types.h"
#include "smp/precision/grad_scaler.h"
#include "smp/smp.h"
#include "support/tensor_bytes.h"

namespace smp {
namespace precision_memory_test {

using at::Tensor;

constexpr int kLayers = 128;
constexpr std::int64_t kWidth =
    128;  // activations and what one parameter takes for a moment are small
constexpr double kParameters = kLayers * kWidth * kWidth;

Config config_of(const std::string& precision, int microbatches) {
  Config config;
  config.precision = precision;
  config.microbatches = microbatches;
  config.plan_cache = "off";
  config.skip_tracing = true;
  return config;
}

double formula(const Config& config) {
  double bytes = 0;
  for (const auto& row : base::precision_rows(config)) bytes += row.bytes;
  return bytes;
}

double of_optimizer(const Config& config, torch::optim::OptimizerParamGroup& group) {
  const auto weight = static_cast<double>(group.params().front().element_size());
  return weight * bytes_per_weight_byte(config, group);
}

/// Both without what a program has beside its model.
struct Measured {
  double most = 0;      ///< bytes a parameter, at the worst moment of the last step
  double promised = 0;  ///< as `smp config` prints
  double planned = 0;   ///< as the planner counts
};

Measured measure(const std::string& precision, int microbatches) {
  Measured measured;
  run_local(1,
            [&] {
              const auto before = support::live_tensor_bytes();
              nn::Sequential net;
              for (int i = 0; i < kLayers; ++i) {
                net->push_back(nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
              }
              DistributedModel model(net);
              DistributedOptimizer optimizer(model, torch::optim::AdamW(net->parameters(), 1e-3));
              const auto& config = Rank::current().config();
              GradScaler scaler({.init_scale = 1, .enabled = precision == "fp16"});
              auto train = smp::step([&](const Tensor& x) {
                const auto scores = model(x.to(net->parameters()[0].scalar_type()));
                model.backward(scaler.scale(scores.to(at::kFloat).square().mean()));
              });
              for (int step = 0; step < 3; ++step) {
                support::take_peak_tensor_bytes();
                optimizer.zero_grad();
                train(torch::ones({microbatches, kWidth}));
                scaler.step(optimizer);
                if (precision == "fp16") scaler.update();
              }
              const auto most = support::take_peak_tensor_bytes() - before;
              auto& group = optimizer.param_groups().front();
              const double weight = static_cast<double>(group.params().front().element_size());
              measured = {static_cast<double>(most) / kParameters, formula(config),
                          2 * weight + of_optimizer(config, group)};
            },
            config_of(precision, microbatches), {.seed = 1});
  return measured;
}

TEST(PrecisionMemory, IsThatOfItsFormula) {
  support::count_tensor_bytes();
  for (const char* precision : {"fp32", "amp", "bf16", "bf16_sr", "fp16"}) {
    for (const int microbatches : {1, 4}) {
      SCOPED_TRACE(std::string(precision) + ", microbatches " + std::to_string(microbatches));
      const auto [most, promised, planned] = measure(precision, microbatches);
      EXPECT_NEAR(most / promised, 1, 0.02) << most << " bytes a parameter, for " << promised;
      EXPECT_EQ(planned, promised);
    }
  }
}

}  // namespace precision_memory_test
}  // namespace smp
