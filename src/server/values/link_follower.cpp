// server/values/link_follower.cpp: histories first, then changed arguments, then views.
#include "server/values/link_follower.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <utility>

#include "base/check.h"
#include "d2d/tensors/tensor_data.h"
#include "module/node_pointer.h"
#include "server/values/output_links.h"
#include "server/values/tensor_layout.h"
#include "server/values/tensor_memory.h"

namespace smp::server {
namespace {

using NodePtr = NodePointer<torch::autograd::Node>;

// ---- one output --------------------------------------------------------------------------------

/// Writes `value` to `argument`: to each element of its expanded dimensions once, because LibTorch
/// does not write to one element through several.
void write_argument(at::Tensor argument, at::Tensor value) {
  for (std::int64_t d = 0; d < argument.dim(); ++d) {
    if (argument.stride(d) != 0 || argument.size(d) <= 1) continue;
    argument = argument.narrow(d, 0, 1);
    value = value.narrow(d, 0, 1);
  }
  argument.copy_(value);
}

/// Returns the layout of the linked view in the memory of `source` on this rank. An argument has
/// strides of its own here; a received tensor has those to which the note refers. Nothing if it is
/// none here: there were fewer gaps, and so what is a view there is a copy here.
std::optional<Layout> here(const OutputLink& link, const at::Tensor& source) {
  auto view = std::optional(link.view);
  if (link.source == OutputLink::Source::kArgument) {
    view = map_view(link.view, source.sizes(), compact_strides(source.sizes(), source.strides()),
                    source.strides());
  }
  if (view) view->offset += source.storage_offset();
  return view;
}

/// Returns a copy of an argument with the strides that it has at the owner.
at::Tensor copy_as_there(const at::Tensor& argument) {
  const auto& sizes = argument.sizes();
  auto copy =
      at::empty_strided(sizes, compact_strides(sizes, argument.strides()), argument.options());
  write_argument(copy, argument);
  return copy;
}

at::Tensor follow(const OutputLink& link, const at::Tensor& original) {
  if (link.kind == OutputLink::Kind::kSame) return original;
  const auto found = here(link, original);
  const auto& view = found ? *found : link.view;
  const auto source = found ? original : copy_as_there(original);
  const auto strided = [&](const at::Tensor& from) {
    return from.as_strided(view.sizes, view.strides, view.offset);
  };
  switch (link.kind) {
    case OutputLink::Kind::kView:
      return strided(source);
    case OutputLink::Kind::kViewNoGrad: {
      const at::NoGradGuard no_grad;
      return strided(source);
    }
    default: {
      auto detached = source.detach();
      detached.unsafeGetTensorImpl()->set_sizes_and_strides(view.sizes, view.strides, view.offset);
      return detached;
    }
  }
}

/// Returns a tensor with `node` as its history that shares the memory of tensor `memory`. In-place
/// changes of it are refused, as those of a custom function's views are.
at::Tensor guarded(const at::Tensor& memory, const NodePtr& node) {
  auto base = d2d::detached(memory);
  auto data = at::Tensor(memory.unsafeGetTensorImpl()->shallow_copy_and_detach(
      memory.unsafeGetTensorImpl()->version_counter(), true));
  auto view = torch::autograd::make_variable_differentiable_view(
      data, torch::autograd::ViewInfo(std::move(base), nullptr, nullptr), std::nullopt, false,
      torch::autograd::CreationMeta::IN_CUSTOM_FUNCTION);
  torch::autograd::set_history(view, node);
  return view;
}

/// Throws UnsupportedError if the changed argument shares memory with another argument here: at the
/// owner each had memory of its own, unless they are one tensor.
void require_own_memory(at::ArrayRef<at::Tensor> arguments, std::size_t index, const char* path) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    SMP_REQUIRE_AS(UnsupportedError,
                   arguments[i].is_same(arguments[index]) ||
                       memory_of(arguments[i]) != memory_of(arguments[index]) ||
                       !overlap(arguments[i], arguments[index]),
                   path, " changed tensor ", index, " of its arguments in place, shape ",
                   arguments[index].sizes(), ", which shares memory with tensor ", i,
                   "; on its own rank they were two. Pass clone() of one of them, or place this "
                   "module with its caller");
  }
}

// ---- all outputs -------------------------------------------------------------------------------

class LinkFollower {
 public:
  LinkFollower(const OutputLinks& told, std::vector<at::Tensor>& outputs,
               at::ArrayRef<at::Tensor> arguments)
      : told_(told), outputs_(outputs), arguments_(arguments) {}

  /// Gives each output its history. Inputs of the node are in the order of outputs, so a linked
  /// output with a gradient of its own is made when its turn comes; it needs only its source's
  /// memory, which is there.
  void give_history(const TensorFlags& requires_grad, const NodePtr& node) {
    const auto through_record = links_through_record();
    for (std::size_t k = 0; k < outputs_.size(); ++k) {
      if (!requires_grad[k]) {
        add_input_without_history(*node, outputs_[k]);
      } else if (!through_record.empty() && through_record[k] != nullptr) {
        const auto& link = *through_record[k];
        outputs_[k] = guarded(follow(link, source_of(link)), node);
      } else {
        torch::autograd::set_history(outputs_[k], node);
      }
    }
  }

  void change_arguments(const char* path) {
    auto value = outputs_.end() - static_cast<std::ptrdiff_t>(told_.changes.size());
    for (const auto& [index, history] : told_.changes) {
      require_own_memory(arguments_, index, path);
      const at::AutoGradMode mode(history);
      write_argument(arguments_[index], *value++);
    }
  }

  /// Makes the linked outputs that have no gradient of their own, of sources of this kind.
  void make_views_of(OutputLink::Source source) {
    for (const auto& link : told_.links) {
      if (link.source != source || link.passes_record()) continue;
      SMP_ASSERT(source == OutputLink::Source::kArgument || source_of(link).defined(), "output ",
                 link.output, " of output ", link.index);
      outputs_[link.output] = follow(link, source_of(link));
    }
  }

 private:
  /// Returns, by output, the link of each output whose gradient passes through the record, else
  /// nullptr; empty if there are no links.
  std::vector<const OutputLink*> links_through_record() const {
    std::vector<const OutputLink*> links(told_.links.empty() ? 0 : outputs_.size());
    for (const auto& link : told_.links) {
      if (link.passes_record()) links[link.output] = &link;
    }
    return links;
  }
  const at::Tensor& source_of(const OutputLink& link) const {
    return link.source == OutputLink::Source::kArgument ? arguments_[link.index]
                                                        : outputs_[link.index];
  }

  const OutputLinks& told_;
  std::vector<at::Tensor>& outputs_;
  const at::ArrayRef<at::Tensor> arguments_;
};

}  // namespace

void add_input_without_history(torch::autograd::Node& node, const at::Tensor& output) {
  if (output.defined()) {
    node.add_input_metadata(output);
  } else {
    node.add_input_metadata(torch::autograd::Node::undefined_input{});
  }
}

void follow_links(std::string_view note, std::vector<at::Tensor>& outputs,
                  at::ArrayRef<at::Tensor> arguments, const TensorFlags& requires_grad,
                  const NodePointer<torch::autograd::Node>& node, const char* path) {
  const auto told = OutputLinks::from_note(note, outputs.size(), arguments.size());
  LinkFollower follower(told, outputs, arguments);
  if (node) follower.give_history(requires_grad, node);
  follower.change_arguments(path);
  follower.make_views_of(OutputLink::Source::kArgument);
  follower.make_views_of(OutputLink::Source::kOutput);
  outputs.resize(told.num_outputs);
}

}  // namespace smp::server
