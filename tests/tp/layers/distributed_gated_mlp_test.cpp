// Networks with a gate over the ranks of a group equal whole ones, in both layouts, and for inner
// widths that no number of ranks divides.
#include "smp/tp/distributed_gated_mlp.h"

#include <gmock/gmock.h>

#include "support/refusal.h"
#include "tp/layer_comparison.h"

namespace smp::tp {
namespace distributed_gated_mlp_test {

using nn::GatedMlpOptions;
using testing::HasSubstr;

void expect_as_plain_mlp(int size, const GatedMlpOptions& options, const char* layout) {
  expect_as_plain([&] { return nn::GatedMlp(options); },
                  [&] { return nn::DistributedGatedMlp(options, layout); },
                  numbers(size, {2, 3, options.width()}), 1e-12);
}

TEST(DistributedGatedMlp, EqualsTheWholeNetwork) {
  for (const int size : {1, 2, 4}) {
    for (const auto* layout : {"speed", "memory"}) {
      SCOPED_TRACE(layout);
      expect_as_plain_mlp(size, GatedMlpOptions(8, 12), layout);
      expect_as_plain_mlp(size, GatedMlpOptions(8, 5).bias(true), layout);
      expect_as_plain_mlp(size, GatedMlpOptions(8, 1).activation(nn::GateActivation::kGeluTanh),
                          layout);
    }
  }
}

/// One all-gather and one reduce-scatter, forward and backward: the formula of the header.
TEST(DistributedGatedMlp, SendsWhatItsHeaderSays) {
  constexpr std::int64_t kBatch = 2, kSequence = 3, kWidth = 8, kInner = 12;
  for (const int size : {2, 4}) {
    for (const bool memory : {false, true}) {
      d2d::SimulatedJob job(size, 4);
      on_group(job, size, [&](int) {
        auto& group = TensorParallel::current();
        double forward = 0, backward = 0;
        int exchanges = 0;
        group.set_traffic_listener([&](const Traffic& one, const Traffic& dual) {
          forward += one.bytes, backward += dual.bytes, exchanges += one.rounds > 0;
        });
        nn::DistributedGatedMlp layer(GatedMlpOptions(kWidth, kInner), memory ? "memory" : "speed");
        group.set_alone(true);
        const std::int64_t rows = memory ? kBatch * size : kBatch;
        const auto x = at::ones({rows, kSequence, memory ? kWidth / size : kWidth});
        const auto input = x.clone().requires_grad_();
        memory ? layer->forward_slices(input) : layer->forward(input);
        group.set_alone(false);
        const auto others = static_cast<double>((size - 1) * kBatch * kSequence);
        const auto elements = memory ? others * (2 * kInner + kWidth) : others * 2 * kWidth;
        EXPECT_EQ(forward, 4 * elements) << size << (memory ? " memory" : " speed");
        EXPECT_EQ(backward, 4 * elements);
        EXPECT_EQ(exchanges, 2);
      });
    }
  }
}

TEST(DistributedGatedMlp, RefusesWhatDoesNotFit) {
  d2d::SimulatedJob job(2, 4);
  on_group(job, 2, [](int) {
    EXPECT_THAT(
        refusal<UsageError>([] { nn::DistributedGatedMlp(GatedMlpOptions(7, 4), "memory"); }),
        HasSubstr("width 7 cannot be divided by the 2"));
    nn::DistributedGatedMlp layer(GatedMlpOptions(7, 4), "speed");
    EXPECT_THAT(refusal<UsageError>([&] {
                  layer->forward(at::ones({2, 8}));
                }),
                HasSubstr("input is [2, 8], expected [batch, .., 7]"));
    EXPECT_THAT(refusal<UsageError>([&] {
                  layer->forward_slices(at::ones({2, 7}));
                }),
                HasSubstr("layout \"speed\""));
  });
}

}  // namespace distributed_gated_mlp_test
}  // namespace smp::tp
