// nn/weight_casts.cpp: a cast is kept for as long as its weight is what it was.
#include "nn/weight_casts.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace smp::nn {
namespace {

/// False on devices that autocast does not know, as meta.
bool is_autocast_on(c10::DeviceType device) {
  return at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
}

/// True for what autocast casts and its cache does not take.
bool is_kept_here(const at::Tensor& weight) {
  const bool takes_none = weight.scalar_type() != at::kFloat || !weight.is_leaf() ||
                          weight.is_inference() || c10::InferenceMode::is_enabled() ||
                          !at::autocast::is_autocast_cache_enabled();
  if (takes_none) return false;
  return !weight.requires_grad() || weight.is_view();
}

/// With its history, as autocast makes it: who casts first may want no gradient, and others do.
at::Tensor cast_now(const at::Tensor& weight, at::ScalarType type) {
  const at::AutoGradMode with_history(weight.requires_grad());
  return weight.to(type);
}

struct KeptCast {
  at::Tensor weight;  // whose address would be another's else
  const void* data;
  std::int64_t version;
  at::Tensor cast;

  bool is_of(const at::Tensor& other, at::ScalarType type) const {
    return data == other.const_data_ptr() && version == other._version() &&
           cast.scalar_type() == type && cast.requires_grad() == other.requires_grad();
  }
};

class KeptCasts {
 public:
  static KeptCasts& all() {
    static KeptCasts casts;
    return casts;
  }

  void change_users(int by) {
    const std::scoped_lock lock(mutex_);
    users_ += by;
    kept_.clear();
  }

  at::Tensor cast(const at::Tensor& weight, at::ScalarType type) {
    const std::scoped_lock lock(mutex_);
    if (users_ == 0) return cast_now(weight, type);
    const auto [place, is_new] = kept_.try_emplace(weight.unsafeGetTensorImpl());
    if (is_new || !place->second.is_of(weight, type)) {
      place->second = {weight, weight.const_data_ptr(), weight._version(), cast_now(weight, type)};
    }
    return place->second.cast;
  }

 private:
  std::mutex mutex_;
  int users_ = 0;
  std::unordered_map<const at::TensorImpl*, KeptCast> kept_;
};

}  // namespace

at::Tensor cast_of(const at::Tensor& weight) {
  const auto device = weight.device().type();
  if (!is_autocast_on(device)) return weight;
  const auto type = at::autocast::get_autocast_dtype(device);
  if (is_kept_here(weight)) return KeptCasts::all().cast(weight, type);
  return at::autocast::cached_cast(type, weight, device);
}

WeightCastsScope::WeightCastsScope() { KeptCasts::all().change_users(1); }
WeightCastsScope::~WeightCastsScope() { KeptCasts::all().change_users(-1); }

}  // namespace smp::nn
