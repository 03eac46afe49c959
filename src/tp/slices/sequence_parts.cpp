// tp/slices/sequence_parts.cpp: see the header. A node behind a product gathers what the product's
// backward reads, as no node may wait while it is applied.
#include "tp/slices/sequence_parts.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <string>
#include <utility>

#include "module/kept_results.h"
#include "module/node_pointer.h"
#include "module/waiting_node.h"
#include "smp/tp/primitives.h"
#include "tp/group/exchange.h"
#include "tp/group/joined_when_used.h"
#include "tp/group/tensor_parallel.h"
#include "tp/slices/joined_product.h"

namespace smp::tp {
namespace {

/// Fills up a sequence so that it can be cut.
at::Tensor padded(const at::Tensor& whole, double with) {
  const auto ranks = TensorParallel::current().size();
  const auto beyond = (ranks - whole.size(1) % ranks) % ranks;
  return beyond == 0 ? whole : at::constant_pad_nd(whole, {0, 0, 0, beyond}, with);
}

at::Tensor unpadded(const at::Tensor& whole, std::int64_t length) {
  return whole.size(1) == length ? whole : whole.narrow(1, 0, length);
}

constexpr const char* kName = "gathering a sequence again";

/// Passes the gradient of a product on, after it has gathered what was multiplied.
class GatherAgain final : public module::SuspendingNode {
 public:
  /// @param meeting  nullptr if backward never comes here
  GatherAgain(const at::Tensor& part, std::int64_t length, std::shared_ptr<const Meeting> meeting,
              c10::intrusive_ptr<MultipliedInput> input)
      : part_(part, /*is_output=*/false),
        length_(length),
        meeting_(std::move(meeting)),
        input_(std::move(input)) {}

  torch::autograd::variable_list run(torch::autograd::variable_list&& gradients) override {
    TensorParallel::current().require_current(*meeting_);
    const auto part = part_.unpack();
    input_->value =
        unpadded(at::GradMode::is_enabled() ? fused_allgather_for_tp(part, 1)
                                            : Exchange::gather(1).run(meeting_->backward(), part),
                 length_);
    return {gradients[0].defined() ? gradients[0] : input_metadata(0).zeros_like()};
  }
  void release_variables() override { part_.reset_data(); }  // the product comes later
  std::string name() const override { return kName; }

 private:
  torch::autograd::SavedVariable part_;
  const std::int64_t length_;
  const std::shared_ptr<const Meeting> meeting_;
  const c10::intrusive_ptr<MultipliedInput> input_;
};

/// Returns where ranks meet in backward; nullptr where none of them will.
std::shared_ptr<const Meeting> meeting_of(const at::Tensor& part) {
  auto& own = TensorParallel::current();
  if (own.alone()) {
    const auto bytes = static_cast<double>(part.numel() * part.element_size());
    const auto& listener = own.traffic_listener();
    if (listener) listener({}, Exchange::gather(1).traffic(own.size(), bytes));
    return nullptr;
  }
  const auto* const kept = module::KeptResults::current();
  return kept != nullptr && kept->replays() ? nullptr : own.meet(kName);
}

}  // namespace

/// Filled up with ones, because norms of zeros need not be numbers.
at::Tensor part_of_sequence(const at::Tensor& whole) {
  const auto part = part_of_joined(whole, 1);
  return part.defined() ? part : own_part_for_tp(padded(whole, 1), 1);
}

at::Tensor whole_sequence(const at::Tensor& part, std::int64_t length) {
  return joined_when_used(part, 1, length);
}

at::Tensor read_sequence(const at::Tensor& part, std::int64_t length) {
  return unpadded(fused_allgather_for_tp(part, 1), length);
}

at::Tensor sequence_product(const at::Tensor& part, std::int64_t length,
                            const std::vector<at::Tensor>& weights, const at::Tensor& bias) {
  const auto whole = read_sequence(part, length);
  if (at::autocast::is_autocast_enabled(part.device().type())) {
    return joined_product(whole, weights, bias);
  }
  const auto input = c10::make_intrusive<MultipliedInput>();
  const auto product = joined_product(whole, weights, bias, input);
  if (!at::GradMode::is_enabled() || !product.requires_grad()) return product;
  const auto node = make_node<GatherAgain>(part, length, meeting_of(part), input);
  node->set_next_edges(torch::autograd::collect_next_edges(product));
  auto result = product.detach();
  torch::autograd::set_history(result, node);
  return result;
}

at::Tensor summed_sequence(const at::Tensor& addends) {
  return reduce_scatter_for_tp(padded(addends, 0), 1);
}

}  // namespace smp::tp
