// api/step/microbatches.cpp: rows, slices, and the graph outside of the step.
#include "api/step/microbatches.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "server/values/tangent.h"
#include "server/values/tensor_layout.h"

namespace smp {
namespace {

server::TensorFlags all_require_grad(std::size_t count) {
  server::TensorFlags flags;
  for (std::size_t i = 0; i < count; ++i) flags.push_back(true);
  return flags;
}

/// Returns a hash of the tensor's values; 0 if it has no plain memory.
std::uint64_t hash_of_values(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_meta()) return 0;
  const auto row = tensor.detach().cpu().contiguous();
  return XXH3_64bits(row.const_data_ptr(), row.nbytes());
}

/// True if several microbatches see the same elements of the tensor.
bool is_common(const at::Tensor& tensor, const TensorCut& own) {
  if (own.cut != detail::Cut::kAxis) return own.cut == detail::Cut::kWhole;
  return tensor.layout() == at::kStrided &&
         server::has_shared_elements_along(static_cast<std::size_t>(own.axis), tensor.sizes(),
                                           tensor.strides());
}

/// Returns a tensor like `tensor`, of the same memory if possible, that counts writes, which those
/// of inference mode do not. It has counted none.
at::Tensor counting_writes(const at::Tensor& tensor) {
  if (!tensor.is_inference()) return tensor;
  const c10::InferenceMode normal(false);
  const at::NoGradGuard no_grad;
  const bool plain = tensor.layout() == at::kStrided && !tensor.is_quantized() &&
                     !tensor.is_nested() && !tensor.is_conj() && !tensor.is_neg();
  if (!plain) return tensor.clone().variable_data();
  return at::empty({0}, tensor.options())
      .set_(tensor.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides())
      .variable_data();
}

at::Tensor shape_of(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) return tensor.detach().to(at::kMeta);
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

}  // namespace

Microbatches::Microbatches(std::vector<detail::StepArgument> arguments, const StepOptions& options,
                           int wanted, const std::string& loss, detail::SeenCuts& seen)
    : arguments_(std::move(arguments)),
      options_(options),
      division_(arguments_, options_, wanted > 1, seen) {
  SMP_REQUIRE(wanted >= 1, "a step of ", wanted, " microbatches; at least one is needed");
  refuse_tangents();
  choose_rows(wanted);
  choose_weights(loss);
  own_.emplace(arguments_, division_, count_);
  microbatches_.resize(static_cast<std::size_t>(count_));
}

/// Microbatches get tensors of their own, which would have none.
void Microbatches::refuse_tangents() const {
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    for (const auto& tensor : arguments_[i].packet.tensors) {
      SMP_REQUIRE_AS(UnsupportedError, !server::has_tangent(tensor), "argument ", i,
                     " of the step has a tangent (forward-mode differentiation), which would be "
                     "lost; make it in the body");
    }
  }
}

void Microbatches::choose_rows(int wanted) {
  const auto rows = division_.rows();
  count_ = rows < 0 ? wanted : static_cast<int>(std::min<std::int64_t>(wanted, rows));
  for (int i = 0; i < count_; ++i) {
    rows_.push_back(rows < 0 ? MicrobatchRows{} : microbatch_rows(rows, i, count_));
  }
}

void Microbatches::choose_weights(const std::string& loss) {
  const auto rows = division_.rows();
  if (loss == "weights") {
    weights_ = options_.weights;
    SMP_REQUIRE(static_cast<int>(weights_.size()) == count_, "loss = \"weights\" with ",
                weights_.size(), " weights for ", count_, " microbatches; give one each");
    return;
  }
  SMP_REQUIRE(loss == "mean" || loss == "sum", "loss = \"", loss,
              "\"; use \"mean\", \"sum\" or \"weights\"");
  for (const auto& row : rows_) {
    const double share =
        rows < 0 ? 1.0 / count_ : static_cast<double>(row.length) / static_cast<double>(rows);
    weights_.push_back(loss == "sum" ? 1.0 : share);
  }
}

/// True if the microbatch gets the tensor, or a part of it.
bool Microbatches::has(int microbatch, std::size_t argument, std::size_t tensor) const {
  const auto& own = division_.cut(argument, tensor);
  return own.cut != detail::Cut::kEntries || rows_of(microbatch).has(own.row);
}

