// dp/bucket_codec.h: a user's CommHook as what the sum of a bucket makes of its parts.
#pragma once

#include <cstdint>
#include <vector>

#include "d2d/collectives/sum_aside.h"
#include "smp/comm_hook.h"

namespace smp::dp {

/// Shows the user's hook each part of a bucket as one row, and checks what the hook returns.
/// Threads: the rank's.
class BucketCodec final : public d2d::SumCodec {
 public:
  /// @param hook  outlives this
  BucketCodec(CommHook& hook, std::int64_t bucket) : hook_(hook), bucket_(bucket) {}
  /// Compresses a part. @throws UsageError  the hook returns a tensor that cannot be sent.
  std::vector<at::Tensor> encode(const d2d::SumParts::Pieces& pieces, int position,
                                 bool sum) override;
  /// Decompresses a part. @throws UsageError  the hook returns another shape or dtype than was
  /// asked for.
  d2d::SumParts::Pieces decode(const std::vector<at::Tensor>& encoded,
                               const d2d::SumParts::Pieces& like, int position, bool sum) override;

 private:
  CommHook& hook_;
  const std::int64_t bucket_;
};

}  // namespace smp::dp
