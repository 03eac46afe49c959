// deferred/delayed_tensors.cpp: the mark on a tensor, and how it goes away.
#include "deferred/delayed_tensors.h"

#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "base/check.h"
#include "base/random.h"
#include "deferred/operator_hook.h"
#include "module/replace_data.h"

namespace smp::deferred {
namespace {

void delete_delayed(void* storage) { delete static_cast<DelayedStorage*>(storage); }

/// LibTorch lets only its subclasses choose a tensor's dispatch keys.
struct KeysOfTensor : c10::TensorImpl {
  static void add(c10::TensorImpl& tensor, c10::DispatchKey key) {
    constexpr auto keys = &KeysOfTensor::key_set_;
    tensor.*keys = (tensor.*keys).add(key);
  }
};

void forbid_pointer(const at::Storage& storage) {
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      no_values_yet("A data pointer"));
}

}  // namespace

DelayedStorage* delayed_storage(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_meta() || !tensor.has_storage()) return nullptr;
  auto& data = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (data.get_deleter() != &delete_delayed) return nullptr;
  return static_cast<DelayedStorage*>(data.get_context());
}

void make_delayed(const at::Tensor& tensor, const ContentPtr& content,
                  const std::shared_ptr<Construction>& construction) {
  KeysOfTensor::add(*tensor.unsafeGetTensorImpl(), c10::DispatchKey::DeferredInit);
  if (delayed_storage(tensor) != nullptr) return;
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr(nullptr, new DelayedStorage{content, construction, {}}, &delete_delayed,
                  at::Device(at::kMeta)));
  forbid_pointer(tensor.storage());
}

ReadablePointers::ReadablePointers(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  map_arguments(op, stack, [&](const at::Tensor& tensor, bool) {
    if (is_delayed(tensor)) storages_.push_back(tensor.storage());
    return tensor;
  });
  for (const auto& storage : storages_) {
    storage.unsafeGetStorageImpl()->clear_data_ptr_access_error_msg_();
  }
}

ReadablePointers::~ReadablePointers() {
  for (const auto& storage : storages_) forbid_pointer(storage);
}

std::string no_values_yet(const std::string& who) {
  return who +
         " needs the values of a tensor that has none yet: it was built under "
         "smp::delay_param_initialization and gets them when its smp::DistributedModel is placed, "
         "at the first step or by place(). To use it before, build it outside of that scope";
}

bool is_delayed(const at::Tensor& tensor) { return delayed_storage(tensor) != nullptr; }

bool is_delayed(const torch::nn::Module& model) {
  const auto delayed = [](const auto& tensors) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [](const at::Tensor& tensor) { return is_delayed(tensor); });
  };
  return delayed(model.parameters()) || delayed(model.buffers());
}

void Materialiser::announce(const std::string& path, const at::Tensor& tensor) {
  auto* storage = delayed_storage(tensor);
  if (storage == nullptr) return;
  storage->construction->placed = true;
  if (!storage->construction->by_path || !storage->content) return;
  const auto own = base::mix_key(storage->construction->key, path);
  std::uint64_t draws = 0;
  for (auto* operation : operations_of(storage->content)) {
    auto& random = operation->random;
    if (!random || random->position || random->named) continue;
    random->key = base::mix_key(own, draws++);
    random->named = true;
  }
}

void Materialiser::fill(const at::Tensor& tensor) {
  auto* storage = delayed_storage(tensor);
  if (storage == nullptr) return;
  if (!storage->values) {
    storage->values = Evaluation(cursor_).run(storage->content);
    storage->content.reset();
  }
  module::replace_data(tensor, Geometry::of(tensor).on(storage->values));
}

at::Tensor Materialiser::values_of(const at::Tensor& tensor) {
  const auto* storage = delayed_storage(tensor);
  SMP_ASSERT(storage != nullptr);
  const auto geometry = Geometry::of(tensor);
  if (storage->values) return geometry.on(storage->values);
  return geometry.on(Evaluation(cursor_).run(storage->content));
}

}  // namespace smp::deferred
