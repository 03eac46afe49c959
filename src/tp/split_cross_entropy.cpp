// tp/split_cross_entropy.cpp: see the header.
#include "smp/tp/split_cross_entropy.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "smp/tp/batch_primitives.h"
#include "tp/tensor_parallel.h"

namespace smp {
namespace {

constexpr const char* kName = "split_cross_entropy_for_tp";

void require_labels(const at::Tensor& logits, const at::Tensor& labels, std::int64_t classes,
                    const at::Tensor& ignored) {
  SMP_REQUIRE(logits.dim() >= 2 && labels.sizes() == logits.sizes().slice(0, logits.dim() - 1),
              kName, ": logits are ", logits.sizes(), " and labels ", labels.sizes(),
              "; expected [T*B, .., V/T] and [T*B, ..]");
  SMP_REQUIRE(labels.scalar_type() == at::kLong, kName, ": labels of type ", labels.scalar_type(),
              "; expected whole numbers (torch::kLong)");
  if (labels.is_meta()) return;  // a plan is made, there are no values
  const auto wrong = labels.masked_select(((labels < 0) | (labels >= classes)) & ~ignored);
  SMP_REQUIRE(wrong.numel() == 0, kName, ": label ", wrong[0].item<std::int64_t>(),
              " is none of the ", classes, " classes, and not ignore_index");
}

/// Log-sum-exp and score of the label, [.., 2], of the `real` first classes of this rank.
at::Tensor own_parts(const at::Tensor& logits, const at::Tensor& own_label, std::int64_t real) {
  if (real == 0) {  // whose sum of exponentials is 0; still part of the graph of the others
    const auto nothing = logits.narrow(-1, 0, 0).sum(-1, /*keepdim=*/true);
    return at::cat({nothing - std::numeric_limits<double>::infinity(), nothing}, -1);
  }
  const auto classes = logits.narrow(-1, 0, real);
  const auto elsewhere = (own_label < 0) | (own_label >= real);
  const auto scores = classes.gather(-1, own_label.masked_fill(elsewhere, 0).unsqueeze(-1));
  return at::cat({at::logsumexp(classes, {-1}, /*keepdim=*/true),
                  scores.masked_fill(elsewhere.unsqueeze(-1), 0)},
                 -1);
}

}  // namespace

at::Tensor split_cross_entropy_for_tp(const at::Tensor& logits, const at::Tensor& labels,
                                      std::int64_t ignore_index,
                                      std::optional<std::int64_t> num_classes) {
  const auto& group = tp::TensorParallel::current();
  const auto own_classes = logits.size(-1);
  const auto all_classes = num_classes.value_or(own_classes * group.size());
  SMP_REQUIRE(all_classes > 0 && all_classes <= own_classes * group.size(), kName, ": ",
              group.size(), " ranks with ", own_classes, " classes each have not the ", all_classes,
              " of num_classes");
  const auto ignored = labels == ignore_index;
  require_labels(logits, labels, all_classes, ignored);
  const auto first = group.rank() * own_classes;
  const auto real = std::clamp<std::int64_t>(all_classes - first, 0, own_classes);
  const auto parts = own_parts(logits, labels - first, real);
  const auto all = batch_of_slices_for_tp(parts, -1).unflatten(-1, {group.size(), 2});
  const auto losses = at::logsumexp(all.select(-1, 0), {-1}) - all.select(-1, 1).sum(-1);
  if (group.same_batch()) return losses.masked_fill(ignored, 0);
  const auto rows = labels.size(0) / group.size();
  return losses.masked_fill(ignored.narrow(0, group.rank() * rows, rows), 0);
}

}  // namespace smp
