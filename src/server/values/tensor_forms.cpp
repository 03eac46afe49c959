// server/values/tensor_forms.cpp: one entry a replaced tensor: its index, its kind, and what that
// needs.
#include "server/values/tensor_forms.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <optional>
#include <utility>

#include "base/check.h"
#include "d2d/tensors/tensor_data.h"
#include "server/protocol/number_list.h"
#include "server/values/tangent.h"
#include "server/values/tensor_layout.h"

namespace smp::server {
namespace {

/// The kinds of tensors that do not travel as they are. The numbers are part of the wire format.
enum class Form : std::int64_t { kRepeated, kStrided, kSparse };
constexpr std::size_t kForms = 3;

/// Returns the reason for which `tensor` cannot leave its rank, and what to do; nullptr if it can.
const char* obstacle(const at::Tensor& tensor) {
  if (tensor.is_quantized()) return "is quantised; dequantize() it";
  if (tensor.is_nested()) return "is nested; pass its buffer and offsets, or a padded tensor";
  if (tensor.is_mkldnn()) return "is of the MKLDNN layout; pass to_dense() of it";
  if (tensor.is_meta()) return "is on the meta device and has no values; materialise it";
  if (has_tangent(tensor)) {
    return "has a tangent (forward-mode differentiation), which would be lost; take the product "
           "with the Jacobian by smp::grad() with create_graph";
  }
  if (tensor.layout() != c10::kStrided && !tensor.is_sparse()) {
    return "is of a compressed sparse layout; pass to_sparse() (COO) or to_dense() of it";
  }
  const auto& elements = tensor.is_sparse() ? tensor._values() : tensor;
  if (!d2d::is_sendable_dtype(elements.scalar_type())) {
    return "has elements of a type that cannot be sent; convert it";
  }
  return tensor.dim() > 64 ? "has more than 64 dimensions; reshape it" : nullptr;
}

/// Returns what detach() would, but with other sizes and strides: a view of the same memory, made
/// without the dispatcher.
at::Tensor relaid(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  at::Tensor view = d2d::detached(tensor);
  view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, tensor.storage_offset());
  return view;
}

/// True if `tensor` can travel as it is.
bool is_plain(const at::Tensor& tensor, bool layout) {
  return tensor.layout() == c10::kStrided && !tensor.is_meta() && !tensor.is_nested() &&
         tensor.dim() <= 64 && d2d::is_sendable_dtype(tensor.scalar_type()) &&
         !has_tangent(tensor) && (!layout || tensor.is_contiguous());
}

/// True if all tensors can travel as they are, and none stands in the list twice; that is nearly
/// always so.
bool are_plain(const std::vector<at::Tensor>& tensors, bool layout) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    if (!is_plain(tensors[i], layout) || stands_before(tensors, i)) return false;
  }
  return true;
}

class FormTaker {
 public:
  FormTaker(std::vector<at::Tensor>& tensors, const char* kind, std::string_view path, bool layout)
      : tensors_(tensors), kind_(kind), path_(path), layout_(layout), count_(tensors.size()) {}

  std::string take() {
    for (std::size_t i = 0; i < count_; ++i) {
      if (tensors_[i].defined()) take(i);
    }
    for (const auto i : repeated_) tensors_[i] = at::Tensor();
    return std::move(note_);
  }

 private:
  void take(std::size_t i) {
    check(i);
    if (const auto first = repeated_of(i)) {
      begin(i, Form::kRepeated).put(static_cast<std::int64_t>(*first));
      repeated_.push_back(i);
    } else if (tensors_[i].is_sparse()) {
      take_sparse(i);
    } else if (layout_ && !tensors_[i].is_contiguous()) {
      take_strided(i);
    }
  }

  void check(std::size_t i) const {
    const auto& tensor = tensors_[i];
    if (is_plain(tensor, /*layout=*/false)) return;
    const char* const why = obstacle(tensor);
    SMP_REQUIRE_AS(UnsupportedError, why == nullptr, "tensor ", i, " of the ", kind_, "s of ",
                   path_, " cannot go to another rank: it ", why == nullptr ? "" : why,
                   ", or place the module with its caller");
  }

  std::optional<std::size_t> repeated_of(std::size_t i) const {
    for (std::size_t k = 0; k < originals_.size(); ++k) {
      if (originals_[k].second == tensors_[i].unsafeGetTensorImpl()) return originals_[k].first;
    }
    for (std::size_t k = 0; k < i; ++k) {
      if (tensors_[k].is_same(tensors_[i])) return k;
    }
    return std::nullopt;
  }

  NumberWriter begin(std::size_t i, Form form) {
    NumberWriter out(note_);
    out.put(static_cast<std::int64_t>(i));
    out.put(static_cast<std::int64_t>(form));
    return out;
  }

  void replace(std::size_t i, at::Tensor by) {
    originals_.emplace_back(i, tensors_[i].unsafeGetTensorImpl());
    kept_.push_back(std::exchange(tensors_[i], std::move(by)));
  }

