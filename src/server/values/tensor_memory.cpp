// server/values/tensor_memory.cpp: holders are counted.
#include "server/values/tensor_memory.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d2d/channel/frame.h"
#include "d2d/tensors/tensor_data.h"
#include "server/values/tensor_layout.h"

namespace smp::server {
namespace {

bool is_computed(const at::Tensor& tensor) {
  return tensor.grad_fn() != nullptr && !(tensor.is_view() && tensor._base().is_leaf());
}

}  // namespace

const void* memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return nullptr;
  return tensor.storage().unsafeGetStorageImpl();
}

std::uint32_t version_of(const at::Tensor& tensor) noexcept {
  return tensor.defined() && !tensor.is_inference() ? static_cast<std::uint32_t>(tensor._version())
                                                    : 0;
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto end = [](const at::Tensor& t) {
    return t.storage_offset() + span_of(t.sizes(), t.strides());
  };
  return a.storage_offset() < end(b) && b.storage_offset() < end(a);
}

bool is_alone(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return true;
  if (tensor.use_count() > 1) return false;
  const auto users = tensor.storage().use_count();
  return users == 1 || (users == 2 && tensor.is_view() && tensor._base().use_count() == 1);
}

void copy_what_others_hold(std::vector<at::Tensor>& outputs) {
  for (auto& tensor : outputs) {
    if (memory_of(tensor) == nullptr || tensor.nbytes() <= d2d::kInlineBytes) continue;
    if (is_computed(tensor) || is_alone(tensor)) continue;
    const at::NoGradGuard no_grad;
    tensor = d2d::detached(tensor).clone();
  }
}

}  // namespace smp::server
