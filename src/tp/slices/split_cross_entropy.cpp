// tp/slices/split_cross_entropy.cpp: see the header.
#include "smp/tp/split_cross_entropy.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "smp/tp/batch_primitives.h"
#include "tp/group/tensor_parallel.h"

namespace smp {
namespace {

constexpr const char* kName = "split_cross_entropy_for_tp";

void require_labels(const at::Tensor& logits, const at::Tensor& labels, std::int64_t classes,
                    const at::Tensor& ignored) {
  SMP_REQUIRE(logits.dim() >= 1 && labels.sizes() == logits.sizes().slice(0, logits.dim() - 1),
              kName, ": logits are ", logits.sizes(), " and labels ", labels.sizes(),
              "; expected [T*B, .., V/T] and [T*B, ..]");
  if (labels.is_meta()) return;  // a plan is made, there are no values
  const auto wrong = labels.masked_select(((labels < 0) | (labels >= classes)) & ~ignored);
  SMP_REQUIRE(wrong.numel() == 0, kName, ": label ", wrong[0].item<std::int64_t>(),
              " is none of the ", classes, " classes, and not ignore_index");
}

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

/// Returns the type in which rows are added up: torch's cross entropy does not add up halves
/// either.
at::ScalarType sum_type(const at::Tensor& logits) {
  const auto dtype = logits.scalar_type();
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

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

/// Returns log-sum-exp and score of the label, [.., 2], of the `real` first classes of this rank,
/// in the type of sums.
at::Tensor own_parts(const at::Tensor& logits, const at::Tensor& own_label, std::int64_t real) {
  const auto dtype = sum_type(logits);
  if (real == 0) {  // whose sum of exponentials is 0; still part of the graph of the others
    const auto nothing = logits.narrow(-1, 0, 0).to(dtype).sum(-1, /*keepdim=*/true);
    return at::cat({nothing + kMinusInfinity, nothing}, -1);
  }
  const auto classes = logits.narrow(-1, 0, real).to(dtype);
  const auto elsewhere = (own_label < 0) | (own_label >= real);
  const auto scores = classes.gather(-1, own_label.masked_fill(elsewhere, 0).unsqueeze(-1));
  return at::cat({log_sum_exp(classes), scores.masked_fill(elsewhere.unsqueeze(-1), 0)}, -1);
}

}  // namespace

at::Tensor split_cross_entropy_for_tp(const at::Tensor& logits, const at::Tensor& given_labels,
                                      std::int64_t ignore_index,
                                      std::optional<std::int64_t> num_classes) {
  const auto type = given_labels.scalar_type();
  SMP_REQUIRE(type == at::kLong || type == at::kByte, kName, ": labels of type ", type,
              "; expected torch::kLong or torch::kByte");
  SMP_REQUIRE(logits.dim() > 0, kName, ": logits without dimensions; expected [T*B, .., V/T]");
  const auto labels = given_labels.to(at::kLong);
  const auto& group = tp::TensorParallel::current();
  const auto own_classes = logits.size(-1);
  const auto all_classes = num_classes.value_or(own_classes * group.size());
  SMP_REQUIRE(all_classes > 0 && all_classes <= own_classes * group.size(), kName, ": ",
              group.size(), " ranks with ", own_classes, " classes each have not the ", all_classes,
              " of num_classes");
  const auto ignored = labels == ignore_index;
  require_labels(logits, labels, all_classes, ignored);
  if (logits.dim() == 1) {  // one row, which all ranks have
    SMP_REQUIRE(group.same_batch() || group.size() == 1, kName, ": logits are ", logits.sizes(),
                ", but ", group.size(),
                " ranks with samples of their own have a row each; "
                "expected [T*B, .., V/T]");
    return split_cross_entropy_for_tp(logits.unsqueeze(0), labels.unsqueeze(0), ignore_index,
                                      num_classes)
        .squeeze(0);
  }
  const auto first = group.rank() * own_classes;
  const auto real = std::clamp<std::int64_t>(all_classes - first, 0, own_classes);
  const auto parts = own_parts(logits, labels - first, real);
  const auto all = batch_of_slices_for_tp(parts, -1).unflatten(-1, {group.size(), 2});
  const auto losses =
      (at::logsumexp(all.select(-1, 0), {-1}) - all.select(-1, 1).sum(-1)).to(logits.scalar_type());
  if (group.same_batch()) return losses.masked_fill(ignored, 0);
  const auto rows = labels.size(0) / group.size();
  return losses.masked_fill(ignored.narrow(0, group.rank() * rows, rows), 0);
}

}  // namespace smp
