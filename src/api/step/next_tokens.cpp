// api/step/next_tokens.cpp: greedy, or drawn.
#include "api/step/next_tokens.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/check.h"
#include "base/random.h"

namespace smp {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

/// Scores of the `top_k` highest, and of those that are equal to the last of them.
at::Tensor highest(const at::Tensor& scores, std::int64_t top_k) {
  const auto count = std::min(top_k, scores.size(-1));
  const auto last = std::get<0>(scores.topk(count, -1)).narrow(-1, count - 1, 1);
  return scores.masked_fill(scores < last, kNever);
}

/// Scores without the lowest, which have at most the probability 1 - `top_p` together.
at::Tensor likeliest(const at::Tensor& scores, double top_p) {
  const auto sorted = scores.sort(/*stable=*/true, -1, /*descending=*/false);
  auto dropped = std::get<0>(sorted).softmax(-1).cumsum(-1) <= 1 - top_p;
  dropped.narrow(-1, -1, 1).fill_(false);  // one is left
  return scores.masked_fill(dropped.scatter(-1, std::get<1>(sorted), dropped), kNever);
}

/// One token of `probabilities` [V], by numbers that depend on `key` alone: the first of all tokens
/// to come, if each comes after a time that is exponential with its probability as rate.
std::int64_t drawn(const at::Tensor& probabilities, std::uint64_t key) {
  auto generator = at::detail::createCPUGenerator(key);
  const auto times = at::empty_like(probabilities).exponential_(1, generator);
  return probabilities.div(times).argmax().item<std::int64_t>();
}

/// As transformers, which lets the highest score of such a row pass, and draws none.
void require_numbers(const at::Tensor& probabilities, std::int64_t first_row, std::int64_t place) {
  const auto odd = probabilities.isfinite().logical_not().any(/*dim=*/1);
  if (!odd.any().item<bool>()) return;
  SMP_REQUIRE(false, "generate: no token of row ",
              first_row + odd.to(at::kByte).argmax().item<std::int64_t>(),
              " can be drawn, new token ", place,
              ": its scores are not numbers, infinite, or all -infinity. The model has gone "
              "wrong, or masks every token");
}

}  // namespace

void check_choice(const GenerateOptions& options) {
  SMP_REQUIRE(options.temperature >= 0, "generate: temperature is ", options.temperature,
              ", must be 0 (the highest score) or more");
  SMP_REQUIRE(options.top_k >= 0, "generate: top_k is ", options.top_k,
              ", must be 0 (all) or more");
  SMP_REQUIRE(options.top_p > 0 && options.top_p <= 1, "generate: top_p is ", options.top_p,
              ", must be in (0, 1]");
}

at::Tensor probabilities_left(const at::Tensor& scores, const GenerateOptions& options) {
  auto left = scores.detach().to(at::kCPU, at::kDouble) / options.temperature;
  if (options.top_k > 0) left = highest(left, options.top_k);
  if (options.top_p < 1) left = likeliest(left, options.top_p);
  return left.softmax(-1);
}

at::Tensor next_tokens(const at::Tensor& scores, const GenerateOptions& options,
                       std::int64_t first_row, std::int64_t place) {
  check_choice(options);
  SMP_REQUIRE(scores.dim() == 2 && scores.size(1) > 0, "generate: scores are ", scores.sizes(),
              ", expected [B, V], of what follows the last token");
  if (options.temperature == 0 || scores.is_meta()) return scores.argmax(-1).to(at::kLong);
  const auto probabilities = probabilities_left(scores, options);
  require_numbers(probabilities, first_row, place);
  const auto chosen = at::empty({scores.size(0)}, at::kLong);
  for (std::int64_t i = 0; i < scores.size(0); ++i) {
    auto key = base::mix_key(options.seed, static_cast<std::uint64_t>(first_row + i));
    key = base::mix_key(key, static_cast<std::uint64_t>(place));
    chosen[i] = drawn(probabilities[i], key);
  }
  return chosen;
}

}  // namespace smp
