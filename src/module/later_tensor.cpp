// module/later_tensor.cpp: see later_tensor.h.
#include "module/later_tensor.h"

#include <utility>

namespace smp::module {
namespace {

LaterTensors& functions() noexcept {
  static LaterTensors set;
  return set;
}

}  // namespace

bool make_later_tensors_by(const LaterTensors& given) noexcept {
  functions() = given;
  return true;
}

at::Tensor later_tensor(const at::Tensor& like, std::shared_ptr<LaterValues> source) {
  return functions().make(like, std::move(source));
}

std::shared_ptr<LaterValues> source_of(const at::Tensor& tensor) noexcept {
  return functions().source_of(tensor);
}

}  // namespace smp::module
