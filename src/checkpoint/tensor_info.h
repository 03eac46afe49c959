// checkpoint/tensor_info.h: what is known of a tensor before its values are.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace smp::checkpoints {

struct TensorInfo {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::int64_t> sizes;

  static TensorInfo of(std::string name, const at::Tensor& tensor) {
    return {std::move(name), tensor.scalar_type(), tensor.sizes().vec()};
  }
  std::size_t bytes() const {
    auto bytes = c10::elementSize(dtype);
    for (const auto size : sizes) bytes *= static_cast<std::size_t>(size);
    return bytes;
  }
  bool operator==(const TensorInfo&) const = default;
};

}  // namespace smp::checkpoints
