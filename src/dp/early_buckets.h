// dp/early_buckets.h: gradients that replicas begin to add up while the step still runs (Li et al.,
// PyTorch Distributed, VLDB 2020, section 3.2.3: overlap of communication with backward).
//
// Which gradients there will be, and what hooks and bodies do to them, is known only at the end of
// the step. So this is a guess, which costs nothing but time if it is wrong:
//
//   begin_step    every rank expects of every replica the gradients of the last step that was
//                 averaged, of which all ranks of the stage know alike
//   note_final    when all gradients that are expected of a bucket are final here, it begins: its
//                 parts are sent from where they lie. `.grad` is not written (d2d::SumAside)
//   progress      what has come from all others is added up. Nobody waits
//   report        at the end of the step all ranks tell each other which buckets they have begun
//                 whose gradients are still what was sent. A bucket counts if that is so everywhere
//   finish        of those that count, sums are awaited and written. Of the others nothing remains,
//                 and they are averaged as if nothing had begun
//
// Where parameters have owners, sums are made and written there alone.
//
// Until all have reported, nobody waits, so that a step may end in any way at any time.
// Threads: the rank's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "d2d/collectives/communicator.h"
#include "d2d/collectives/sum_aside.h"
#include "dp/bucket_codec.h"
#include "dp/bucket_rows.h"

namespace smp::dp {

class EarlyBuckets {
 public:
  /// The communication hook that gradients go through, if any; it outlives the step.
  struct Hooked {
    CommHook* hook = nullptr;
    std::int64_t first_bucket = 0;  ///< the number by which it knows bucket 0
  };

  /// @param replicas    bucket i travels in their lane first_lane + i, which nobody else uses
  /// @param parameters  outlive this
  /// @param owners      the position in `replicas` of each parameter's owner, -1: nobody;
  ///                    empty: nobody owns any. All of a bucket have one, or none. Outlive this
  /// @param buckets     numbers of parameters; outlive this
  /// @param divisor     of sums
  EarlyBuckets(d2d::Communicator replicas, const std::vector<at::Tensor>& parameters,
               const std::vector<int>& owners, const std::vector<std::vector<std::size_t>>& buckets,
               std::uint64_t first_lane, int divisor);

  /// Begins a step. Its number is higher than all before, and the same on all replicas.
  /// @param expected  parameters that will have a dense gradient in every replica, by bucket; none:
  ///                  the bucket does not begin early
  /// @param news      signalled when progress() may have something to do
  void begin_step(std::uint64_t number, std::vector<std::vector<std::size_t>> expected,
                  fiber::Event& news, const Hooked& hook);
  /// Tells that the gradient of `parameter` seems final: it has all that the step gives. When all
  /// of a bucket are, its sum begins. @throws as Channel::send
  void note_final(std::size_t parameter);
  /// Adds up the parts that have come. Does not suspend. @throws as d2d::Communicator
  void progress();
  bool under_way() const noexcept { return begun_ > 0; }

  /// Returns a letter for each bucket: '+' it has begun and its gradients are untouched, else '-'.
  std::string report() const;
  /// Writes the means of the buckets for which `counts`, the same on all replicas, is true, and
  /// drops the sums of the others. Suspends. @throws as d2d::Communicator
  void finish(const std::vector<bool>& counts);
  /// Drops all sums, including parts that others have sent. Does not suspend.
  void end_step() noexcept;

 private:
  /// A gradient in the state in which it was sent.
  struct Sent {
    std::size_t parameter;
    const void* data;
    std::uint32_t version;
    std::uint64_t hash;
  };
  struct Bucket {
    std::vector<std::size_t> expected;
    std::size_t missing = 0;  // of `expected`, not final yet
    std::vector<Sent> sent;   // once begun
    std::unique_ptr<BucketCodec> codec;
    std::unique_ptr<BucketRows> rows;
    std::unique_ptr<d2d::SumAside> sum;
  };

  void begin(std::size_t number);
  bool is_untouched(const Bucket& bucket) const;
  d2d::Communicator lane_of(std::size_t bucket) const;

  const d2d::Communicator replicas_;
  const std::vector<at::Tensor>& parameters_;
  const std::vector<int>& owners_;
  const std::uint64_t first_lane_;
  const int divisor_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_;  // by parameter
  std::vector<bool> final_;             // by parameter; expected, that is
  std::uint64_t number_ = 0;            // of the step; 0: between steps
  fiber::Event* news_ = nullptr;
  Hooked hooked_;
  std::size_t begun_ = 0;
};

}  // namespace smp::dp
