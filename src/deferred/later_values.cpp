// deferred/later_values.cpp: an operand of recipes whose bytes come last.
#include "deferred/later_values.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "base/check.h"
#include "deferred/delayed_tensors.h"

namespace smp::deferred {
namespace {

/// Makes a tensor that no hook sees.
at::Tensor bare_tensor(at::IntArrayRef sizes, at::TensorOptions options) {
  const c10::impl::ExcludeDispatchKeyGuard unseen{
      c10::DispatchKeySet(c10::DispatchKey::DeferredInit)};
  return at::empty(sizes, options);
}

}  // namespace

LaterValues::LaterValues(const at::Tensor& target, at::ScalarType type) : target_(target) {
  const auto* storage = delayed_storage(target);
  SMP_ASSERT(storage != nullptr, "of a delayed tensor");
  stand_in_ = bare_tensor(target.sizes(), at::TensorOptions(type).device(at::kMeta));
  const auto content = std::make_shared<Content>(
      Content{stand_in_.storage().nbytes(), nullptr, 0, std::make_shared<GivenBytes>()});
  content_ = content;
  make_delayed(stand_in_, content, storage->construction);
}

void LaterValues::give(const at::Tensor& values) const {
  const auto content = content_.lock();
  SMP_ASSERT(content, "values that nothing depends on");
  const at::NoGradGuard no_grad;
  const auto plain = values.detach().cpu().resolve_conj().resolve_neg().contiguous();
  // Recipes read the storage from its start.
  const bool whole = plain.storage_offset() == 0 && plain.storage().nbytes() == content->bytes;
  content->given->storage = (whole ? plain : plain.clone()).storage();
}

void LaterValues::fill_target() const {
  const auto* storage = delayed_storage(target_);
  if (storage == nullptr || !storage->content || !is_complete(storage->content)) return;
  Materialiser().fill(target_);
}

}  // namespace smp::deferred
