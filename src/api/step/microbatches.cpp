// api/step/microbatches.cpp: rows, slices, and the graph outside of the step.
#include "api/step/microbatches.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/random.h"
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
  choose_rows(wanted);
  choose_weights(loss);
  microbatches_.resize(static_cast<std::size_t>(count_));
}

void Microbatches::choose_rows(int wanted) {
  const auto rows = division_.rows();
  count_ = rows < 0 ? wanted : static_cast<int>(std::min<std::int64_t>(wanted, rows));
  std::int64_t start = 0;
  for (int i = 0; i < count_; ++i) {
    const auto length = rows < 0 ? 0 : rows / count_ + (i < rows % count_ ? 1 : 0);
    rows_.push_back({start, length});
    start += length;
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

std::vector<Packet> Microbatches::slices(int microbatch) {
  auto& own = microbatches_[static_cast<std::size_t>(microbatch)];
  std::vector<Packet> packets;
  std::vector<at::Tensor> entering;
  std::vector<std::pair<std::size_t, std::size_t>> places;  // of entering, in packets
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    packets.push_back({division_.bytes(i, rows_of(microbatch)), {}});
    auto& tensors = packets.back().tensors;
    for (std::size_t k = 0; k < arguments_[i].packet.tensors.size(); ++k) {
      if (!has(microbatch, i, k)) continue;
      auto& inside = tensors.emplace_back(slice(i, k, microbatch));
      const auto& whole = arguments_[i].packet.tensors[k];
      if (!whole.defined() || !whole.requires_grad() || !at::GradMode::is_enabled()) continue;
      // Its own storage: an in-place operation would change what the outside graph saved.
      inside = inside.clone();
      own.entering.push_back({i, k, entering.size()});
      places.emplace_back(i, tensors.size() - 1);
      entering.push_back(inside);
    }
  }
  if (!entering.empty()) {
    own.boundary = server::make_boundary(entering, all_require_grad(entering.size()));
    for (std::size_t e = 0; e < entering.size(); ++e) {
      packets[places[e].first].tensors[places[e].second] = entering[e];
    }
  }
  return packets;
}

at::Tensor Microbatches::slice(std::size_t argument, std::size_t tensor, int microbatch) {
  const auto& whole = arguments_[argument].packet.tensors[tensor];
  if (!whole.defined()) return whole;
  auto own = part_of(whole.variable_data(), argument, tensor, microbatch).variable_data();
  if (!whole.requires_grad() && is_common(whole, division_.cut(argument, tensor))) {
    microbatches_[static_cast<std::size_t>(microbatch)].shared.emplace_back(argument, own);
  }
  return own;
}

std::vector<Packet> Microbatches::preview(int microbatch, bool meta) const {
  std::vector<Packet> packets;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    packets.push_back({division_.bytes(i, rows_of(microbatch)), {}});
    for (std::size_t k = 0; k < arguments_[i].packet.tensors.size(); ++k) {
      if (!has(microbatch, i, k)) continue;
      const auto& tensor = arguments_[i].packet.tensors[k];
      auto& own = packets[i].tensors.emplace_back(tensor);
      if (!own.defined()) continue;
      // First of all: a copy of a process cannot use its device, not even for a view.
      own = part_of(meta ? shape_of(tensor) : tensor.detach(), i, k, microbatch);
      if (!meta) own = own.clone();
      if (tensor.requires_grad()) own.requires_grad_();
    }
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
      if (entering.input >= own.boundary->captured.size()) continue;
      const auto& gradient = own.boundary->captured[entering.input];
      if (!gradient.defined()) continue;
      const auto& whole = arguments_[argument].packet.tensors[tensor];
      if (!total.defined()) total = at::zeros_like(whole);
      part_of(total, argument, tensor, static_cast<int>(m)).add_(gradient);
    }
  }
  return total;
}

}  // namespace smp
