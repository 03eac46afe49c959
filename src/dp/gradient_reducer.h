// dp/gradient_reducer.h: the gradients of one stage's parameters, added up over its replicas
// (paper §3.2.2: data parallelism around the pipeline; architecture as Li et al., VLDB 2020), on
// all of them or on the one that steps the parameter (App. H.1).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "d2d/collectives/communicator.h"
#include "dp/early_buckets.h"
#include "smp/comm_hook.h"

namespace smp::dp {

/// Sums are taken in order of replicas at one place for each element, whatever the buckets and the
/// timing, so all replicas get the same bits, every time: also those of buckets that are added up
/// while the step still runs (EarlyBuckets), for which it must be told of the step. Threads: the
/// rank's.
class GradientReducer {
 public:
  /// The form of each gradient of a replica, one letter a parameter: '-' none, 'd' dense, 's'
  /// sparse.
  using Forms = std::string;
  enum class Form : char { kNone = '-', kDense = 'd', kSparse = 's' };

  /// @param parameters    of the stage, in the same order on all members of `replicas`
  /// @param bucket_bytes  of gradients that travel together
  /// @param first_lane    of `replicas`; from there on lanes are this object's own
  /// @param divisor       of the sum over `replicas`; 0: their number
  /// @param owners        positions in `replicas`, one for each parameter, or none: the one that
  ///                      gets the sum; -1: all get it
  GradientReducer(d2d::Communicator replicas, std::vector<at::Tensor> parameters,
                  std::int64_t bucket_bytes, std::uint64_t first_lane, int divisor = 0,
                  std::vector<int> owners = {});
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Sets the hook that gradients go through on their way, from now on; nullptr: none. There can be
  /// none where gradients are summed up for owners.
  /// @param first_bucket  the number by which the hook knows the first bucket
  void set_hook(std::shared_ptr<CommHook> hook, std::int64_t first_bucket = 0);
  /// The number of buckets that a hook sees.
  std::int64_t buckets() const noexcept { return static_cast<std::int64_t>(buckets_.size()); }

  /// Begins a step. Until end_step() buckets may begin early.
  /// @param number  counts steps; the same on all replicas
  /// @param news    signalled when progress() may have something to do
  void begin_step(std::uint64_t number, fiber::Event& news);
  /// The following three are those of EarlyBuckets.
  void note_final(std::size_t parameter) { early_.note_final(parameter); }
  void progress() { early_.progress(); }
  bool under_way() const noexcept { return early_.under_way(); }

  /// What lay in `.grad` of a parameter with an owner before the step, since its last sum.
  enum class Given : char {
    kNothing = '-',
    kSum = 's',       ///< at the owner: the sum, changed or not
    kReplaced = 'r',  ///< at the owner: another tensor
    kBeside = 'd'     ///< elsewhere: what the program has put there
  };

  /// Returns the letter of a gradient in Forms.
  static char form(bool sparse) { return static_cast<char>(sparse ? Form::kSparse : Form::kDense); }

  /// The message of a rank to the others at the end of a step.
  struct Report {
    Forms forms;        ///< of its gradients
    std::string early;  ///< EarlyBuckets::report()
    std::string given;  ///< a Given for each parameter; empty: nothing of any
  };
  Report report() const { return {forms(), early_.report(), {}}; }

  /// True if what lies beside the owner's gradient of `parameter` is a term of a sum like that one,
  /// because the program has given all replicas a new one; else the owner has it already.
  bool is_term(const std::vector<Report>& reports, std::size_t parameter) const;

  /// Makes `.grad` of every parameter the sum over all replicas, divided; a gradient that is
  /// missing in some of them counts as zero, one that is missing in all stays missing. Where a
  /// parameter has an owner, the other replicas have no gradient of it afterwards. Suspends the
  /// calling fiber.
  /// @param reports  of all replicas, in their order
  /// @param number   of the step, as in begin_step(); needed where there is a hook
  /// @throws as d2d::Communicator, with a replica that left; UsageError if what a hook gives cannot
  ///         be used; what it throws.
  void reduce(const std::vector<Report>& reports, std::uint64_t number = 0);
  /// The number of buckets so far that were added up while steps still ran.
  std::uint64_t averaged_early() const noexcept { return averaged_early_; }
  /// Drops what began early and was not reduced. Does not suspend.
  void end_step() noexcept { early_.end_step(); }

 private:
  Forms forms() const;
  bool is_expected(const std::vector<std::size_t>& bucket) const;
  std::vector<bool> finish_early(const std::vector<Report>& reports);
  Form common_form(const std::vector<Forms>& forms, std::size_t parameter) const;
  std::vector<std::size_t> dense_ones(const std::vector<std::size_t>& bucket,
                                      const std::vector<Forms>& forms) const;
  std::vector<at::Tensor> dense_gradients(const std::vector<std::size_t>& parameters) const;
  std::vector<at::Tensor> all_gradients(const std::vector<std::size_t>& bucket,
                                        const std::vector<Forms>& forms) const;
  template <class Mean, class Make>
  void reduce_buckets(const std::vector<Forms>& forms, const std::vector<bool>& done, Make&& make);
  void reduce_sparse(std::size_t parameter);
  void drop_what_others_own() const;

  const d2d::Communicator replicas_;
  const std::vector<at::Tensor> parameters_;
  const std::vector<int> owners_;                        // empty: nobody is one
  const std::vector<std::vector<std::size_t>> buckets_;  // all of each is owned, or nothing
  const std::uint64_t first_lane_;
  const int divisor_;
  EarlyBuckets early_;
  std::uint64_t averaged_early_ = 0;
  std::vector<Forms> expected_;  // of all replicas, as they were last
  std::shared_ptr<CommHook> hook_;
  std::int64_t first_bucket_ = 0;
};

}  // namespace smp::dp
