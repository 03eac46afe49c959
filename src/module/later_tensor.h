// module/later_tensor.h: tensors whose values are made when something asks for them: an operator,
// or a rank that they are sent to. Threads: the rank's.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace smp::module {

/// Makes the values of a tensor.
class LaterValues {
 public:
  virtual ~LaterValues() = default;
  /// Returns them, without history. May suspend. Asked once for each tensor that has this source,
  /// and for each shallow copy of one.
  virtual at::Tensor values() = 0;
};

/// Returns a tensor of the shape and dtype of `like`, without history, that gets its values from
/// `source` when something asks for them; until then it has no memory.
/// @param like  on the meta device
at::Tensor later_tensor(const at::Tensor& like, std::shared_ptr<LaterValues> source);
/// Returns the source of a tensor of which nothing has asked for values; nullptr for any other.
std::shared_ptr<LaterValues> source_of(const at::Tensor& tensor) noexcept;

/// How such tensors are made. `server/promises` says so, where operators ask guards.
struct LaterTensors {
  at::Tensor (*make)(const at::Tensor& like, std::shared_ptr<LaterValues> source) = nullptr;
  std::shared_ptr<LaterValues> (*source_of)(const at::Tensor& tensor) noexcept = nullptr;
};
/// Sets it; before main().
bool make_later_tensors_by(const LaterTensors& functions) noexcept;

}  // namespace smp::module
