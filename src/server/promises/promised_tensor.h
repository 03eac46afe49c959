// server/promises/promised_tensor.h: tensors whose values come when something needs them: an
// operator, a size, an element (docs/design.md, Promised outputs). Threads: the rank's.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <memory>

namespace smp::server {

/// The source of promised values: one call.
class PromisedValues {
 public:
  virtual ~PromisedValues() = default;

  struct Value {
    at::Tensor tensor;
    bool is_linked;  ///< it is a tensor of the caller, or shares its memory
  };
  /// Suspends until value `index` is here. @throws what the call threw; UsageError if nothing can
  /// wait in this place.
  virtual Value value(std::size_t index) = 0;
  /// Notes that nobody will ask for value `index` any more.
  virtual void forget(std::size_t index) noexcept = 0;
};

/// Makes a promised tensor of the given type, on the rank's device of kind `device`
/// (base/machine/home_device.h). Once its value has come it is an ordinary tensor with that value,
/// but keeps the history that it was given meanwhile. If the value is linked
/// (PromisedValues::Value), operators get the value in its place.
[[nodiscard]] at::Tensor promised_tensor(std::shared_ptr<PromisedValues> values, std::size_t index,
                                         at::ScalarType dtype, c10::DeviceType device);

/// The promise for which a tensor stands whose value has not been fetched; `values` is nullptr for
/// other tensors.
struct PromiseOf {
  std::shared_ptr<PromisedValues> values;
  std::size_t index = 0;
};
[[nodiscard]] PromiseOf promise_of(const at::Tensor& tensor) noexcept;

/// Suspends until the value of `tensor` is here; does nothing if `tensor` is an ordinary one.
void fetch(const at::Tensor& tensor);
/// Fetches `tensor`, and returns it or what stands in for it; for code of this library that looks
/// at tensors without an operator.
[[nodiscard]] at::Tensor fetched(const at::Tensor& tensor);

}  // namespace smp::server
