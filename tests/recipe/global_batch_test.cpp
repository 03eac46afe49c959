// The algebra of a global batch: every row once, and the same gradient however it is dealt.
#include "smp/recipe/global_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "smp/smp.h"
#include "support/refusal.h"

namespace smp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(GlobalBatch, EveryRowIsInOneMicrobatch) {
  for (std::int64_t rows = 1; rows <= 4; ++rows) {
    for (std::int64_t accumulation = 1; accumulation <= 4; ++accumulation) {
      for (std::int64_t replicas = 1; replicas <= 4; ++replicas) {
        const auto batch = divide_global_batch(rows * accumulation * replicas, rows, replicas);
        EXPECT_EQ(batch, (GlobalBatch{rows, accumulation, replicas}));
        std::int64_t next = 0;
        for (std::int64_t replica = 0; replica < replicas; ++replica) {
          EXPECT_EQ(batch.of_replica(replica), (RowRange{next, rows * accumulation}));
          for (std::int64_t i = 0; i < accumulation; ++i) {
            EXPECT_EQ(batch.of_microbatch(replica, i), (RowRange{next, rows}));
            next += rows;
          }
        }
        EXPECT_EQ(next, batch.total());
      }
    }
  }
}

TEST(GlobalBatch, NamesTheNearestThatCanBeDealt) {
  EXPECT_THAT(refusal([] { divide_global_batch(100, 4, 8); }),
              AllOf(HasSubstr("100 rows"), HasSubstr("8 replicas"), HasSubstr("multiple of 32"),
                    HasSubstr("96 or 128")));
  EXPECT_THAT(refusal([] { divide_global_batch(10, 4, 8); }), HasSubstr("32 or 64"));
  EXPECT_THAT(refusal([] { divide_global_batch(10, 0, 8); }), HasSubstr("at least 1"));
}

using torch::Tensor;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    torch::manual_seed(3);
    first = register_module("first", nn::Linear(4, 6));
    second = register_module("second", nn::Linear(6, 1));
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) { return second(torch::tanh(first(x))).squeeze(1); }
  nn::Linear first{nullptr}, second{nullptr};
};
SMP_MODULE(Net);

constexpr std::int64_t kTotal = 12;

Tensor all_rows() { return torch::arange(kTotal * 4, torch::kDouble).view({kTotal, 4}).sin(); }

std::vector<Tensor> gradients_alone() {
  Net net;
  net->forward(all_rows()).square().mean().backward();
  std::vector<Tensor> gradients;
  for (const auto& parameter : net->parameters()) gradients.push_back(parameter.grad().clone());
  return gradients;
}

void expect_gradients_of(const GlobalBatch& batch, const std::vector<Tensor>& expected) {
  Config config;
  config.pipeline_parallel_degree = 1;
  config.microbatches = static_cast<int>(batch.accumulation);
  const auto body = [&] {
    Net net;
    DistributedModel model(net);
    auto run = step([&](const Tensor& x) {
      EXPECT_EQ(x.size(0), batch.rows);
      model.backward(model(x).square().mean());
    });
    const auto own = batch.of_replica(data_shard().index);
    run(all_rows().narrow(0, own.first, own.count));
    const auto parameters = net->parameters();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::allclose(parameters[i].grad(), expected[i], 1e-12, 1e-14))
          << batch.rows << " x " << batch.accumulation << " x " << batch.replicas;
    }
  };
  run_local(static_cast<int>(batch.replicas), body, config);
}

/// The gradient is that of the mean over 12 rows for each way of writing 12 as three factors.
TEST(GlobalBatch, TheGradientDoesNotDependOnTheFactors) {
  const auto expected = gradients_alone();
  for (std::int64_t rows = 1; rows <= kTotal; ++rows) {
    for (std::int64_t replicas = 1; replicas <= 4; ++replicas) {
      if (kTotal % (rows * replicas) != 0) continue;
      expect_gradients_of(divide_global_batch(kTotal, rows, replicas), expected);
    }
  }
}

}  // namespace
}  // namespace smp
