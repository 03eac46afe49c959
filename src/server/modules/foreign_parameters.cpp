// server/modules/foreign_parameters.cpp: the guard that refuses everything.
#include "server/modules/foreign_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/variable.h>

#include <set>
#include <utility>

#include "base/check.h"
#include "server/values/guarded_tensor.h"

namespace smp::server {
namespace {

/// True of operators that ask a tensor for nothing but its shape, type and device.
bool asks_for_shape(const std::string& op) {
  static const std::set<std::string> of_shapes{
      "aten::empty_like", "aten::full_like",  "aten::ones_like", "aten::rand_like",
      "aten::randn_like", "aten::zeros_like", "aten::new_empty", "aten::new_full",
      "aten::new_ones",   "aten::new_zeros"};
  return of_shapes.count(op) != 0;
}

class ForeignGuard final : public TensorGuard {
 public:
  ForeignGuard(std::string what, GlobalRank rank, std::string remedy)
      : what_(std::move(what)), rank_(rank), remedy_(std::move(remedy)) {}

  /// LibTorch's Adagrad makes its state where it is constructed, of all parameters that it is
  /// given, by full_like(); optimizers of a program's own do so by zeros_like().
  void before_use(const at::Tensor& tensor, const std::string& op, bool writes) override {
    if (asks_for_shape(op)) {
      shape_ = at::empty({1}, tensor.options()).expand(tensor.sizes());
      return;
    }
    throw UsageError(text(op, writes));
  }
  at::Tensor stand_in() const override { return std::exchange(shape_, {}); }

  /// Returns the message for a use by `who`: "rank 0: parameter far.weight lives on rank 1 and has
  /// no values here (...). ..."
  std::string text(const std::string& who, bool writes) const {
    return base::concat("rank ", rank_, ": ", what_,
                        writes ? ", but is written here (" : " and has no values here (", who,
                        "). ", writes ? kWrite : remedy_);
  }
  const std::string& what() const noexcept { return what_; }

 private:
  static constexpr const char* kWrite =
      "Write it on its owner alone: guard with model.owns(tensor), or do it before the model is "
      "placed";
  std::string what_;  // "parameter far.weight lives on rank 1"
  GlobalRank rank_;   // this one
  std::string remedy_;
  mutable at::Tensor shape_;  // of the tensor, without its memory, for one operator
};

std::string remedy_of(Held held) {
  return held == Held::kParameter
             ? "Call the module that holds it (name the method in SMP_MODULE), place both modules "
               "on one rank, or leave it to its owner: guard with model.owns(tensor)"
             : "Call the module that holds it and let it use the buffer or return it (name the "
               "method in SMP_MODULE), place both modules on one rank, or leave it to its owner: "
               "guard with model.owns(tensor)";
}

std::size_t num_hooks(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta == nullptr || meta->cpp_hooks_list_ == nullptr ? 0 : meta->cpp_hooks_list_->size();
}

}  // namespace

bool is_foreign(const at::Tensor& tensor) noexcept {
  return dynamic_cast<ForeignGuard*>(guard_of(tensor)) != nullptr;
}

void ForeignParameters::shrink(const std::string& path, const at::Tensor& tensor, GlobalRank owner,
                               Held held, const std::string& because) {
  if (!tensor.defined() || is_foreign(tensor)) return;
  const auto* const kind = held == Held::kParameter ? "parameter " : "buffer ";
  SMP_REQUIRE_AS(UnsupportedError, can_be_guarded(tensor), "rank ", rank_, ": ", kind, path,
                 " is sparse, quantised or nested, and lives on rank ", owner,
                 "; only dense tensors can be kept away from other ranks. Place the module that "
                 "holds it on stage 0 together with what uses it, or make it dense");
  freed_bytes_ += tensor.nbytes();
  tensors_.emplace_back().tensor = decltype(Foreign::tensor)(tensor.getIntrusivePtr());
  auto guard = c10::make_intrusive<ForeignGuard>(
      base::concat(kind, path, " lives on rank ", owner, because), rank_, remedy_of(held));
  const auto data_text = guard->text("its memory was asked for", false);
  guard_without_memory(tensor, std::move(guard), data_text);
  tensor.mutable_grad().reset();
}

void ForeignParameters::refuse_gradient(const at::Tensor& tensor) const {
  const auto* guard = dynamic_cast<ForeignGuard*>(guard_of(tensor));
  if (guard == nullptr) return;
  SMP_REQUIRE(false, "rank ", rank_, ": a gradient reached ", guard->what(),
              ": through a graph that was built before the model was placed. Build graphs over "
              "parameters in the body of the step");
}

std::vector<at::Tensor> ForeignParameters::all() const {
  std::vector<at::Tensor> all;
  for (const auto& foreign : tensors_) {
    at::Tensor tensor(foreign.tensor.lock());
    if (is_foreign(tensor)) all.push_back(std::move(tensor));
  }
  return all;
}

void ForeignParameters::note_hooks() {
  std::erase_if(tensors_, [](const Foreign& foreign) { return foreign.tensor.expired(); });
  for (auto& foreign : tensors_) {
    const at::Tensor tensor(foreign.tensor.lock());
    if (tensor.defined()) foreign.num_hooks = num_hooks(tensor);
  }
}

void ForeignParameters::refuse_new_hooks() const {
  for (const auto& foreign : tensors_) {
    const at::Tensor tensor(foreign.tensor.lock());
    if (!tensor.defined() || num_hooks(tensor) <= foreign.num_hooks) continue;
    const auto* guard = dynamic_cast<ForeignGuard*>(guard_of(tensor));
    SMP_REQUIRE(guard == nullptr, "rank ", rank_,
                ": the body of a step registered a hook where it never runs: ", guard->what(),
                ". Register hooks on parameters outside of the step, on "
                "every rank, or in forward of the module that holds them");
  }
}

}  // namespace smp::server
