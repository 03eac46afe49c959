// server/foreign_parameters.h: parameters that live on another rank (§4.2: no silent bypass). They
// keep their TensorImpl and shape, but their data is one NaN: code that reaches past the
// interception sees it, and a gradient for one is refused.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <unordered_map>

namespace smp::server {

class ForeignParameters {
 public:
  explicit ForeignParameters(int pp_rank) : pp_rank_(pp_rank) {}

  /// Frees the storage of `tensor` (a parameter or buffer owned by pp_rank `owner`); dtype, shape
  /// and identity stay. Integer tensors become zeros. A delayed tensor never gets its values.
  void shrink(const std::string& path, at::Tensor& tensor, int owner);

  /// Throws UsageError if `tensor` is foreign and a gradient reached it.
  void refuse_gradient(const at::Tensor& tensor) const;

  /// Throws UsageError if a foreign tensor was written or materialised since it was shrunk
  /// (`zero_`, `fill_`, `torch::load`); `when` says when, for the message.
  void check_untouched(const char* when) const;

  std::size_t size() const noexcept { return entries_.size(); }
  /// Bytes this rank does not hold.
  std::size_t freed_bytes() const noexcept { return freed_bytes_; }

 private:
  struct Entry {
    std::string path;
    int owner;
    at::Tensor tensor;
    std::uint32_t version;
  };
  int pp_rank_;
  std::unordered_map<const void*, Entry> entries_;
  std::size_t freed_bytes_ = 0;
};

}  // namespace smp::server
