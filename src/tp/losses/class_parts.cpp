// tp/losses/class_parts.cpp: see the header.
#include "tp/losses/class_parts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "nn/accumulate_type.h"
#include "smp/tp/batch_primitives.h"
#include "tp/group/tensor_parallel.h"

namespace smp::tp {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

/// Returns the log-sum-exp of each row, [.., 1]. Where all classes are -inf, so is it, and no
/// gradient comes from there: that of LibTorch's logsumexp is NaN, though for the rows of all ranks
/// together such a part counts nothing.
at::Tensor log_sum_exp(const at::Tensor& logits) {
  auto sums = at::logsumexp(logits, {-1}, /*keepdim=*/true);
  if (sums.is_meta()) return sums;  // a plan is made, there are no values
  const auto nothing = at::isneginf(sums.detach());
  if (!nothing.any().item<bool>()) return sums;
  sums = at::logsumexp(logits.masked_fill(nothing, 0), {-1}, /*keepdim=*/true);
  return sums.masked_fill(nothing, kMinusInfinity);
}

}  // namespace

OwnClasses::OwnClasses(std::int64_t held, std::optional<std::int64_t> num_classes,
                       const char* caller) {
  const auto& group = TensorParallel::current();
  all = num_classes.value_or(held * group.size());
  SMP_REQUIRE(all > 0 && all <= held * group.size(), caller, ": ", group.size(), " ranks with ",
              held, " classes each have not the ", all, " of num_classes");
  first = group.rank() * held;
  real = std::clamp<std::int64_t>(all - first, 0, held);
}

at::Tensor checked_labels(const at::Tensor& labels, at::IntArrayRef rows, const OwnClasses& classes,
                          std::int64_t ignore_index, const char* caller) {
  const auto type = labels.scalar_type();
  SMP_REQUIRE(type == at::kLong || type == at::kByte, caller, ": labels of type ", type,
              "; expected torch::kLong or torch::kByte");
  SMP_REQUIRE(labels.sizes() == rows, caller, ": rows are ", rows, " and labels ", labels.sizes(),
              "; expected a label for each row of the samples of all ranks, [T*B, ..]");
  const auto numbers = labels.to(at::kLong);
  if (numbers.is_meta()) return numbers;  // a plan is made, there are no values
  const auto none = (numbers < 0).logical_or(numbers >= classes.all);
  const auto wrong = numbers.masked_select(none.logical_and(numbers != ignore_index));
  SMP_REQUIRE(wrong.numel() == 0, caller, ": label ", wrong[0].item<std::int64_t>(),
              " is none of the ", classes.all, " classes, and not ignore_index");
  return numbers;
}

at::Tensor parts_of_scores(const at::Tensor& scores, const at::Tensor& own_label,
                           std::int64_t real) {
  if (real == 0) {  // whose sum of exponentials is 0; still part of the graph of the others
    const auto nothing = nn::in_accumulate_type(scores.narrow(-1, 0, 0)).sum(-1, /*keepdim=*/true);
    return at::cat({nothing + kMinusInfinity, nothing}, -1);
  }
  const auto classes = nn::in_accumulate_type(scores.narrow(-1, 0, real));
  const auto elsewhere = (own_label < 0) | (own_label >= real);
  const auto of_label = classes.gather(-1, own_label.masked_fill(elsewhere, 0).unsqueeze(-1));
  return at::cat({log_sum_exp(classes), of_label.masked_fill(elsewhere.unsqueeze(-1), 0)}, -1);
}

at::Tensor losses_of_parts(const at::Tensor& parts, const at::Tensor& labels,
                           std::int64_t ignore_index, at::ScalarType dtype) {
  const auto& group = TensorParallel::current();
  const auto ignored = labels == ignore_index;
  const auto all = batch_of_slices_for_tp(parts, -1).unflatten(-1, {group.size(), 2});
  const auto losses =
      (at::logsumexp(all.select(-1, 0), {-1}) - all.select(-1, 1).sum(-1)).to(dtype);
  if (group.same_batch()) return losses.masked_fill(ignored, 0);
  const auto rows = labels.size(0) / group.size();
  return losses.masked_fill(ignored.narrow(0, group.rank() * rows, rows), 0);
}

}  // namespace smp::tp
