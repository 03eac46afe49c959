// tp/layers/block_norms.cpp: see the header.
#include "tp/layers/block_norms.h"

#include "base/check.h"
#include "smp/nn/rms_norm.h"

namespace smp::tp {

BlockNorm::BlockNorm(const std::string& kind, Layout layout, std::int64_t size, double epsilon,
                     const char* layer) {
  SMP_REQUIRE(kind == "layer" || kind == "rms", layer, ": norm is \"", kind,
              "\"; expected \"layer\" or \"rms\"");
  if (kind == "layer") {
    layer_ = SplitNorm(layout, size, epsilon);
  } else {
    const auto held = layout == Layout::kMemory ? layout : Layout::kSpeed;
    rms_ =
        SplitRmsNorm(nn::RMSNormImpl(nn::RMSNormOptions(size).eps(epsilon)), held, Keep::kCopies);
  }
}

void BlockNorm::register_at(torch::nn::Module& parent, const char* name) const {
  if (!layer_.is_empty()) parent.register_module(name, layer_);
  if (!rms_.is_empty()) parent.register_module(name, rms_);
}

at::Tensor BlockNorm::operator()(const at::Tensor& x, Layout between) {
  const bool own = between == Layout::kSequence;
  if (!layer_.is_empty()) return own ? layer_->of_own_rows(x) : layer_->forward(x);
  if (!rms_.is_empty()) return own ? rms_->of_own_rows(x) : rms_->forward(x);
  return x;
}

void BlockNorms::require_one(bool any, const char* layer) {
  SMP_REQUIRE(any, layer,
              ": neither pre_layernorm nor post_layernorm is set; set one of them, or both");
}

}  // namespace smp::tp