/// Returns what a microbatch gets of `whole`, which is as large as that tensor of the arguments.
at::Tensor Microbatches::part_of(const at::Tensor& whole, std::size_t argument, std::size_t tensor,
                                 int microbatch) const {
  const auto& own = division_.cut(argument, tensor);
  if (own.cut != detail::Cut::kAxis) return whole;
  const auto rows = rows_of(microbatch);
  return whole.narrow(own.axis, rows.start, rows.length);
}

template <class Given, class Own>
void Microbatches::for_tensors(std::size_t argument, int microbatch, Given&& given,
                               Own&& own) const {
  std::size_t next = 0;
  const auto pass = [&](std::size_t end) {
    for (; next < end; ++next) {
      if (has(microbatch, argument, next)) given(next);
    }
  };
  const auto& places = division_.own(argument);
  for (std::size_t p = 0; p < places.size(); ++p) {
    pass(places[p].place->begin.tensors);
    for (const auto& tensor : own_->of(argument, microbatch)[p].tensors) own(tensor);
    next = places[p].place->end.tensors;
  }
  pass(arguments_[argument].packet.tensors.size());
}

/// The slices of one microbatch while they are made.
class Microbatches::Slicing {
 public:
  Slicing(Microbatches& all, int microbatch)
      : all_(all),
        microbatch_(microbatch),
        own_(all.microbatches_[static_cast<std::size_t>(microbatch)]) {}

  void add(std::size_t argument) {
    packets_.push_back({all_.division_.bytes(argument, all_.rows_of(microbatch_),
                                             all_.own_->bytes(argument, microbatch_)),
                        {}});
    auto& tensors = packets_.back().tensors;
    all_.for_tensors(
        argument, microbatch_,
        [&](std::size_t k) {
          tensors.push_back(all_.slice(argument, k, microbatch_));
          if (!has_history(all_.arguments_[argument].packet.tensors[k])) return;
          own_.entering.push_back({argument, k, enter(tensors.back())});
        },
        [&](const at::Tensor& outside) {
          tensors.push_back(all_.own_slice(argument, outside, microbatch_));
          if (has_history(outside)) own_.entering_own.push_back({outside, enter(tensors.back())});
        });
  }

  std::vector<Packet> finish() {
    if (entering_.empty()) return std::move(packets_);
    own_.boundary = server::make_boundary(entering_, all_require_grad(entering_.size()));
    for (std::size_t e = 0; e < entering_.size(); ++e) {
      const auto [packet, tensor] = places_[e];
      packets_[packet].tensors[tensor] = entering_[e];
    }
    return std::move(packets_);
  }

 private:
  static bool has_history(const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad() && at::GradMode::is_enabled();
  }

  /// Makes the latest tensor an input of the boundary; returns its number there. It gets its own
  /// storage: an in-place operation would change what the outside graph saved.
  std::size_t enter(at::Tensor& inside) {
    inside = inside.clone();
    places_.emplace_back(packets_.size() - 1, packets_.back().tensors.size() - 1);
    entering_.push_back(inside);
    return entering_.size() - 1;
  }

  Microbatches& all_;
  const int microbatch_;
  Microbatch& own_;
  std::vector<Packet> packets_;
  std::vector<at::Tensor> entering_;
  std::vector<std::pair<std::size_t, std::size_t>> places_;  // of entering tensors, in packets
};

std::vector<Packet> Microbatches::slices(int microbatch) {
  Slicing slicing(*this, microbatch);
  for (std::size_t i = 0; i < arguments_.size(); ++i) slicing.add(i);
  return slicing.finish();
}

at::Tensor Microbatches::slice(std::size_t argument, std::size_t tensor, int microbatch) {
  const auto& whole = arguments_[argument].packet.tensors[tensor];
  if (!whole.defined()) return whole;
  auto own = part_of(whole.variable_data(), argument, tensor, microbatch).variable_data();
  if (!whole.requires_grad() && is_common(whole, division_.cut(argument, tensor))) {
    own = counting_writes(own);
    microbatches_[static_cast<std::size_t>(microbatch)].shared.emplace_back(argument, own);
  }
  return own;
}

at::Tensor Microbatches::own_slice(std::size_t argument, const at::Tensor& outside,
                                   int microbatch) {
  if (!outside.defined()) return outside;
  auto own = outside.variable_data();
  if (!outside.requires_grad() && own_->is_common(outside)) {
    own = counting_writes(own);
    microbatches_[static_cast<std::size_t>(microbatch)].shared.emplace_back(argument, own);
  }
  return own;
}

