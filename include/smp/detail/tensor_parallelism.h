// smp/detail/tensor_parallelism.h: which modules of a model are to be spread over the ranks of a
// TP_GROUP (paper §5.2, App. E.2; docs/tensor_parallelism.md).
#pragma once

#include <optional>

#include "smp/detail/export.h"

namespace torch::nn {
class Module;
}

namespace smp {

/// While it lives, routed modules that this thread creates are marked; the innermost scope wins:
///
///     { smp::tensor_parallelism spread;  table = register_module("table", smp::nn::Embedding(n,
///     64)); }
///
/// A marked module is replaced when the model is wrapped in an smp::DistributedModel, if
/// tensor_parallel_degree is more than 1, a distributed implementation of its class is registered
/// (smp/tp/replacement.h), nothing above it was replaced, it shares no parameter with
/// another module, and its sizes can be divided. Its weights are kept, sliced.
class SMP_API tensor_parallelism {
 public:
  [[nodiscard]] explicit tensor_parallelism(bool enabled = true);
  ~tensor_parallelism();
  tensor_parallelism(const tensor_parallelism&) = delete;
  tensor_parallelism& operator=(const tensor_parallelism&) = delete;

  /// Returns what the innermost scope around the running code says; nothing outside of such scopes.
  static std::optional<bool> wanted() noexcept;

 private:
  const bool enabled_;
  const tensor_parallelism* const outer_;
};

/// Marks `module` and everything below it, or takes their marks away. Call it before the model is
/// wrapped.
/// @throws UsageError  it has parameters, and nothing to mark: none of its modules is routed.
SMP_API void set_tensor_parallelism(torch::nn::Module& module, bool enabled = true);
/// Does the same for the module of a holder.
template <class Holder>
requires requires(const Holder& holder) { holder.ptr(); }
void set_tensor_parallelism(const Holder& holder, bool enabled = true) {
  set_tensor_parallelism(*holder.ptr(), enabled);
}

}  // namespace smp
