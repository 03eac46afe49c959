// precision/wide_values.cpp: see the header.
#include "precision/wide_values.h"

#include <ATen/ATen.h>

namespace smp::precision {

at::Tensor wide_values(const at::Tensor& kept, const at::Tensor& rounded) {
  const auto own = rounded.to(at::kFloat);
  const bool fits =
      kept.defined() && kept.sizes() == rounded.sizes() && kept.device() == rounded.device();
  return fits ? at::where(kept.to(rounded.scalar_type()).eq(rounded), kept, own) : own;
}

}  // namespace smp::precision
