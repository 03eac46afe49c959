// api/step/microbatches.cpp: rows, slices, and the graph outside of the step.
#include "api/step/microbatches.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>
#include <torch/csrc/autograd/autograd.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/random.h"

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

at::Tensor shape_of(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) return tensor.detach().to(at::kMeta);
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

}  // namespace

Microbatches::Microbatches(std::vector<detail::StepArgument> arguments, const StepOptions& options,
                           int wanted, const std::string& loss)
    : arguments_(std::move(arguments)), options_(options) {
  SMP_REQUIRE(wanted >= 1, "a step of ", wanted, " microbatches; at least one is needed");
  total_rows_ = common_rows();
  choose_rows(total_rows_, wanted);
  choose_weights(loss, total_rows_);
  microbatches_.resize(static_cast<std::size_t>(count_));
}

bool Microbatches::splits(std::size_t argument) const {
  return arguments_[argument].splits && options_.non_split.count(static_cast<int>(argument)) == 0;
}

std::vector<std::string> Microbatches::doubtful() const {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < arguments_.size() && count_ > 1; ++i) {
    const auto* const type = arguments_[i].undivided;
    if (type == nullptr || options_.non_split.count(static_cast<int>(i)) > 0) continue;
    texts.push_back(base::concat(
        "argument ", i, " of a step is of type ", c10::demangle(type->name()),
        ", which cannot be taken apart: every microbatch gets the whole. If it holds a batch, pass "
        "its tensors or give it a codec (smp/codec.h); if not, StepOptions::non_split says so"));
  }
  return texts;
}

int Microbatches::axis_of(std::size_t argument, const at::Tensor& tensor) const {
  const auto found = options_.split_axes.find(static_cast<int>(argument));
  const auto axis = found == options_.split_axes.end() ? 0 : found->second;
  const auto dimensions = static_cast<int>(tensor.dim());
  const int positive = axis < 0 ? axis + dimensions : axis;
  SMP_REQUIRE(positive >= 0 && positive < dimensions, "argument ", argument,
              " of the step: a tensor of shape ", tensor.sizes(), " cannot be split along axis ",
              axis, "; name the argument in StepOptions::non_split or set split_axes");
  return positive;
}

/// Returns the rows of the batch; -1 if nothing is split.
std::int64_t Microbatches::common_rows() const {
  std::int64_t rows = -1;
  std::size_t first = 0;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    if (!splits(i)) continue;
    for (const auto& tensor : arguments_[i].packet.tensors) {
      if (!tensor.defined()) continue;
      const auto own = tensor.size(axis_of(i, tensor));
      if (rows < 0) {
        rows = own;
        first = i;
      }
      SMP_REQUIRE(own == rows, "argument ", i, " of the step has ", own, " rows, argument ", first,
                  " has ", rows,
                  "; give them one batch size, or name the argument that has none "
                  "in StepOptions::non_split");
    }
  }
  SMP_REQUIRE(rows != 0, "the batch of this step has no rows");
  return rows;
}

void Microbatches::choose_rows(std::int64_t rows, int wanted) {
  count_ = rows < 0 ? wanted : static_cast<int>(std::min<std::int64_t>(wanted, rows));
  std::int64_t start = 0;
  for (int i = 0; i < count_; ++i) {
    const auto length = rows < 0 ? 0 : rows / count_ + (i < rows % count_ ? 1 : 0);
    rows_.push_back({start, length});
    start += length;
  }
}

void Microbatches::choose_weights(const std::string& loss, std::int64_t rows) {
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

std::vector<Packet> Microbatches::slices(int microbatch) {
  auto& own = microbatches_[static_cast<std::size_t>(microbatch)];
  std::vector<Packet> packets;
  std::vector<at::Tensor> entering;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const auto& source = arguments_[i].packet;
    packets.push_back({source.bytes, {}});
    for (std::size_t k = 0; k < source.tensors.size(); ++k) {
      const auto& tensor = source.tensors[k];
      packets[i].tensors.push_back(tensor.defined() ? slice(i, tensor, microbatch) : tensor);
      if (!tensor.defined() || !tensor.requires_grad() || !at::GradMode::is_enabled()) continue;
      // Its own storage: an in-place operation would change what the outside graph saved.
      auto& inside = packets[i].tensors.back();
      inside = inside.clone();
      own.entering.push_back({i, k, entering.size()});
      entering.push_back(inside);
    }
  }
  if (!entering.empty()) {
    own.boundary = server::make_boundary(entering, all_require_grad(entering.size()));
    for (const auto& e : own.entering) packets[e.argument].tensors[e.tensor] = entering[e.input];
  }
  return packets;
}

at::Tensor Microbatches::slice(std::size_t argument, const at::Tensor& tensor, int microbatch) {
  const auto index = static_cast<std::size_t>(microbatch);
  auto own = tensor.variable_data();
  if (splits(argument)) {
    return own.narrow(axis_of(argument, tensor), rows_[index].start, rows_[index].length)
        .variable_data();
  }
  if (!tensor.requires_grad()) microbatches_[index].shared.emplace_back(argument, own);
  return own;
}

std::vector<Packet> Microbatches::preview(int microbatch, bool meta) const {
  std::vector<Packet> packets;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const auto& source = arguments_[i].packet;
    packets.push_back({source.bytes, {}});
    for (const auto& tensor : source.tensors) {
      auto own = tensor;
      // First of all: a copy of a process cannot use its device, not even for a view.
      if (own.defined()) own = meta ? shape_of(tensor) : tensor.detach();
      if (own.defined() && splits(i)) {
        const auto& rows = rows_.at(static_cast<std::size_t>(microbatch));
        own = own.narrow(axis_of(i, tensor), rows.start, rows.length);
      }
      if (own.defined() && !meta) own = own.clone();
      packets[i].tensors.push_back(own);
      if (own.defined() && tensor.requires_grad()) packets[i].tensors.back().requires_grad_();
    }
  }
  return packets;
}

std::uint64_t Microbatches::preview_key(int microbatch) const {
  std::uint64_t key = arguments_.size();
  for (const auto& packet : preview(microbatch, /*meta=*/true)) {
    key = base::mix_key(key, packet.bytes);
    for (const auto& tensor : packet.tensors) {
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

/// Returns the gradient of one tensor of the arguments: for a split argument the parts of all
/// microbatches, one after the other; for a whole one their sum in the order of microbatches.
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
      auto part = splits(argument)
                      ? total.narrow(axis_of(argument, whole), rows_[m].start, rows_[m].length)
                      : total;
      part.add_(gradient);
    }
  }
  return total;
}

}  // namespace smp
