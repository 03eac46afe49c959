// dp/comm_hook.cpp: hooks that send elements of a shorter type.
#include "smp/comm_hook.h"

#include <ATen/ATen.h>

namespace smp {
namespace {

class CastHook final : public CommHook {
 public:
  explicit CastHook(c10::ScalarType dtype) : dtype_(dtype) {}

  std::vector<at::Tensor> compress(const at::Tensor& elements, const Part&) override {
    const bool longer = elements.scalar_type() == c10::ScalarType::Float ||
                        elements.scalar_type() == c10::ScalarType::Double;
    return {longer ? elements.to(dtype_) : elements.clone()};
  }
  at::Tensor decompress(const std::vector<at::Tensor>& compressed, const at::Tensor& like,
                        const Part&) override {
    return compressed.at(0).to(like.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
  bool is_pure() const noexcept override { return true; }

 private:
  const c10::ScalarType dtype_;
};

}  // namespace

std::shared_ptr<CommHook> bf16_compress_hook() {
  return std::make_shared<CastHook>(c10::ScalarType::BFloat16);
}

std::shared_ptr<CommHook> fp16_compress_hook() {
  return std::make_shared<CastHook>(c10::ScalarType::Half);
}

}  // namespace smp
