// server/modules/foreign_parameters.h: parameters and buffers that live on another rank
// (docs/design.md, Foreign parameters). They keep their TensorImpl, shape and dtype, but have no
// memory, and no operator accepts them: code that reaches past the interception is told so.
// Threads: the rank's.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <string>
#include <vector>

#include "smp/rank.h"

namespace smp::server {

/// The kind of tensor that a module holds; for messages.
enum class Held { kParameter, kBuffer };

/// True if `tensor` lives only on another rank, so that this one has no values of it.
[[nodiscard]] bool is_foreign(const at::Tensor& tensor) noexcept;

/// The tensors that this rank knows and does not hold.
class ForeignParameters {
 public:
  explicit ForeignParameters(GlobalRank rank) : rank_(rank) {}

  /// Frees the storage of `tensor`, which is owned by rank `owner` of the job, and its gradient.
  /// From then on operators, writes and requests for its memory throw UsageError, or c10::Error
  /// where LibTorch alone is asked, with `path`, both ranks and the remedy. A delayed tensor never
  /// gets its values. Nothing happens to one that is foreign already.
  /// @throws UnsupportedError  it is sparse, quantised or nested.
  void shrink(const std::string& path, const at::Tensor& tensor, GlobalRank owner,
              Held held = Held::kParameter, const std::string& because = "");

  /// Throws UsageError if `tensor` is foreign and a gradient reached it: through a graph that was
  /// built before the model was placed.
  void refuse_gradient(const at::Tensor& tensor) const;

  /// Notes the hooks that foreign parameters have when a step begins. These were registered on
  /// every rank, or are nobody's concern.
  void note_hooks();
  /// @throws UsageError  a foreign parameter got a hook since note_hooks(), of which its owner does
  ///                     not know.
  void refuse_new_hooks() const;

  /// Returns the foreign tensors that somebody holds.
  [[nodiscard]] std::vector<at::Tensor> all() const;
  /// The number of foreign tensors of models that existed when the last step began.
  std::size_t size() const noexcept { return tensors_.size(); }
  /// The number of bytes that this rank does not hold.
  std::size_t freed_bytes() const noexcept { return freed_bytes_; }

 private:
  struct Foreign {
    c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> tensor{
        c10::intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>()};
    std::size_t num_hooks = 0;
  };

  GlobalRank rank_;
  std::vector<Foreign> tensors_;
  std::size_t freed_bytes_ = 0;
};

}  // namespace smp::server
