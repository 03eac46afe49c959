// tp/losses/split_cross_entropy.cpp: see the header.
#include "smp/tp/split_cross_entropy.h"

#include <ATen/ATen.h>

#include "base/check.h"
#include "tp/group/tensor_parallel.h"
#include "tp/losses/class_parts.h"

namespace smp {
namespace {

constexpr const char* kName = "split_cross_entropy_for_tp";

}  // namespace

at::Tensor split_cross_entropy_for_tp(const at::Tensor& logits, const at::Tensor& given_labels,
                                      std::int64_t ignore_index,
                                      std::optional<std::int64_t> num_classes) {
  SMP_REQUIRE(logits.dim() > 0, kName, ": logits without dimensions; expected [T*B, .., V/T]");
  const tp::OwnClasses classes(logits.size(-1), num_classes, kName);
  const auto labels = tp::checked_labels(given_labels, logits.sizes().slice(0, logits.dim() - 1),
                                         classes, ignore_index, kName);
  if (logits.dim() == 1) {  // one row, which all ranks have
    const auto& group = tp::TensorParallel::current();
    SMP_REQUIRE(group.same_batch() || group.size() == 1, kName, ": logits are ", logits.sizes(),
                ", but ", group.size(),
                " ranks with samples of their own have a row each; "
                "expected [T*B, .., V/T]");
    return split_cross_entropy_for_tp(logits.unsqueeze(0), labels.unsqueeze(0), ignore_index,
                                      num_classes)
        .squeeze(0);
  }
  const auto parts = tp::parts_of_scores(logits, labels - classes.first, classes.real);
  return tp::losses_of_parts(parts, labels, ignore_index, logits.scalar_type());
}

}  // namespace smp
