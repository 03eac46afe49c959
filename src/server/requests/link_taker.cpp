// server/requests/link_taker.cpp: an output's source is an argument first, else another output.
#include "server/requests/link_taker.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "server/graph/inner_outputs.h"
#include "server/graph/node_hooks.h"
#include "server/values/output_links.h"
#include "server/values/tensor_layout.h"
#include "server/values/tensor_memory.h"

namespace smp::server {
namespace {

using LinkKind = OutputLink::Kind;
using LinkSource = OutputLink::Source;

// ---- what one tensor is of another -------------------------------------------------------------

const torch::autograd::DifferentiableViewMeta* view_of(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(tensor);
  return meta != nullptr && meta->has_bw_view() ? meta : nullptr;
}

bool is_view_of(const at::Tensor& tensor, const at::Tensor& base) {
  const auto* view = view_of(tensor);
  return view != nullptr && view->get_backward_view().base_.is_same(base);
}

/// True if `tensor` is one of several views that split() or unbind() returned, to which LibTorch
/// lets nobody write. Others of that kind come from a custom function, whose backward may be
/// anything.
bool is_plain_multi_view(const at::Tensor& tensor) {
  const auto& node = tensor.grad_fn();
  if (!node) return false;
  const auto name = node->name();
  return name.rfind("Split", 0) == 0 || name.rfind("Unbind", 0) == 0;
}

LinkKind kind_of_link(const at::Tensor& output, const at::Tensor& source, bool grad) {
  using torch::autograd::CreationMeta;
  const bool differentiable = output.requires_grad();
  if (!is_view_of(output, source)) {
    return differentiable ? LinkKind::kThroughRecord : LinkKind::kDetached;
  }
  if (differentiable && is_hooked(output)) return LinkKind::kThroughRecord;
  // Its strides do not tell which of the elements that are one it is a view of.
  if (differentiable && has_shared_elements(source.sizes(), source.strides())) {
    return LinkKind::kThroughRecord;
  }
  switch (view_of(output)->get_creation_meta()) {
    case CreationMeta::DEFAULT:
      return LinkKind::kView;
    case CreationMeta::NO_GRAD_MODE:
    case CreationMeta::INFERENCE_MODE:
      return grad ? LinkKind::kViewNoGrad : LinkKind::kView;
    case CreationMeta::MULTI_OUTPUT_NODE:
      return !differentiable || is_plain_multi_view(output) ? LinkKind::kView
                                                            : LinkKind::kThroughRecord;
    case CreationMeta::IN_CUSTOM_FUNCTION:
      break;
  }
  return differentiable ? LinkKind::kThroughRecord : LinkKind::kDetached;
}

/// Returns the layout of `output` as a view of `source` with the strides in which the caller will
/// have `source`; nullopt if it cannot be expressed so.
std::optional<Layout> view_in(const at::Tensor& output, const at::Tensor& source) {
  return map_view({at::DimVector(output.sizes()), at::DimVector(output.strides()),
                   output.storage_offset() - source.storage_offset()},
                  source.sizes(), source.strides(),
                  compact_strides(source.sizes(), source.strides()));
}

/// True if both tensors read the same bytes in the same way: same dtype, conjugate and negative
/// bits.
bool read_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.is_conj() == b.is_conj() &&
         a.is_neg() == b.is_neg();
}

bool stands_in(at::ArrayRef<at::Tensor> tensors, const at::Tensor& tensor) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const auto& other) { return other.is_same(tensor); });
}

// ---- all outputs -------------------------------------------------------------------------------

class LinkTaker {
 public:
  /// Appends hidden bases (add_hidden_bases()) to `outputs`.
  LinkTaker(std::vector<at::Tensor>& outputs, at::ArrayRef<at::Tensor> arguments, bool grad)
      : outputs_(outputs), arguments_(arguments), grad_(grad), count_(outputs.size()) {
    for (const auto& output : outputs) output_memory_.push_back(memory_of(output));
    for (const auto& argument : arguments) argument_memory_.push_back(memory_of(argument));
    if (count_ > 1) add_hidden_bases();
  }

  std::vector<OutputLink> find() {
    for (std::size_t k = 0; k < outputs_.size(); ++k) {
      if (outputs_[k].defined()) take(k);
    }
    return std::move(links_);
  }

 private:
  /// Appends the common base of two outputs that overlap and are views of a tensor which is neither
  /// output nor argument: it is sent with them.
  void add_hidden_bases() {
    for (std::size_t k = 1; k < count_; ++k) {
      for (std::size_t j = 0; j < k; ++j) {
        if (output_memory_[k] == nullptr || output_memory_[k] != output_memory_[j]) continue;
        const auto *a = view_of(outputs_[k]), *b = view_of(outputs_[j]);
        if (a == nullptr || b == nullptr) continue;
        const auto& base = a->get_backward_view().base_;
        if (!base.is_same(b->get_backward_view().base_) || !overlap(outputs_[k], outputs_[j]) ||
            stands_in(outputs_, base) || stands_in(arguments_, base)) {
          continue;
        }
        output_memory_.push_back(memory_of(base));
        outputs_.push_back(base);
      }
    }
  }

