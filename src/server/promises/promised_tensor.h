// server/promises/promised_tensor.h: tensors whose values come when something needs them: an
// operator, a size, an element (docs/design.md, Promised outputs). Threads: the rank's.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <memory>

namespace smp::server {

/// Where the values come from: one call.
class PromisedValues {
 public:
  virtual ~PromisedValues() = default;

  struct Value {
    at::Tensor tensor;
    bool is_linked;  ///< it is a tensor of the caller, or shares its memory
  };
  /// Waits for value `index`. @throws what the call threw; UsageError: nothing can wait here.
  virtual Value value(std::size_t index) = 0;
  /// Nobody will ask for value `index` any more.
  virtual void forget(std::size_t index) noexcept = 0;
};

/// A tensor of the given type at home (base/machine/home_device.h). When its value has come it is
/// that, but keeps the history it was given meanwhile; operators on one whose value is linked get
/// the value in its place.
[[nodiscard]] at::Tensor promised_tensor(std::shared_ptr<PromisedValues> values, std::size_t index,
                                         at::ScalarType dtype, c10::DeviceType device);

/// What a tensor stands for whose value has not been fetched; nullptr: it is none.
struct PromiseOf {
  std::shared_ptr<PromisedValues> values;
  std::size_t index = 0;
};
[[nodiscard]] PromiseOf promise_of(const at::Tensor& tensor) noexcept;

/// Waits for the value; at once if `tensor` is an ordinary one.
void fetch(const at::Tensor& tensor);
/// Fetched; what code of ours uses that looks at tensors without an operator.
[[nodiscard]] at::Tensor fetched(const at::Tensor& tensor);

}  // namespace smp::server
