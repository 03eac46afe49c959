// server/output_links.cpp: a note lists links (output, kind, source, view), then changes.
#include "server/output_links.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "d2d/frame_codec.h"
#include "d2d/tensor_data.h"
#include "server/number_list.h"
#include "server/tensor_layout.h"

namespace smp::server {
namespace {

using torch::autograd::CreationMeta;

/// How an output hangs together with its source. The numbers are part of the wire format.
enum class Link : std::int64_t {
  kSame,           // it is the source
  kView,           // a differentiable view of it
  kViewNoGrad,     // one that was made without grad mode
  kDetached,       // shares its memory, not its history
  kThroughRecord,  // shares its memory; its history is the module's
};
constexpr std::size_t kLinks = 5;

enum class Source : std::int64_t { kArgument, kOutput };

/// The memory that `tensor` lies in, or nullptr.
const void* memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return nullptr;
  return tensor.storage().unsafeGetStorageImpl();
}

const torch::autograd::DifferentiableViewMeta* view_of(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(tensor);
  return meta != nullptr && meta->has_bw_view() ? meta : nullptr;
}

bool is_view_of(const at::Tensor& tensor, const at::Tensor& base) {
  const auto* view = view_of(tensor);
  return view != nullptr && view->get_backward_view().base_.is_same(base);
}

/// Hooks want to see the gradient of the tensor that they were given to.
bool has_hooks(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta != nullptr &&
         (!meta->hooks_.empty() || meta->cpp_hooks_list_ != nullptr || meta->retains_grad_);
}

/// Views of one operator, which LibTorch lets nobody write to. Others of that kind come from a
/// custom function, whose backward may be anything.
bool is_plain_multi_view(const at::Tensor& tensor) {
  const auto& node = tensor.grad_fn();
  if (!node) return false;
  const auto name = node->name();
  return name.rfind("Split", 0) == 0 || name.rfind("Unbind", 0) == 0;
}

Link link_of(const at::Tensor& output, const at::Tensor& source, bool grad) {
  const bool differentiable = output.requires_grad();
  if (!is_view_of(output, source)) {
    return differentiable ? Link::kThroughRecord : Link::kDetached;
  }
  if (differentiable && has_hooks(output)) return Link::kThroughRecord;
  switch (view_of(output)->get_creation_meta()) {
    case CreationMeta::DEFAULT:
      return Link::kView;
    case CreationMeta::NO_GRAD_MODE:
    case CreationMeta::INFERENCE_MODE:
      return grad ? Link::kViewNoGrad : Link::kView;
    case CreationMeta::MULTI_OUTPUT_NODE:
      return !differentiable || is_plain_multi_view(output) ? Link::kView : Link::kThroughRecord;
    case CreationMeta::IN_CUSTOM_FUNCTION:
      break;
  }
  return differentiable ? Link::kThroughRecord : Link::kDetached;
}

bool passes_record(Link link) { return link == Link::kThroughRecord; }

/// As the caller will have `source`; nothing if `output` is no view that can be told.
std::optional<Layout> view_in(const at::Tensor& output, const at::Tensor& source) {
  const auto compact = compact_strides(source.sizes(), source.strides());
  if (!compact) return std::nullopt;
  return map_view({at::DimVector(output.sizes()), at::DimVector(output.strides()),
                   output.storage_offset() - source.storage_offset()},
                  source.sizes(), source.strides(), *compact);
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto end = [](const at::Tensor& t) {
    return t.storage_offset() + span_of(t.sizes(), t.strides());
  };
  return a.storage_offset() < end(b) && b.storage_offset() < end(a);
}

class LinkTaker {
 public:
  LinkTaker(std::vector<at::Tensor>& outputs, at::ArrayRef<at::Tensor> arguments, bool grad)
      : outputs_(outputs), arguments_(arguments), grad_(grad), count_(outputs.size()) {
    for (const auto& output : outputs) output_memory_.push_back(memory_of(output));
    for (const auto& argument : arguments) argument_memory_.push_back(memory_of(argument));
    if (count_ > 1) add_hidden_bases();
  }

