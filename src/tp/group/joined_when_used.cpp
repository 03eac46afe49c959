// tp/group/joined_when_used.cpp: the gradient of such a whole is such a whole again.
#include "tp/group/joined_when_used.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "module/kept_results.h"
#include "module/later_tensor.h"
#include "module/node_pointer.h"
#include "module/waiting_node.h"
#include "smp/tp/primitives.h"
#include "tp/group/exchange.h"
#include "tp/group/tensor_parallel.h"

namespace smp::tp {
namespace {

using torch::autograd::variable_list;

constexpr const char* kJoining = "joining parts that are used as a whole";

at::Tensor shortened(const at::Tensor& whole, std::int64_t dim, std::int64_t length) {
  return whole.size(dim) == length ? whole : whole.narrow(dim, 0, length).contiguous();
}

/// Fills `whole` up so that it can be cut.
at::Tensor filled_up(const at::Tensor& whole, std::int64_t dim) {
  const auto ranks = TensorParallel::current().size();
  const auto beyond = (ranks - whole.size(dim) % ranks) % ranks;
  if (beyond == 0) return whole;
  std::vector<std::int64_t> padding(static_cast<std::size_t>(2 * (whole.dim() - dim)), 0);
  padding.back() = beyond;
  return at::constant_pad_nd(whole, padding);
}

/// The values of one whole.
class Joined final : public module::LaterValues {
 public:
  /// @param meeting  whose backward lane is used; nullptr: the ranks meet where the values are
  ///                 needed
  Joined(at::Tensor part, std::int64_t dim, std::int64_t length,
         std::shared_ptr<const Meeting> meeting)
      : part_(std::move(part)), dim_(dim), length_(length), meeting_(std::move(meeting)) {}

  /// Shallow copies of a whole ask again: in forward they gather again, in backward there is one
  /// lane.
  at::Tensor values() override {
    const at::NoGradGuard no_history;
    if (meeting_ == nullptr) return shortened(join_parts_for_tp(part_, dim_), dim_, length_);
    if (!whole_.defined()) {
      whole_ =
          shortened(Exchange::join_parts(dim_).run(meeting_->backward(), part_), dim_, length_);
    }
    return whole_;
  }
  const at::Tensor& part() const noexcept { return part_; }
  std::int64_t dim() const noexcept { return dim_; }
  std::int64_t length() const noexcept { return length_; }

 private:
  const at::Tensor part_;
  const std::int64_t dim_;
  const std::int64_t length_;
  const std::shared_ptr<const Meeting> meeting_;
  at::Tensor whole_;
};

/// Of a whole: passes this rank's part of its gradient on.
class ToPart final : public module::SuspendingNode {
 public:
  explicit ToPart(std::int64_t dim) : dim_(dim) {}
  variable_list run(variable_list&& gradients) override {
    const auto whole = gradients[0].defined() ? gradients[0] : input_metadata(0).zeros_like();
    const auto part = part_of_joined(whole, dim_);
    return {part.defined() ? part : own_part_for_tp(filled_up(whole, dim_), dim_)};
  }
  std::string name() const override { return kJoining; }

 private:
  const std::int64_t dim_;
};

at::Tensor later_joined(const at::Tensor& part, std::int64_t dim, std::int64_t length,
                        std::shared_ptr<const Meeting> meeting) {
  auto sizes = part.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = length;
  auto whole =
      module::later_tensor(at::empty(sizes, part.options().device(at::kMeta).requires_grad(false)),
                           std::make_shared<Joined>(part, dim, length, std::move(meeting)));
  if (at::GradMode::is_enabled() && part.requires_grad()) {
    const auto node = make_node<ToPart>(dim);
    node->set_next_edges(torch::autograd::collect_next_edges(part));
    torch::autograd::set_history(whole, node);
  }
  return whole;
}

/// Of a part that was taken from a whole: passes the gradient of the whole on, which ranks have in
/// parts as well.
class ToWhole final : public module::SuspendingNode {
 public:
  /// @param meeting  nullptr if backward never comes here
  ToWhole(std::int64_t dim, std::int64_t length, std::shared_ptr<const Meeting> meeting)
      : dim_(dim), length_(length), meeting_(std::move(meeting)) {}
  variable_list run(variable_list&& gradients) override {
    TensorParallel::current().require_current(*meeting_);
    const auto part = gradients[0].defined() ? gradients[0] : input_metadata(0).zeros_like();
    // With create_graph what is made of it may be differentiated elsewhere.
    return {later_joined(part, dim_, length_, at::GradMode::is_enabled() ? nullptr : meeting_)};
  }
  std::string name() const override { return kJoining; }

 private:
  const std::int64_t dim_;
  const std::int64_t length_;
  const std::shared_ptr<const Meeting> meeting_;
};

/// Returns where ranks may meet in backward; nullptr where none of them will.
std::shared_ptr<const Meeting> meeting_in_backward() {
  auto& own = TensorParallel::current();
  const auto* const kept = module::KeptResults::current();
  return own.alone() || (kept != nullptr && kept->replays()) ? nullptr : own.meet(kJoining);
}

}  // namespace

at::Tensor joined_when_used(const at::Tensor& part, std::int64_t dim, std::int64_t length) {
  if (part.is_meta() || c10::InferenceMode::is_enabled()) {
    return shortened(join_parts_for_tp(part, dim), dim, length);
  }
  return later_joined(part, dim, length, nullptr);
}

at::Tensor part_of_joined(const at::Tensor& whole, std::int64_t dim) {
  const auto source = std::dynamic_pointer_cast<const Joined>(module::source_of(whole));
  if (source == nullptr || source->dim() != dim) return {};
  const bool leads_back = at::GradMode::is_enabled() && whole.requires_grad();
  if (leads_back && whole.is_leaf()) return {};  // its gradient is kept
  auto part = source->part().detach();
  if (!leads_back) return part;
  const auto node = make_node<ToWhole>(dim, source->length(), meeting_in_backward());
  node->set_next_edges(torch::autograd::collect_next_edges(whole));
  torch::autograd::set_history(part, node);
  return part;
}

}  // namespace smp::tp
