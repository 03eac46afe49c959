// hf/publisher.h: a model's tensors, one after the other, into a folder of published form.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "hf/conversion.h"
#include "hf/model_folder.h"
#include "hf/outgoing.h"

namespace smp::hf {

/// Joins, turns and converts what write() is given. Keeps parts in memory until a tensor is whole.
class Publisher {
 public:
  /// Checks names, shapes and dtypes, and lays out files.
  /// @throws as joined_tensors(), require_published(), ModelFolder
  Publisher(const std::vector<OwnTensor>& own, const std::string& folder, const NameMap& names,
            const SaveOptions& options);

  /// Takes the values of tensor `number` of the model. @throws as converted(), ModelFolder
  void write(std::size_t number, const at::Tensor& values);
  /// Completes the folder, after all tensors are written.
  SaveReport commit();

 private:
  struct Use {
    std::size_t joined, part;
  };
  void write_whole(std::size_t joined, at::Tensor values);

  std::vector<Joined> all_;
  std::vector<std::vector<Use>> uses_;          // by tensor of the model
  std::vector<std::vector<at::Tensor>> parts_;  // by joined tensor: those that wait
  std::string config_;
  Losses losses_;
  std::optional<ModelFolder> folder_;
};

}  // namespace smp::hf