  void find() {
    for (std::size_t k = 0; k < outputs_.size(); ++k) {
      if (outputs_[k].defined()) take(k);
    }
  }

  std::string links;
  std::vector<std::size_t> taken;
  std::vector<std::size_t> not_recorded;

 private:
  /// Two outputs may lie on each other and be views of something that is no output: it goes along.
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
  static bool stands_in(at::ArrayRef<at::Tensor> tensors, const at::Tensor& tensor) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const auto& other) { return other.is_same(tensor); });
  }

  void take(std::size_t k) {
    const auto& output = outputs_[k];
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (output.is_same(arguments_[i])) return take_same(k, Source::kArgument, i);
    }
    for (std::size_t j = 0; j < k; ++j) {
      if (output.is_same(outputs_[j])) return put(k, Link::kSame, Source::kOutput, j);
    }
    const auto* const memory = output_memory_[k];
    if (memory == nullptr) return;
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (memory == argument_memory_[i]) {
        return take_view(k, Source::kArgument, i, arguments_[i]);
      }
    }
    if (const auto j = source_output(k, memory)) take_view(k, Source::kOutput, *j, outputs_[*j]);
  }

  /// The output that `k` is a view of; else an earlier one that covers it.
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

  void take_same(std::size_t k, Source source, std::size_t index) {
    const auto& output = outputs_[k];
    if (!output.requires_grad() || !has_hooks(output) || output_memory_[k] == nullptr) {
      return put(k, Link::kSame, source, index);
    }
    put(k, Link::kThroughRecord, source, index, view_in(output, output));
  }

  void take_view(std::size_t k, Source source, std::size_t index, const at::Tensor& whole) {
    const auto& output = outputs_[k];
    if (output.scalar_type() != whole.scalar_type() || output.is_conj() != whole.is_conj() ||
        output.is_neg() != whole.is_neg()) {
      return;  // the same bytes, read in another way
    }
    const auto view = view_in(output, whole);
    if (view) put(k, link_of(output, whole, grad_), source, index, view);
  }

  void put(std::size_t k, Link link, Source source, std::size_t index,
           const std::optional<Layout>& view = {}) {
    NumberWriter out(links);
    out.put(static_cast<std::int64_t>(k));
    out.put(static_cast<std::int64_t>(link));
    out.put(static_cast<std::int64_t>(source));
    out.put(static_cast<std::int64_t>(index));
    if (link != Link::kSame) {
      out.put(view->sizes);
      out.put(view->strides);
      out.put(view->offset);
    }
    taken.push_back(k);
    if (!passes_record(link)) not_recorded.push_back(k);
  }

  std::vector<at::Tensor>& outputs_;
  const at::ArrayRef<at::Tensor> arguments_;
  const bool grad_;
  const std::size_t count_;
  c10::SmallVector<const void*, 4> output_memory_;
  c10::SmallVector<const void*, 4> argument_memory_;
};

}  // namespace

// ---- at the owner ------------------------------------------------------------------------------

WatchedArguments::WatchedArguments(at::ArrayRef<at::Tensor> tensors)
    : tensors_(tensors.begin(), tensors.end()) {
  for (const auto& tensor : tensors_) states_.push_back(state_of(tensor));
}

WatchedArguments::State WatchedArguments::state_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version()),
          tensor.requires_grad() ? tensor.grad_fn().get() : nullptr, memory_of(tensor),
          tensor.requires_grad()};
}

