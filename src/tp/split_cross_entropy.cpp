// tp/split_cross_entropy.cpp: see the header.
#include "smp/tp/split_cross_entropy.h"

#include <ATen/ATen.h>

#include "base/check.h"
#include "smp/tp/primitives.h"
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

}  // namespace

at::Tensor split_cross_entropy_for_tp(const at::Tensor& logits, const at::Tensor& labels,
                                      std::int64_t ignore_index) {
  const auto& group = tp::TensorParallel::current();
  const auto own_classes = logits.size(-1);
  const auto ignored = labels == ignore_index;
  require_labels(logits, labels, own_classes * group.size(), ignored);
  const auto own_label = labels - group.rank() * own_classes;
  const auto elsewhere = (own_label < 0) | (own_label >= own_classes);
  const auto scores = logits.gather(-1, own_label.masked_fill(elsewhere, 0).unsqueeze(-1));
  const auto parts = at::cat({at::logsumexp(logits, {-1}, /*keepdim=*/true),
                              scores.masked_fill(elsewhere.unsqueeze(-1), 0)},
                             -1);
  const auto all = scatter_and_merge_for_tp(parts, 0, -1).unflatten(-1, {group.size(), 2});
  const auto losses = at::logsumexp(all.select(-1, 0), {-1}) - all.select(-1, 1).sum(-1);
  const auto rows = labels.size(0) / group.size();
  return losses.masked_fill(ignored.narrow(0, group.rank() * rows, rows), 0);
}

}  // namespace smp
