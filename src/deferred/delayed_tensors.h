// deferred/delayed_tensors.h: tensors that have a recipe in the place of values. Such a tensor is a
// meta tensor whose storage carries the recipe, and whose operators we see wherever it is used.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "deferred/recipe.h"

namespace torch::nn {
class Module;
}

namespace smp::deferred {

/// The state that the tensors of one scope share.
struct Construction {
  bool by_path = false;
  std::uint64_t key = 0;  ///< the seed of random numbers that depend on the path
  /// The number of random operators so far: each draws from a stream of its own until it has a
  /// path.
  std::uint64_t draws = 0;
  /// True once the model is placed: a tensor that is no parameter and no buffer then gets its
  /// values when it is used.
  bool placed = false;
  c10::Device device = c10::DeviceType::CPU;  ///< where values go from then on
  bool open = true;                           ///< its scope lives
  bool torn = false;  ///< a tensor got values in the middle of a graph of those without
  RandomStream stream;
  DrawCounts counts;
  std::shared_ptr<const Construction> outer;  ///< that of the scope around this one

  bool is_placed() const { return placed || (outer && outer->is_placed()); }
};

/// The number of scopes that live in this process, on any thread.
std::atomic<int>& open_scopes();

/// The recipe of a delayed tensor. It lives in the storage, so views of one storage share it.
struct DelayedStorage {
  ContentPtr content;
  std::shared_ptr<Construction> construction;
  at::Storage values;  ///< once one of the views got them
  std::string path;    ///< in the model, once it is announced
};

/// Returns the recipe of a storage, or nullptr if it is not a delayed one.
DelayedStorage* delayed_storage(const at::Storage& storage);
/// Returns the recipe of `tensor`, or nullptr if it has values or is a meta tensor of other origin.
DelayedStorage* delayed_storage(const at::Tensor& tensor);

/// Makes the meta tensor `tensor` a delayed one. A further view of a storage is only marked.
void make_delayed(const at::Tensor& tensor, const ContentPtr& content,
                  const std::shared_ptr<Construction>& construction);

/// Makes the data pointers of an operator's delayed operands readable while it lives: LibTorch's
/// shape functions compare them, and to ask for them is an error otherwise.
class ReadablePointers {
 public:
  ReadablePointers(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  ~ReadablePointers();
  ReadablePointers(const ReadablePointers&) = delete;
  ReadablePointers& operator=(const ReadablePointers&) = delete;

 private:
  std::vector<at::Storage> storages_;
};

/// Returns the text that says why a delayed tensor cannot be used yet, and what to do.
/// @param who  the operator or function that needs the values
std::string no_values_yet(const std::string& who);

/// Returns the text that says why a meta tensor cannot be used with delayed ones.
std::string no_values_ever(const std::string& who);

/// True if `tensor` has no values yet, because it was made under smp::delay_param_initialization.
bool is_delayed(const at::Tensor& tensor);
/// True if a parameter or buffer of `model`, at any depth, has no values yet.
bool is_delayed(const torch::nn::Module& model);

/// Gives `tensor` its values if another view of its memory has got them, as an operator that could
/// not be put off needed them; does nothing else.
void fill_as_other_views(const at::Tensor& tensor);

/// Makes `tensors` meta tensors for good, in place; those that shared memory still share a storage.
/// Their memory is never freed. Meant for a forked process, which cannot use the device they are
/// on.
void forget_values(const std::vector<at::Tensor>& tensors);

/// Makes `tensor`, which has no memory, a meta tensor of its shape and strides, in place. Meant for
/// a forked process, in which no values are to be had.
void give_shape_only(const at::Tensor& tensor);

/// Gives delayed tensors their values, in place. Threads: the one that built them.
class Materialiser {
 public:
  /// @param device  where the values of announced tensors go; they are made on the CPU
  explicit Materialiser(c10::Device device = c10::DeviceType::CPU) : device_(device) {}

  /// Tells that `tensor` is placed, and that its path is `path`. All tensors of a model are
  /// announced, in one order on every rank, before the first is filled.
  void announce(const std::string& path, const at::Tensor& tensor);
  /// Gives `tensor` its values; does nothing if it has them. Memory: the tensor, and what its
  /// recipe needs meanwhile.
  void fill(const at::Tensor& tensor);
  /// Returns the values alone; `tensor` stays delayed, and will get the same ones, whatever path it
  /// is given.
  at::Tensor values_of(const at::Tensor& tensor);
  /// Gives the views of a delayed storage their values, and returns them; others as they are.
  at::Storage values_of(const at::Storage& storage);

 private:
  void compute(DelayedStorage& storage);

  RandomCursor cursor_;
  c10::Device device_;
};

}  // namespace smp::deferred
