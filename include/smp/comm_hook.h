// smp/comm_hook.h: what becomes of gradients on their way between replicas: compression, say
// (torch's DistributedDataParallel calls it a communication hook; docs/data_parallelism.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "smp/detail/export.h"

namespace smp {

/// Defines how replicas send each other gradients; see DistributedModelBase::register_comm_hook().
///
/// Gradients travel in buckets (Config::bucket_cap_mb). A bucket of N elements is cut into as many
/// parts as there are replicas, and replica p adds up part p. With a hook the sum s of part p over
/// R replicas, g_r what replica r contributes to the gradient of the job, becomes
///
///     s = D(C((D(C(g_0)) + D(C(g_1)) + ... + D(C(g_{R-1}))) / T))
///
/// C is compress() and D is decompress(); T is 1, but for a prescaled batch, which T ranks have
/// (Config::prescaled_batch). The sum has the same bits on every replica: a replica
/// compresses its own part as well, although that does not travel. Sums are taken in order of
/// replicas in the gradients' dtype. Sparse gradients travel as they are. A bucket has the same
/// elements in every step; elements of which no replica has a dense gradient are zeros.
///
/// Threads: the rank's. Calls run without autograd, between the operations of a step, and must not
/// call modules. What they throw ends the step on this rank and, when the others wait in vain, the
/// job: check what can be checked in the constructor.
class SMP_API CommHook {
 public:
  /// Identifies the elements that are compressed. The same elements have the same numbers in every
  /// step, so that a hook may remember something about them (the error of the last step, say).
  struct Part {
    std::int64_t bucket = 0;  ///< number in the model on this rank; buckets of slices come last
    int part = 0;             ///< the position of the replica that adds it up
    bool sum = false;         ///< true: a sum on its way back; false: a gradient on its way there
  };

  virtual ~CommHook() = default;

  /// Returns the tensors that travel instead of `elements`.
  /// @param elements  [n], n > 0, contiguous, of the gradients' dtype; not to be changed or kept
  /// @param part      which elements of the model they are
  /// @return dense tensors, of memory that nobody writes to any more; the same number on all
  ///         replicas
  virtual std::vector<at::Tensor> compress(const at::Tensor& elements, const Part& part) = 0;

  /// Restores elements from what compress() returned; the inverse of compress(), as far as there is
  /// one.
  /// @param compressed  what compress() gave here or in another replica; not to be changed
  /// @param like        [n], of the dtype that is wanted, its elements undefined
  /// @param part        which elements of the model they are
  /// @return [n], of that dtype, of memory that nobody else writes to
  virtual at::Tensor decompress(const std::vector<at::Tensor>& compressed, const at::Tensor& like,
                                const Part& part) = 0;

  /// True if the results of both functions depend on nothing but their arguments. Then buckets may
  /// travel while backward still runs, and be compressed again if that was in vain.
  virtual bool is_pure() const noexcept { return false; }
};

/// Returns a hook that sends gradients as bfloat16: half the bytes of float32, with its range and 8
/// bits of precision. It converts float32 and float64 gradients; others travel as they are. Pure.
SMP_API std::shared_ptr<CommHook> bf16_compress_hook();

/// Returns a hook that sends gradients as float16: half the bytes of float32, with 11 bits of
/// precision; values above 65504 become infinite. Otherwise it is like bf16_compress_hook().
SMP_API std::shared_ptr<CommHook> fp16_compress_hook();

}  // namespace smp
