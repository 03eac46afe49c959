// tp/layers/position_biases.cpp: see the header.
#include "tp/layers/position_biases.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/embedding.h>

#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "base/check.h"
#include "nn/accumulate_type.h"

namespace smp::tp {
namespace {

constexpr const char* kRelativePositions = "DistributedAttentionLayer: relative_positions";
constexpr std::int64_t kLeastBuckets = 4;  // two directions, one of them exact

std::int64_t buckets_of_direction(const RelativePositionOptions& options, bool is_causal) {
  return is_causal ? options.num_buckets : options.num_buckets / 2;
}

const RelativePositionOptions& checked(const RelativePositionOptions& options, bool is_causal) {
  SMP_REQUIRE(options.num_buckets >= kLeastBuckets && options.num_buckets % 2 == 0,
              kRelativePositions, ".num_buckets is ", options.num_buckets,
              "; must be even, and at least ", kLeastBuckets);
  const auto exact = buckets_of_direction(options, is_causal) / 2;
  SMP_REQUIRE(options.max_distance > exact, kRelativePositions, ".max_distance is ",
              options.max_distance, "; must be more than the ", exact,
              " distances that have buckets of their own");
  return options;
}

/// The distances of keys from queries: [S, S].
at::Tensor distances(std::int64_t length, at::Device device) {
  const auto position = at::arange(length, at::device(device).dtype(at::kLong));
  return position.unsqueeze(0) - position.unsqueeze(1);
}

std::vector<double> alibi_slopes(std::int64_t heads, double bias_max) {
  const auto power = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(heads)));
  std::vector<double> slopes;
  const auto add = [&](std::int64_t first, std::int64_t step) {
    for (std::int64_t i = first; i < power && std::ssize(slopes) < heads; i += step) {
      const double exponent = bias_max * static_cast<double>(i + 1) / static_cast<double>(power);
      slopes.push_back(std::exp2(-exponent));
    }
  };
  if (power == heads) {
    add(0, 1);
  } else {
    add(1, 2);
    add(0, 2);
  }
  return slopes;
}

}  // namespace

RelativePositionsImpl::RelativePositionsImpl(const RelativePositionOptions& options,
                                             std::int64_t heads, bool is_causal,
                                             std::optional<double> deviation)
    : options_(checked(options, is_causal)), is_causal_(is_causal) {
  torch::nn::Embedding whole(options.num_buckets, heads);
  if (deviation) {
    const at::NoGradGuard no_grad;
    whole->weight.normal_(0, *deviation);
  }
  weight = register_padded_slice("weight", whole->weight, 1);
}

at::Tensor RelativePositionsImpl::forward(std::int64_t length, std::int64_t heads) {
  const auto buckets = buckets_of_distances(options_, length, is_causal_, weight.device());
  const auto table = nn::in_accumulate_type(weight.narrow(1, 0, heads));
  const auto biases = at::embedding(table, buckets).permute({2, 0, 1}).unsqueeze(0);
  return biases.to(weight.scalar_type());
}

at::Tensor buckets_of_distances(const RelativePositionOptions& options, std::int64_t length,
                                bool is_causal, at::Device device) {
  const auto from_query = distances(length, device);
  const auto count = buckets_of_direction(options, is_causal), exact = count / 2;
  const auto distance = is_causal ? (-from_query).clamp_min(0) : from_query.abs();
  // In float32, as transformers has it: a distance at the edge of a bucket is rounded alike.
  const auto ratio = distance.clamp_min(exact).to(at::kFloat) / exact;
  const double range =
      std::log(static_cast<double>(options.max_distance) / static_cast<double>(exact));
  const auto beyond = (at::log(ratio) / range * (count - exact)).to(at::kLong);
  const auto bucket = at::where(distance < exact, distance, (exact + beyond).clamp_max(count - 1));
  return is_causal ? bucket : bucket + (from_query > 0).to(at::kLong) * count;
}

at::Tensor alibi_biases(std::int64_t first, std::int64_t heads, std::int64_t all, double bias_max,
                        std::int64_t length, const at::Tensor& like) {
  const auto slopes = at::tensor(alibi_slopes(all, bias_max), at::kDouble)
                          .narrow(0, heads == 0 ? 0 : first, heads)
                          .view({1, heads, 1, 1})
                          .to(like.device());
  return (slopes * -distances(length, like.device()).abs()).to(like.scalar_type());
}

}  // namespace smp::tp
