// module/replace_data.cpp: what set_data() refuses between devices.
#include "module/replace_data.h"

#include <torch/csrc/autograd/variable.h>

namespace smp::module {

void replace_data(const at::Tensor& tensor, const at::Tensor& data) {
  if (!tensor.is_meta()) return tensor.set_data(data);
  tensor.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
  // What a graph remembers of a leaf includes its device.
  if (auto* meta = torch::autograd::impl::get_autograd_meta(tensor)) {
    meta->grad_accumulator_.reset();
  }
}

}  // namespace smp::module