  void take_strided(std::size_t i) {
    const auto& tensor = tensors_[i];
    if (!tensor.has_storage()) return;
    auto out = begin(i, Form::kStrided);
    out.put(tensor.sizes());
    out.put(compact_strides(tensor.sizes(), tensor.strides()));
    const auto distinct = distinct_dimensions(tensor.sizes(), tensor.strides());
    replace(i, relaid(tensor, distinct.sizes, distinct.strides));
  }

  /// Replaces a sparse tensor: its values go to its own place, its indices to the end of the list.
  void take_sparse(std::size_t i) {
    const at::NoGradGuard no_grad;
    const auto tensor = tensors_[i].detach();
    auto out = begin(i, Form::kSparse);
    out.put(tensor.sizes());
    out.put(tensor.is_coalesced() ? 1 : 0);
    replace(i, tensor._values());
    tensors_.push_back(tensor._indices());
  }

  std::vector<at::Tensor>& tensors_;
  const char* const kind_;
  const std::string_view path_;
  const bool layout_;
  const std::size_t count_;
  std::string note_;
  std::vector<std::size_t> repeated_;
  std::vector<std::pair<std::size_t, at::TensorImpl*>> originals_;
  std::vector<at::Tensor> kept_;  // so that no other tensor gets their address
};

at::Tensor strided(const at::Tensor& arrived, at::IntArrayRef sizes, at::IntArrayRef strides) {
  SMP_ASSERT(sizes.size() == strides.size());
  for (std::size_t d = 0; d < sizes.size(); ++d) SMP_ASSERT(sizes[d] > 0 && strides[d] >= 0);
  const auto distinct = distinct_dimensions(sizes, strides);
  SMP_ASSERT(at::IntArrayRef(distinct.sizes) == arrived.sizes(), "sizes ", arrived.sizes());
  const auto span = span_of(distinct.sizes, distinct.strides);
  if (span == arrived.numel()) {
    arrived.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
    return arrived;
  }
  // Each gap is one element, and there is none in or around a dimension of one element.
  SMP_ASSERT(span > 0 && span / 2 <= arrived.numel() << distinct.sizes.size(), "a span of ", span);
  auto memory = d2d::new_tensor(span, arrived.scalar_type(), arrived.device().type());
  memory.unsafeGetTensorImpl()->set_sizes_and_strides(distinct.sizes, distinct.strides);
  memory.copy_(arrived);
  auto whole = d2d::new_tensor(0, arrived.scalar_type(), arrived.device().type());
  whole.unsafeGetTensorImpl()->set_storage_keep_dtype(memory.storage());
  whole.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return whole;
}

[[gnu::cold]] Note take_odd_forms(std::vector<at::Tensor>& tensors, const char* kind,
                                  std::string_view path, bool layout) {
  return FormTaker(tensors, kind, path, layout).take();
}

}  // namespace

Note take_forms(std::vector<at::Tensor>& tensors, const char* kind, std::string_view path,
                bool layout) {
  if (are_plain(tensors, layout)) return {};
  return take_odd_forms(tensors, kind, path, layout);
}

bool stands_before(const std::vector<at::Tensor>& tensors, std::size_t index) {
  for (std::size_t k = 0; k < index; ++k) {
    if (tensors[k].defined() && tensors[k].is_same(tensors[index])) return true;
  }
  return false;
}

void restore_forms(std::string_view note, std::vector<at::Tensor>& tensors) {
  if (note.empty()) return;
  const c10::InferenceMode normal(false);
  const at::NoGradGuard no_grad;
  struct SparseForm {
    std::size_t index;
    at::DimVector sizes;
    bool coalesced;
  };
  std::vector<SparseForm> sparse;
  std::vector<std::pair<std::size_t, std::size_t>> repeated;
  for (NumberReader in(note); !in.at_end();) {
    const auto i = in.index(tensors.size());
    switch (static_cast<Form>(in.index(kForms))) {
      case Form::kRepeated:
        repeated.emplace_back(i, in.index(i));
        break;
      case Form::kStrided: {
        const auto sizes = in.list();
        const auto strides = in.list();
        SMP_ASSERT(tensors[i].defined());
        tensors[i] = strided(tensors[i], sizes, strides);
        break;
      }
      case Form::kSparse: {
        auto sizes = in.list();
        const bool coalesced = in.index(2) != 0;
        sparse.push_back({i, std::move(sizes), coalesced});
        break;
      }
    }
  }
  SMP_ASSERT(sparse.size() <= tensors.size());
  const auto first_indices = tensors.size() - sparse.size();
  for (std::size_t k = 0; k < sparse.size(); ++k) {
    const auto& [i, sizes, coalesced] = sparse[k];
    const auto& indices = tensors[first_indices + k];
    SMP_ASSERT(i < first_indices && indices.defined() && tensors[i].defined());
    tensors[i] = at::sparse_coo_tensor(indices, tensors[i], sizes);
    tensors[i]._coalesced_(coalesced);
  }
  tensors.resize(first_indices);
  for (const auto& [i, first] : repeated) {
    SMP_ASSERT(i < tensors.size());
    tensors[i] = tensors[first];
  }
}

}  // namespace smp::server
