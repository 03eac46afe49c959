// smp/placement.h: placing modules by hand.
#pragma once

#include "smp/detail/export.h"

namespace smp {

/// While it lives, modules that this thread creates go to stage `pp_rank`, counted from 0, with
/// what is below them. The innermost scope wins, and DistributedModel::set_partition wins over it.
/// The stage is checked when the model is placed: a UsageError there names the module.
///
///     { smp::partition here(1);  encoder = register_module("encoder", Encoder(options)); }
class SMP_API partition {
 public:
  [[nodiscard]] explicit partition(int pp_rank);
  ~partition();
  partition(const partition&) = delete;
  partition& operator=(const partition&) = delete;

 private:
  friend class RoutedBase;
  int pp_rank_;
  const partition* outer_;
};

}  // namespace smp
