// deferred/delayed_tensors.h: tensors that have a recipe in the place of values. Such a tensor is a
// meta tensor whose storage carries the recipe, and whose operators we see wherever it is used.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "deferred/recipe.h"

namespace torch::nn {
class Module;
}

namespace smp::deferred {

/// What the tensors of one scope have in common.
struct Construction {
  bool by_path = false;
  std::uint64_t key = 0;  ///< of random numbers by path
  /// Random operators so far: each draws from a stream of its own until it has a path.
  std::uint64_t draws = 0;
  /// The model is placed: a tensor that is no parameter and no buffer gets its values when used.
  bool placed = false;
  c10::Device device = c10::DeviceType::CPU;  ///< where values go from then on
};

/// Lives in the storage of delayed tensors; views of one storage share it.
struct DelayedStorage {
  ContentPtr content;
  std::shared_ptr<Construction> construction;
  at::Storage values;  ///< once one of the views got them
};

/// Nothing if `tensor` has values, or is a meta tensor of other origin.
DelayedStorage* delayed_storage(const at::Tensor& tensor);

/// Makes the meta tensor `tensor` a delayed one; a second view of a storage is only marked.
void make_delayed(const at::Tensor& tensor, const ContentPtr& content,
                  const std::shared_ptr<Construction>& construction);

/// LibTorch's shape functions compare data pointers, which are otherwise an error to ask for: while
/// it lives, those of the operator's delayed operands are readable.
class ReadablePointers {
 public:
  ReadablePointers(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  ~ReadablePointers();
  ReadablePointers(const ReadablePointers&) = delete;
  ReadablePointers& operator=(const ReadablePointers&) = delete;

 private:
  std::vector<at::Storage> storages_;
};

/// Why a delayed tensor cannot be used yet, and what to do.
std::string no_values_yet(const std::string& who);

/// Whether `tensor` has no values yet, because it was made under smp::delay_param_initialization.
bool is_delayed(const at::Tensor& tensor);
/// Whether a parameter or buffer of `model`, at any depth, has no values yet.
bool is_delayed(const torch::nn::Module& model);

/// Takes the values of `tensors` for good, in place: they are meta from then on, and those that
/// shared memory do still. Their memory is never freed: for the copy of a process that cannot use
/// the device on which it is.
void forget_values(const std::vector<at::Tensor>& tensors);

/// Gives delayed tensors their values, in place. Threads: the one that built them.
class Materialiser {
 public:
  /// @param device  where the values of announced tensors go; they are made on the CPU
  explicit Materialiser(c10::Device device = c10::DeviceType::CPU) : device_(device) {}

  /// Says that `tensor` is placed, and known as `path`. Of a model's tensors all are announced, in
  /// one order on every rank, before the first is filled.
  void announce(const std::string& path, const at::Tensor& tensor);
  /// Nothing happens if it has values. Memory: the tensor, and what its recipe needs meanwhile.
  void fill(const at::Tensor& tensor);
  /// The values alone; `tensor` stays delayed, and will get these, whatever path it is given.
  at::Tensor values_of(const at::Tensor& tensor);

 private:
  RandomCursor cursor_;
  c10::Device device_;
};

}  // namespace smp::deferred
