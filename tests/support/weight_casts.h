// support/weight_casts.h: how often weights are cast to bfloat16.
#pragma once

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace smp::support {

/// Counts casts of square matrices of one size to bfloat16, of all threads, while it lives. One at
/// a time.
class WeightCasts {
 public:
  /// @param size  rows of the weights, and of nothing else that is cast
  explicit WeightCasts(std::int64_t size) {
    size_ = size;
    casts_ = 0;
  }
  ~WeightCasts() { at::removeCallback(handle_); }
  WeightCasts(const WeightCasts&) = delete;
  WeightCasts& operator=(const WeightCasts&) = delete;
  int count() const { return casts_; }

 private:
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction&) { return nullptr; }
  static void note(const at::RecordFunction& function, at::ObserverContext*) {
    if (std::string(function.name()) != "aten::_to_copy") return;
    const auto& outputs = function.outputs();
    if (outputs.size() != 1 || !outputs[0].isTensor()) return;
    const auto& cast = outputs[0].toTensor();
    if (cast.scalar_type() != at::kBFloat16) return;
    if (cast.sizes() == at::IntArrayRef({size_.load(), size_.load()})) ++casts_;
  }

  inline static std::atomic<std::int64_t> size_ = 0;
  inline static std::atomic<int> casts_ = 0;
  const at::CallbackHandle handle_ =
      at::addGlobalCallback(at::RecordFunctionCallback(begin, note).needsOutputs(true));
};

}  // namespace smp::support
