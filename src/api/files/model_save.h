// api/files/model_save.h: a whole model into files that one rank writes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "checkpoint/module_tensors.h"
#include "checkpoint/tensor_info.h"
#include "smp/distributed_model.h"

namespace smp {

/// What becomes of a model's tensors on the rank that writes.
class ModelSink {
 public:
  virtual ~ModelSink() = default;
  /// Takes the values of tensor `index` of the model, in any order.
  virtual void write(std::size_t index, const at::Tensor& values) = 0;
  virtual void commit() = 0;
};

/// A model's tensors, whole, as they are saved: names, and what they are like under the first.
struct SavedTensors {
  std::vector<checkpoints::NamedTensor> tensors;
  std::vector<checkpoints::TensorInfo> infos;
};

/// Gives every tensor of `model` to the sink that `open` makes, one at a time, from the ranks that
/// own its parts; pp_rank 0 of the first replica writes. Who calls it, and what it throws where, is
/// as of save_safetensors().
/// @param what  for messages
/// @param open  called on the rank that writes
void save_model(const DistributedModelBase& model, const char* what,
                const std::function<std::unique_ptr<ModelSink>(const SavedTensors&)>& open);

}  // namespace smp
