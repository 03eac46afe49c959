// deferred/delayed_tensors.cpp: the mark on a tensor, and how it goes away.
#include "deferred/delayed_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_map>

#include "base/check.h"
#include "base/random.h"
#include "base/torch_features.h"
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

// Else what was forbidden could not be allowed again.
#if SMP_STORAGES_CAN_BE_WATCHED
void forbid_pointer(const at::Storage& storage) {
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      no_values_yet("A data pointer") +
      ", or name the device where the tensor is made (torch::rand({3}, torch::kCPU)): it then has "
      "its values at once");
}
#else
void forbid_pointer(const at::Storage&) {}
#endif

}  // namespace

std::atomic<int>& open_scopes() {
  static std::atomic<int> count{0};
  return count;
}

DelayedStorage* delayed_storage(const at::Storage& storage) {
  auto& data = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (data.get_deleter() != &delete_delayed) return nullptr;
  return static_cast<DelayedStorage*>(data.get_context());
}

DelayedStorage* delayed_storage(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_meta() || !tensor.has_storage()) return nullptr;
  return delayed_storage(tensor.storage());
}

void make_delayed(const at::Tensor& tensor, const ContentPtr& content,
                  const std::shared_ptr<Construction>& construction) {
  KeysOfTensor::add(*tensor.unsafeGetTensorImpl(), c10::DispatchKey::DeferredInit);
  if (delayed_storage(tensor) != nullptr) return;
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr(nullptr, new DelayedStorage{content, construction, {}, {}}, &delete_delayed,
                  at::Device(at::kMeta)));
  forbid_pointer(tensor.storage());
}

ReadablePointers::ReadablePointers(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  map_arguments(op, stack, [&](const at::Tensor& tensor, bool) {
    if (is_delayed(tensor)) storages_.push_back(tensor.storage());
    return tensor;
  });
#if SMP_STORAGES_CAN_BE_WATCHED
  for (const auto& storage : storages_) {
    storage.unsafeGetStorageImpl()->clear_data_ptr_access_error_msg_();
  }
#endif
}

ReadablePointers::~ReadablePointers() {
  for (const auto& storage : storages_) forbid_pointer(storage);
}

std::string no_values_yet(const std::string& who) {
  return who +
         " needs the values of a tensor that has none yet: it was built under "
         "smp::delay_param_initialization and gets them when its smp::DistributedModel is placed, "
         "at the first step or by place(). To use it before, do so inside of the scope, or build "
         "it "
         "outside of that scope";
}

std::string no_values_ever(const std::string& who) {
  return who +
         " under smp::delay_param_initialization got a meta tensor that was not made there; it "
         "will never have values. On threads that a constructor starts, and outside of the scope, "
         "factories do not know of it: name torch::kCPU there, not the device of a delayed tensor";
}

bool is_delayed(const at::Tensor& tensor) { return delayed_storage(tensor) != nullptr; }

bool is_delayed(const torch::nn::Module& model) {
  const auto delayed = [](const auto& tensors) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [](const at::Tensor& tensor) { return is_delayed(tensor); });
  };
  return delayed(model.parameters()) || delayed(model.buffers());
}

void fill_as_other_views(const at::Tensor& tensor) {
  const auto* storage = delayed_storage(tensor);
  if (storage != nullptr && storage->values) Materialiser().fill(tensor);
}

void forget_values(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  auto& kept = *new std::vector<at::Storage>;  // NOLINT: never freed
  std::unordered_map<const c10::StorageImpl*, at::Storage> shapes;
  for (const auto& tensor : tensors) {
    if (tensor.is_meta() || !tensor.has_storage()) continue;
    const auto& storage = kept.emplace_back(tensor.storage());
    auto& shape = shapes[storage.unsafeGetStorageImpl()];
    if (!shape) {
      const auto bytes = static_cast<std::int64_t>(storage.nbytes());
      shape = at::empty({bytes}, at::TensorOptions(at::kByte).device(at::kMeta)).storage();
    }
    const auto meta = Geometry::of(tensor).on(shape);
    tensor.unsafeGetTensorImpl()->shallow_copy_from(meta.getIntrusivePtr());
    if (auto* own = torch::autograd::impl::get_autograd_meta(tensor))
      own->grad_accumulator_.reset();
  }
}

void give_shape_only(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions(tensor.scalar_type()).device(at::kMeta);
  const auto meta = at::empty_strided(tensor.sizes(), tensor.strides(), options);
  tensor.unsafeGetTensorImpl()->shallow_copy_from(meta.getIntrusivePtr());
  if (auto* own = torch::autograd::impl::get_autograd_meta(tensor)) own->grad_accumulator_.reset();
}

void Materialiser::announce(const std::string& path, const at::Tensor& tensor) {
  auto* storage = delayed_storage(tensor);
  if (storage == nullptr) return;
  if (storage->path.empty()) storage->path = path;
  storage->construction->placed = true;
  storage->construction->device = device_;
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

namespace {

/// Values that were read stay what they are, whatever path their tensor is given.
void keep_numbers(const ContentPtr& content) {
  for (auto* operation : operations_of(content)) {
    if (operation->random) operation->random->named = true;
  }
}

at::Storage moved(at::Storage storage, c10::Device device) {
  if (device.is_cpu()) return storage;  // or where the recipe has it
  const at::NoGradGuard no_grad;
  const Geometry bytes{{static_cast<std::int64_t>(storage.nbytes())}, {1}, 0, at::kByte};
  return bytes.on(storage).to(device).storage();
}

}  // namespace

void Materialiser::compute(DelayedStorage& storage) {
  if (storage.values) return;
  if (!storage.construction->is_placed()) keep_numbers(storage.content);
  try {
    storage.values = moved(Evaluation(cursor_).run(storage.content), storage.construction->device);
  } catch (const UsageError& error) {
    if (storage.path.empty()) throw;
    throw UsageError(base::concat("'", storage.path, "': ", error.what()));
  }
  storage.content.reset();
}

void Materialiser::fill(const at::Tensor& tensor) {
  auto* storage = delayed_storage(tensor);
  if (storage == nullptr) return;
  compute(*storage);
  const c10::InferenceMode mode(tensor.is_inference());
  module::replace_data(tensor, Geometry::of(tensor).on(storage->values));
}

at::Tensor Materialiser::values_of(const at::Tensor& tensor) {
  const auto* storage = delayed_storage(tensor);
  SMP_ASSERT(storage != nullptr);
  const auto geometry = Geometry::of(tensor);
  if (storage->values) return geometry.on(storage->values);
  keep_numbers(storage->content);
  return geometry.on(Evaluation(cursor_).run(storage->content));
}

at::Storage Materialiser::values_of(const at::Storage& storage) {
  auto* delayed = delayed_storage(storage);
  if (delayed == nullptr) return storage;
  compute(*delayed);
  return delayed->values;
}

}  // namespace smp::deferred
