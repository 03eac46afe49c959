// tp/group/own_dropout.h: random numbers of what differs between the ranks of a TP_GROUP.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "base/random.h"

namespace smp::tp {

/// While it lives, random numbers are those of a rank's part of something: heads, or a slice of the
/// hidden size. Ranks with samples of their own have random numbers of their own. Those with a
/// prescaled batch draw the same ones, since what all have alike must be dropped alike; here each
/// draws others, from a stream that is keyed by tp_rank and by one number of the common stream,
/// which all ranks take, whatever the sizes of their parts.
class OwnNumbers {
 public:
  /// @param draws  whether anything is drawn; else nothing happens
  explicit OwnNumbers(bool draws);

 private:
  std::optional<base::RandomScope> scope_;
};

/// Applies at::dropout to a rank's part of something, with numbers of its own.
at::Tensor own_dropout(const at::Tensor& part, double probability, bool training);

}  // namespace smp::tp