std::vector<WatchedArguments::Change> WatchedArguments::changes(const char* path) const {
  std::vector<Change> found;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& tensor = tensors_[i];
    const auto now = state_of(tensor);
    const auto& before = states_[i];
    if (now.version == before.version && now.node == before.node &&
        now.requires_grad == before.requires_grad && now.memory == before.memory) {
      continue;
    }
    const bool first = std::none_of(tensors_.begin(), tensors_.begin() + static_cast<long>(i),
                                    [&](const auto& other) { return other.is_same(tensor); });
    if (!first) continue;
    SMP_REQUIRE_AS(
        UnsupportedError,
        tensor.has_storage() && now.memory == before.memory && now.version != before.version &&
            !(now.requires_grad && now.node == nullptr) &&
            !(before.requires_grad && !now.requires_grad),
        path, " changed tensor ", i, " of its arguments in place, shape ", tensor.sizes(),
        ", in a way that its caller on another rank would not see (its size, its memory, or "
        "whether it requires grad). Use an out-of-place operation, or place this module with its "
        "caller");
    found.push_back({i, now.node != before.node});
  }
  return found;
}

LinkedOutputs take_links(std::vector<at::Tensor>& outputs, const WatchedArguments& arguments,
                         const char* path, bool grad) {
  const auto changes = arguments.changes(path);
  const auto count = outputs.size();
  LinkTaker taker(outputs, arguments.tensors(), grad);
  taker.find();
  LinkedOutputs linked;
  if (taker.links.empty() && changes.empty()) return linked;
  NumberWriter out(linked.note);
  out.put(static_cast<std::int64_t>(count));
  out.put(static_cast<std::int64_t>(changes.size()));
  linked.recorded = outputs;
  for (const auto& [argument, history] : changes) {
    out.put(static_cast<std::int64_t>(argument));
    out.put(history ? 1 : 0);
    outputs.push_back(arguments.tensors()[argument]);
    linked.recorded.push_back(history ? outputs.back() : at::Tensor());
  }
  linked.note += taker.links;
  for (const auto k : taker.not_recorded) linked.recorded[k] = at::Tensor();
  for (const auto k : taker.taken) outputs[k] = at::Tensor();
  return linked;
}

namespace {

/// Nobody but `tensor` knows its memory. A view keeps what it is a view of.
bool is_alone(const at::Tensor& tensor) {
  if (tensor.use_count() > 1) return false;
  const auto uses = tensor.storage().use_count();
  return uses == 1 || (uses == 2 && tensor.is_view() && tensor._base().use_count() == 1);
}

bool is_computed(const at::Tensor& tensor) {
  return tensor.grad_fn() != nullptr && !(tensor.is_view() && tensor._base().is_leaf());
}

}  // namespace

void copy_what_others_hold(std::vector<at::Tensor>& outputs) {
  for (auto& tensor : outputs) {
    if (memory_of(tensor) == nullptr || tensor.nbytes() <= d2d::kInlineBytes) continue;
    if (is_computed(tensor) || is_alone(tensor)) continue;
    const at::NoGradGuard no_grad;
    tensor = d2d::detached(tensor).clone();
  }
}

// ---- at the caller -----------------------------------------------------------------------------

