// server/values/clone_on_write.cpp: LibTorch's copy-on-write storages.
#include "server/values/clone_on_write.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>

#include <utility>

#include "d2d/lend/loans.h"
#include "d2d/tensors/copy_on_write.h"
#include "d2d/tensors/tensor_data.h"

namespace smp::server {
namespace {

/// Makes a second storage that shares memory with `storage` until one of them is written; nullptr
/// if somebody else manages the memory.
c10::intrusive_ptr<c10::StorageImpl> second_storage(c10::StorageImpl& storage) {
  auto borrowed = d2d::Loans::twin(storage);
  return borrowed ? std::move(borrowed) : d2d::shared_until_written(storage);
}

}  // namespace

at::Tensor clone_on_write(const at::Tensor& tensor) {
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  // The memory is not what the tensor says: conjugation and negation are carried out.
  if (tensor.is_conj() || tensor.is_neg()) {
    return d2d::detached(tensor).resolve_conj().resolve_neg();
  }
  auto storage = tensor.has_storage() && tensor.layout() == c10::kStrided && tensor.is_cpu()
                     ? second_storage(*tensor.storage().unsafeGetStorageImpl())
                     : nullptr;
  if (storage == nullptr) return d2d::detached(tensor).clone();  // of a GPU, or somebody else's
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return at::Tensor(std::move(impl));
}

}  // namespace smp::server
