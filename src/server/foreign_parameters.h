// server/foreign_parameters.h: parameters that live on another rank (docs/design.md, Foreign
// parameters). They keep their TensorImpl and shape, but their data is one NaN: code that reaches
// past the interception sees it, and a gradient for one is refused. Threads: the rank's.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <unordered_map>

#include "smp/rank.h"

namespace smp::server {

/// The tensors that this rank knows and does not hold. Keeps them alive until the session ends.
class ForeignParameters {
 public:
  explicit ForeignParameters(GlobalRank rank) : rank_(rank) {}

  /// Frees the storage of `tensor` (a parameter or buffer owned by rank `owner` of the job); dtype,
  /// shape and identity stay. Integer tensors become zeros. A delayed tensor never gets its values.
  void shrink(const std::string& path, at::Tensor& tensor, GlobalRank owner);

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
    GlobalRank owner;
    at::Tensor tensor;
    std::uint32_t version;
  };
  GlobalRank rank_;
  std::unordered_map<const void*, Entry> entries_;
  std::size_t freed_bytes_ = 0;
};

}  // namespace smp::server
