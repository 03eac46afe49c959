// smp/placement.h: placing modules by hand.
#pragma once

#include <optional>

#include "smp/export.h"

namespace smp {

/// Modules created while it lives go to stage `pp_rank`; the innermost scope wins. Checked when the
/// model is placed.
///
///     { smp::partition here(1);  encoder = register_module("encoder", Encoder(options)); }
class SMP_API partition {
 public:
  [[nodiscard]] explicit partition(int pp_rank);
  ~partition();
  partition(const partition&) = delete;
  partition& operator=(const partition&) = delete;

 private:
  std::optional<int> outer_;
};

}  // namespace smp
