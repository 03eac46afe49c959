// deferred/example.cpp: tensors made up, and results brought back.
#include "deferred/example.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/diagonal.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/random.h"
#include "deferred/meta_kernels.h"
#include "deferred/operator_hook.h"
#include "deferred/recipe.h"

namespace smp::deferred {
namespace {

/// Returns zeros, of which only those pages take memory that are written.
at::Storage zeros(std::size_t bytes) {
  const auto size = std::max<std::size_t>(bytes, 1);
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  struct Mapping {
    void* memory;
    std::size_t size;
    static void end(void* mapping) {
      const auto* own = static_cast<Mapping*>(mapping);
      munmap(own->memory, own->size);
      delete own;
    }
  };
  return at::Storage(at::Storage::use_byte_size_t(), static_cast<std::int64_t>(bytes),
                     at::DataPtr(memory, new Mapping{memory, size}, &Mapping::end, at::kCPU),
                     c10::GetCPUAllocator(), /*resizable=*/true);
}

/// Real tensors in the place of meta tensors, which share memory as those do.
class Examples {
 public:
  explicit Examples(Example values) : values_(values) {}

  at::Tensor of(const at::Tensor& meta) {
    auto& storage = storages_[meta.storage().unsafeGetStorageImpl()];
    if (!storage) storage = zeros(meta.storage().nbytes());
    auto tensor = Geometry::of(meta).on(storage);
    fill(tensor);
    made_.emplace_back(meta, tensor);
    return tensor;
  }
  /// Returns the meta tensor that `real` stands for or is a view of, or else one like it.
  at::Tensor back(const at::Tensor& real) const {
    for (const auto& [meta, stand_in] : made_) {
      if (stand_in.is_same(real)) return meta;
    }
    if (real.layout() != at::kStrided || real.is_quantized() || !real.has_storage()) return real;
    for (const auto& [meta, stand_in] : made_) {
      if (stand_in.is_alias_of(real)) return Geometry::of(real).on(meta.storage());
    }
    return shape_of(real);
  }
  /// Gives meta tensors the shape of what was written in their place.
  void resize_written() const {
    for (const auto& [meta, stand_in] : made_) {
      const at::AutoDispatchBelowADInplaceOrView leaves;  // which autograd would not have resized
      if (meta.sizes() != stand_in.sizes()) meta.resize_(stand_in.sizes());
    }
  }

 private:
  void fill(const at::Tensor& tensor) const {
    if (values_ == Example::kOnes) tensor.fill_(1);
    if (values_ == Example::kIdentity) {
      (tensor.dim() < 2 ? tensor : tensor.diagonal(0, -2, -1)).fill_(1);
    }
    if (values_ == Example::kDistinct && tensor.is_non_overlapping_and_dense()) {
      tensor.copy_(at::arange(tensor.numel(), at::kLong).view(tensor.sizes()));
    }
  }

  Example values_;
  std::unordered_map<const c10::StorageImpl*, at::Storage> storages_;
  std::vector<std::pair<at::Tensor, at::Tensor>> made_;
};

/// Calls `op` with a generator of its own, so that nothing is drawn from the program's.
void call_drawing_nothing(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const base::RandomScope scope(0);
  for (auto& value : stack) {
    if (value.isGenerator()) value = base::default_generator();
  }
  op.callBoxed(&stack);
}

void run_on(Example values, const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto first = first_argument(op, stack);
  Examples examples(values);
  map_arguments(op, stack, [&](const at::Tensor& tensor, bool) {
    return tensor.is_meta() && tensor.has_storage() ? examples.of(tensor) : tensor;
  });
  if (auto* device = device_argument(op, stack); device != nullptr && device->isDevice()) {
    *device = at::Device(at::kCPU);
  }
  call_drawing_nothing(op, stack);
  examples.resize_written();
  map_results(stack, first, [&](const at::Tensor& tensor, bool) { return examples.back(tensor); });
}

}  // namespace

void run_by_example(const c10::OperatorHandle& op, torch::jit::Stack& stack, Example first) {
  const auto given = stack;
  for (const auto values : {first, Example::kZeros, Example::kOnes}) {
    try {
      return run_on(values, op, stack);
    } catch (const c10::Error&) {
      stack = given;
    }
  }
  run_on(Example::kIdentity, op, stack);
}

}  // namespace smp::deferred