std::vector<Packet> Microbatches::preview(int microbatch, bool meta) const {
  std::vector<Packet> packets;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    packets.push_back({division_.bytes(i, rows_of(microbatch), own_->bytes(i, microbatch)), {}});
    const auto add = [&](const at::Tensor& tensor, const auto& part) {
      auto& own = packets[i].tensors.emplace_back(tensor);
      if (!own.defined()) return;
      // First of all: a copy of a process cannot use its device, not even for a view.
      own = part(meta ? shape_of(tensor) : tensor.detach());
      if (!meta) own = own.clone();
      if (tensor.requires_grad()) own.requires_grad_();
    };
    for_tensors(
        i, microbatch,
        [&](std::size_t k) {
          add(arguments_[i].packet.tensors[k],
              [&](const at::Tensor& whole) { return part_of(whole, i, k, microbatch); });
        },
        [&](const at::Tensor& slice) {
          add(slice, [](const at::Tensor& whole) { return whole; });
        });
  }
  return packets;
}

std::uint64_t Microbatches::preview_key(int microbatch) const {
  std::uint64_t key = arguments_.size();
  const auto packets = preview(microbatch, /*meta=*/true);
  for (std::size_t i = 0; i < packets.size(); ++i) {
    key = base::mix_key(key, division_.bytes(i, {}));
    for (const auto& tensor : packets[i].tensors) {
      if (!tensor.defined()) continue;
      key = base::mix_key(key, base::concat(tensor.scalar_type(), tensor.sizes()));
    }
  }
  return key;
}

std::string Microbatches::digest() const {
  const at::NoGradGuard no_grad;
  std::string shapes;
  std::uint64_t values = arguments_.size();
  for (const auto& argument : arguments_) {
    values = base::mix_key(values, argument.packet.bytes);
    for (const auto& tensor : argument.packet.tensors) {
      if (!tensor.defined()) continue;
      shapes += base::concat(shapes.empty() ? "" : ", ", tensor.scalar_type(), ' ', tensor.sizes());
      values = base::mix_key(values, hash_of_values(tensor));
    }
  }
  return base::concat(shapes, " #", values);
}

void Microbatches::check_unchanged(int microbatch) const {
  for (const auto& [argument, tensor] :
       microbatches_[static_cast<std::size_t>(microbatch)].shared) {
    SMP_REQUIRE(tensor._version() == 0, "microbatch ", microbatch, " changed argument ", argument,
                " of the step in place, but all microbatches share it; clone it in the body");
  }
}

/// Returns the gradient of an input of a microbatch's boundary; undefined if none came.
at::Tensor Microbatches::captured(const Microbatch& own, std::size_t input) {
  const auto& all = own.boundary->captured;
  return input < all.size() ? all[input] : at::Tensor();
}

void Microbatches::run_outside_graph() {
  std::vector<at::Tensor> roots;
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const auto& tensors = arguments_[i].packet.tensors;
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      if (!tensors[k].defined() || !tensors[k].requires_grad()) continue;
      auto gradient = gradient_of(i, k);
      if (!gradient.defined()) continue;
      roots.push_back(tensors[k]);
      gradients.push_back(std::move(gradient));
    }
  }
  for (const auto& own : microbatches_) {
    for (const auto& entering : own.entering_own) {
      const auto gradient = captured(own, entering.input);
      if (!gradient.defined()) continue;
      roots.push_back(entering.outside);
      gradients.push_back(gradient);
    }
    if (own.boundary) own.boundary->close();
  }
  if (!roots.empty()) torch::autograd::backward(roots, gradients);
}

/// Returns the gradient of one tensor of the arguments: of one that is split the parts of all
/// microbatches, one after the other; of a whole one their sum in the order of microbatches.
at::Tensor Microbatches::gradient_of(std::size_t argument, std::size_t tensor) const {
  at::NoGradGuard no_grad;
  at::Tensor total;
  for (std::size_t m = 0; m < microbatches_.size(); ++m) {
    const auto& own = microbatches_[m];
    for (const auto& entering : own.entering) {
      if (entering.argument != argument || entering.tensor != tensor) continue;
      const auto gradient = captured(own, entering.input);
      if (!gradient.defined()) continue;
      const auto& whole = arguments_[argument].packet.tensors[tensor];
      if (!total.defined()) total = at::zeros_like(whole);
      part_of(total, argument, tensor, static_cast<int>(m)).add_(gradient);
    }
  }
  return total;
}

}  // namespace smp
