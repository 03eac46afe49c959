// Experts over the ranks of a group equal those of one process, whatever tokens choose, with
// samples of each rank's own and with the same.
#include "smp/tp/distributed_mixture_of_experts.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "support/refusal.h"
#include "tp/layer_comparison.h"
#include "tp/mixtures.h"

namespace smp::tp {
namespace distributed_mixture_of_experts_test {

using nn::MixtureOfExpertsOptions;
using testing::HasSubstr;

constexpr std::int64_t kWidth = 4;

MixtureOfExpertsOptions options_of(std::int64_t experts, std::int64_t top_k) {
  return {nn::GatedMlpOptions(kWidth, 3), experts, top_k};
}

/// @param bent  what is added to the router's weights of the first expert
void expect_as_plain_experts(int size, const MixtureOfExpertsOptions& options, double bent = 0) {
  SCOPED_TRACE(testing::Message() << size << " ranks, " << options.top_k() << " of "
                                  << options.experts() << ", bent by " << bent);
  expect_as_plain([&] { return std::make_shared<PlainMixtureImpl>(options, bent); },
                  [&] { return std::make_shared<SlicedMixtureImpl>(options, bent); },
                  numbers(size, {3, 2, kWidth}), 1e-12);
}

TEST(DistributedMixtureOfExperts, EqualsThatOfOneProcess) {
  for (const int size : {1, 2, 4}) {
    for (const auto& [experts, top_k] :
         std::vector<std::pair<int, int>>{{4, 1}, {4, 2}, {5, 3}, {1, 1}, {9, 2}}) {
      expect_as_plain_experts(size, options_of(experts, top_k));
      expect_as_plain_experts(size, options_of(experts, top_k).normalized(false), 50);
    }
    expect_as_plain_experts(size, options_of(4, 2).shared_inner_width(5));
  }
}

/// Blocks are as long as the longest: all tokens choose the first expert.
TEST(DistributedMixtureOfExperts, SendsWhatItsHeaderSays) {
  constexpr std::int64_t kTokens = 6;
  const int size = 2;
  d2d::SimulatedJob job(size, 4);
  std::uint64_t sent = 0;
  on_group(job, size, [&](int rank) {
    SlicedMixtureImpl net(options_of(2, 1), 0);
    {
      const torch::NoGradGuard no_grad;
      auto weight = net.layer->named_parameters()["gate.weight"];
      weight.zero_();
      weight[0] += 1;
    }
    const auto before = job.channel(rank).counters().tensor_bytes_sent;
    const torch::NoGradGuard no_grad;
    net.layer(at::ones({kTokens, kWidth}));
    if (rank == 0) sent = job.channel(rank).counters().tensor_bytes_sent - before;
  });
  EXPECT_EQ(sent, 2 * (size - 1) * kTokens * kWidth * 4 + (size - 1) * 2 * 8);
}

TEST(DistributedMixtureOfExperts, RefusesWhatDoesNotFit) {
  d2d::SimulatedJob job(2, 4);
  on_group(job, 2, [](int) {
    EXPECT_THAT(refusal<UsageError>([] {
                  nn::DistributedMixtureOfExperts(
                      MixtureOfExpertsOptions(nn::GatedMlpOptions(kWidth, 3).bias(true), 2, 1));
                }),
                HasSubstr("experts with biases are not spread"));
    nn::DistributedMixtureOfExperts layer(options_of(2, 1));
    EXPECT_THAT(refusal<UsageError>([&] {
                  layer->forward(at::ones({2, 3}));
                }),
                HasSubstr("input is [2, 3], expected [.., 4]"));
  });
}

}  // namespace distributed_mixture_of_experts_test
}  // namespace smp::tp
