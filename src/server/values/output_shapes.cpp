// server/values/output_shapes.cpp: dtype, device, then sizes.
#include "server/values/output_shapes.h"

#include <c10/util/DimVector.h>

#include <cstdint>
#include <limits>
#include <string>

#include "d2d/tensors/tensor_data.h"
#include "server/protocol/number_list.h"

namespace smp::server {

Note take_shapes(const std::vector<at::Tensor>& tensors, const TensorFlags& requires_grad) {
  std::string text;
  NumberWriter out(text);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    out.put(static_cast<std::int64_t>(tensors[i].scalar_type()));
    out.put(static_cast<std::int64_t>(tensors[i].device().type()));
    out.put(requires_grad[i] ? 1 : 0);
    out.put(tensors[i].sizes());
  }
  return text;
}

std::vector<at::Tensor> shapes_of(std::string_view note, TensorFlags& requires_grad) {
  std::vector<at::Tensor> tensors;
  NumberReader in(note);
  while (!in.at_end()) {
    const auto dtype =
        static_cast<at::ScalarType>(in.index(static_cast<std::size_t>(at::ScalarType::NumOptions)));
    const auto device = static_cast<c10::DeviceType>(
        in.index(static_cast<std::size_t>(c10::COMPILE_TIME_MAX_DEVICE_TYPES)));
    requires_grad.push_back(in.index(2) != 0);
    const auto sizes = in.list();
    auto& tensor = tensors.emplace_back(d2d::new_tensor({1}, dtype, device));
    const at::DimVector strides(sizes.size(), 0);
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  }
  return tensors;
}

}  // namespace smp::server
