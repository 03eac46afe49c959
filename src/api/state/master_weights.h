// api/state/master_weights.h: the float32 values behind parameters of 16 bits.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <unordered_map>

namespace smp {

/// What was rounded to the parameters that this rank steps (`master_weights`), whichever optimizer
/// did. It keeps no parameter alive. Threads: the rank's.
class MasterWeights {
 public:
  /// Returns the values of `parameter`; undefined: there are none.
  at::Tensor of(const at::Tensor& parameter) const;
  void set(const at::Tensor& parameter, at::Tensor values);
  void forget(const at::Tensor& parameter) { kept_.erase(parameter.unsafeGetTensorImpl()); }
  /// Drops the values of parameters that are gone.
  void forget_gone();

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Kept {
    Weak parameter;  // so that no other has its address
    at::Tensor values;
  };
  std::unordered_map<const void*, Kept> kept_;
};

}  // namespace smp