namespace {

struct LinkToFollow {
  std::size_t output;
  Link link;
  Source source;
  std::size_t index;
  Layout view;
};

LinkToFollow read_link(NumberReader& in, std::size_t outputs, std::size_t arguments) {
  LinkToFollow link;
  link.output = in.index(outputs);
  link.link = static_cast<Link>(in.index(kLinks));
  link.source = static_cast<Source>(in.index(2));
  link.index = in.index(link.source == Source::kArgument ? arguments : outputs);
  if (link.link == Link::kSame) return link;
  link.view.sizes = in.list();
  link.view.strides = in.list();
  link.view.offset = in.get();
  SMP_ASSERT(link.view.sizes.size() == link.view.strides.size());
  return link;
}

/// An argument has its own strides here, a received tensor those that the view was told in.
Layout here(const LinkToFollow& link, const at::Tensor& source) {
  auto view = link.view;
  if (link.source == Source::kArgument) {
    const auto compact = compact_strides(source.sizes(), source.strides());
    auto mapped =
        compact ? map_view(view, source.sizes(), *compact, source.strides()) : std::nullopt;
    SMP_REQUIRE_AS(UnsupportedError, mapped, "a remote module returned a view of tensor ",
                   link.index,
                   " of its arguments, whose elements lie on each other in memory; "
                   "clone() it before the call");
    view = std::move(*mapped);
  }
  view.offset += source.storage_offset();
  return view;
}

at::Tensor follow(const LinkToFollow& link, const at::Tensor& source) {
  if (link.link == Link::kSame) return source;
  const auto view = here(link, source);
  const auto strided = [&](const at::Tensor& from) {
    return from.as_strided(view.sizes, view.strides, view.offset);
  };
  switch (link.link) {
    case Link::kView:
      return strided(source);
    case Link::kViewNoGrad: {
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

/// Arguments that share memory here had memory of their own at the owner, unless they are one.
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

/// A tensor with `node` as its history, whose memory belongs to `memory` as well: in-place changes
/// of it are refused, as those of a custom function's views are.
at::Tensor guarded(const at::Tensor& memory,
                   const c10::intrusive_ptr<torch::autograd::Node>& node) {
  auto base = d2d::detached(memory);
  auto data = at::Tensor(memory.unsafeGetTensorImpl()->shallow_copy_and_detach(
      memory.unsafeGetTensorImpl()->version_counter(), true));
  auto view = torch::autograd::make_variable_differentiable_view(
      data, torch::autograd::ViewInfo(std::move(base), nullptr, nullptr), std::nullopt, false,
      CreationMeta::IN_CUSTOM_FUNCTION);
  torch::autograd::set_history(view, node);
  return view;
}

}  // namespace

void follow_links(std::string_view note, std::vector<at::Tensor>& outputs,
                  at::ArrayRef<at::Tensor> arguments, const TensorFlags& requires_grad,
                  const c10::intrusive_ptr<torch::autograd::Node>& node, const char* path) {
  NumberReader in(note);
  const auto total = outputs.size();
  const auto count = note.empty() ? total : in.index(total + 1);
  const auto num_changes = note.empty() ? 0 : in.index(total + 1);
  struct Change {
    std::size_t argument;
    bool history;
  };
  std::vector<Change> changes;
  for (std::size_t i = 0; i < num_changes; ++i) {
    const auto argument = in.index(arguments.size());
    changes.push_back({argument, in.index(2) != 0});
  }
  std::vector<LinkToFollow> links;
  while (!in.at_end()) links.push_back(read_link(in, total, arguments.size()));

  std::vector<bool> guarded_outputs(links.empty() ? 0 : total);
  for (const auto& link : links) guarded_outputs[link.output] = passes_record(link.link);
  // Inputs of the node are in the order of outputs, so a linked one that has a gradient of its own
  // is made when its turn comes; it needs its source's memory only, which is there.
  const auto source_of = [&](const LinkToFollow& link) -> const at::Tensor& {
    return link.source == Source::kArgument ? arguments[link.index] : outputs[link.index];
  };
  for (std::size_t k = 0; node && k < total; ++k) {
    if (!requires_grad[k]) {
      node->add_input_metadata(torch::autograd::Node::undefined_input{});
      continue;
    }
    if (k < guarded_outputs.size() && guarded_outputs[k]) {
      const auto link = std::find_if(links.begin(), links.end(),
                                     [&](const auto& other) { return other.output == k; });
      outputs[k] = guarded(follow(*link, source_of(*link)), node);
    } else {
      torch::autograd::set_history(outputs[k], node);
    }
  }
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const auto& value = outputs[total - changes.size() + i];
    auto argument = arguments[changes[i].argument];
    require_own_memory(arguments, changes[i].argument, path);
    const at::AutoGradMode mode(changes[i].history);
    argument.copy_(value);
  }
  for (const auto& link : links) {
    if (link.source == Source::kArgument && !passes_record(link.link)) {
      outputs[link.output] = follow(link, source_of(link));
    }
  }
  for (const auto& link : links) {
    if (link.source == Source::kOutput && !passes_record(link.link)) {
      SMP_ASSERT(source_of(link).defined(), "output ", link.output, " of output ", link.index);
      outputs[link.output] = follow(link, source_of(link));
    }
  }
  outputs.resize(count);
}

}  // namespace smp::server