  void take(std::size_t k) {
    const auto& output = outputs_[k];
    for (std::size_t j = 0; j < k; ++j) {
      if (output.is_same(outputs_[j])) return put(k, LinkKind::kSame, LinkSource::kOutput, j);
    }
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (output.is_same(arguments_[i])) return take_same(k, LinkSource::kArgument, i);
    }
    const auto* const memory = output_memory_[k];
    if (memory == nullptr) return;
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (memory == argument_memory_[i]) {
        return take_view(k, LinkSource::kArgument, i, arguments_[i]);
      }
    }
    if (const auto j = source_output(k, memory)) {
      take_view(k, LinkSource::kOutput, *j, outputs_[*j]);
    }
  }

  /// Returns the output that output `k` is a view of; else an earlier one that overlaps it.
  std::optional<std::size_t> source_output(std::size_t k, const void* memory) const {
    const auto& output = outputs_[k];
    std::optional<std::size_t> found;
    for (std::size_t j = 0; j < outputs_.size(); ++j) {
      if (j == k || memory != output_memory_[j]) continue;
      if (is_view_of(output, outputs_[j])) return j;
      if (j < k && !found && !is_view_of(outputs_[j], output) && overlap(output, outputs_[j]) &&
          (!view_of(output) || !view_of(outputs_[j]))) {
        found = j;
      }
    }
    return found;
  }

  void take_same(std::size_t k, LinkSource source, std::size_t index) {
    const auto& output = outputs_[k];
    const bool hooked = output.requires_grad() && is_hooked(output) && output_memory_[k] != nullptr;
    const auto view = hooked ? view_in(output, output) : std::nullopt;
    if (!view) return put(k, LinkKind::kSame, source, index);
    put(k, LinkKind::kThroughRecord, source, index, view);
  }

  void take_view(std::size_t k, LinkSource source, std::size_t index, const at::Tensor& whole) {
    const auto& output = outputs_[k];
    if (!read_alike(output, whole)) return;
    const auto view = view_in(output, whole);
    if (view) put(k, kind_of_link(output, whole, grad_), source, index, view);
  }

  void put(std::size_t k, LinkKind kind, LinkSource source, std::size_t index,
           std::optional<Layout> view = Layout()) {
    links_.push_back({k, kind, source, index, std::move(*view)});
  }

  std::vector<at::Tensor>& outputs_;
  const at::ArrayRef<at::Tensor> arguments_;
  const bool grad_;
  const std::size_t count_;  // without hidden bases
  c10::SmallVector<const void*, 4> output_memory_;
  c10::SmallVector<const void*, 4> argument_memory_;
  std::vector<OutputLink> links_;
};

/// True if no output is an argument or another output, or shares memory with one; that is nearly
/// always so.
bool stand_alone(const std::vector<at::Tensor>& outputs, at::ArrayRef<at::Tensor> arguments) {
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const auto& output = outputs[k];
    if (!output.defined()) continue;
    const auto* const memory = memory_of(output);
    const auto linked = [&](const at::Tensor& other) {
      return output.is_same(other) || (memory != nullptr && memory == memory_of(other));
    };
    if (std::any_of(arguments.begin(), arguments.end(), linked) ||
        std::any_of(outputs.begin(), outputs.begin() + static_cast<std::ptrdiff_t>(k), linked)) {
      return false;
    }
  }
  return true;
}

/// Returns the outputs whose gradients pass through the record, undefined in place of the others,
/// which the caller makes of tensors that it has.
std::vector<at::Tensor> recorded_of(const std::vector<at::Tensor>& outputs,
                                    const OutputLinks& told) {
  auto recorded = outputs;
  for (const auto& link : told.links) {
    if (!link.passes_record()) recorded[link.output] = at::Tensor();
  }
  return recorded;
}

/// Returns inner_outputs() of what is sent. A view that the module has used for another output has
/// a gradient at the owner too: its link is changed to pass through the record, so that the caller
/// knows.
TensorFlags inner_of_linked(const std::vector<at::Tensor>& outputs, OutputLinks& told) {
  while (true) {
    const auto inner = inner_outputs(outputs, recorded_of(outputs, told));
    bool changed = false;
    for (auto& link : told.links) {
      const bool view = link.kind == LinkKind::kView && outputs[link.output].requires_grad();
      if (!view || inner.size() == 0 || !inner[link.output]) continue;
      link.kind = LinkKind::kThroughRecord;
      changed = true;
    }
    if (!changed) return inner;
  }
}

[[gnu::cold]] LinkedOutputs linked_outputs(std::vector<at::Tensor>& outputs, OutputLinks&& told,
                                           at::ArrayRef<at::Tensor> arguments, bool grad) {
  const auto count = outputs.size();
  told.links = LinkTaker(outputs, arguments, grad).find();
  LinkedOutputs linked;
  if (told.links.empty() && told.changes.empty()) {
    outputs.resize(count);  // a hidden base that no link needs
    linked.inner = inner_outputs(outputs, outputs);
    return linked;
  }
  linked.inner = inner_of_linked(outputs, told);
  linked.note = told.note();
  linked.recorded = recorded_of(outputs, told);
  for (const auto& [argument, history] : told.changes) {
    outputs.push_back(arguments[argument]);
    linked.recorded.push_back(history ? outputs.back() : at::Tensor());
  }
  for (const auto& link : told.links) outputs[link.output] = at::Tensor();
  return linked;
}

}  // namespace

LinkedOutputs take_links(std::vector<at::Tensor>& outputs, const WatchedArguments& arguments,
                         const char* path, bool grad) {
  auto changes = arguments.changes(path);
  if (changes.empty() && stand_alone(outputs, arguments.tensors())) {
    return {{}, {}, inner_outputs(outputs, outputs)};
  }
  return linked_outputs(outputs, {outputs.size(), std::move(changes), {}}, arguments.tensors(),
                        grad);
}

}  // namespace smp::server
