// server/recompute/region.cpp: places are taken in the order in which nodes save, which is the same
// in both runs.
#include "server/recompute/region.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "module/later_tensor.h"
#include "module/node_pointer.h"
#include "server/running/execution_scope.h"
#include "server/running/inside_node.h"
#include "server/values/clone_on_write.h"
#include "server/values/tensor_memory.h"

namespace smp::server {

namespace {

/// Thrown when the second run has saved all that is wanted. No std::exception, so that code which
/// catches those does not stop it.
struct Enough {};

bool is_first_run(const Region& region) { return !region.replays(); }

/// A tensor without history that an operator treats as one with: nothing is ever sent there.
void give_history(at::Tensor& tensor) {
  const auto node = make_node<torch::autograd::Error>(
      std::string("backward through values that were computed a second time"));
  node->add_input_metadata(tensor);
  torch::autograd::impl::set_gradient_edge(tensor, {node, 0});
}

}  // namespace

/// What a node of the first run holds in place of its tensor.
class SavedPlace final : public torch::autograd::SavedVariableHooks {
 public:
  explicit SavedPlace(std::shared_ptr<Region> region) : region_(std::move(region)) {}
  ~SavedPlace() override {
    if (taken_) region_->forget(index_);
  }
  void call_pack_hook(const at::Tensor& tensor) override {
    index_ = region_->add(tensor);
    taken_ = true;
  }
  at::Tensor call_unpack_hook() override { return region_->value_of(index_); }

 private:
  const std::shared_ptr<Region> region_;
  std::size_t index_ = 0;
  bool taken_ = false;
};

/// What a node of the second run holds: nothing, as nobody will ask it.
class RefilledPlace final : public torch::autograd::SavedVariableHooks {
 public:
  explicit RefilledPlace(Region& region) : region_(region) {}
  void call_pack_hook(const at::Tensor& tensor) override { region_.refill(tensor); }
  at::Tensor call_unpack_hook() override {
    SMP_ASSERT(false, "backward through the second run of a recomputed call");
  }

 private:
  Region& region_;
};

namespace {

/// Memory that tensors may share; nullptr where a copy is of other elements than the tensor's.
const void* shareable_memory(const at::Tensor& tensor) {
  const bool plain = tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() &&
                     !tensor.is_conj() && !tensor.is_neg();
  return plain ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

/// A tensor as `like`, without history, in the memory of `base`, which holds all of it.
at::Tensor in_memory_of(const at::Tensor& base, const at::Tensor& like) {
  return at::empty({0}, like.options().requires_grad(false))
      .set_(base.storage(), like.storage_offset(), like.sizes(), like.strides());
}

/// Returns a tensor without history whose values come from the same source as those of `tensor`,
/// which has none yet.
at::Tensor later_again(const at::Tensor& tensor, std::shared_ptr<module::LaterValues> source) {
  const auto options = tensor.options().device(at::kMeta).requires_grad(false);
  return module::later_tensor(at::empty_strided(tensor.sizes(), tensor.strides(), options),
                              std::move(source));
}

/// Returns a copy, or one to be made when something asks for it.
at::Tensor given_again(const at::Tensor& tensor) {
  auto source = module::source_of(tensor);
  return source == nullptr ? clone_on_write(tensor) : later_again(tensor, std::move(source));
}

}  // namespace

Region::Given::Given(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<const void*> memories;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = tensors[i];
    if (!tensor.defined()) {
      all_.push_back({{}, i, false});
      memories.push_back(nullptr);
      continue;
    }
    const auto* const memory = shareable_memory(tensor);
    const auto known = std::find(memories.begin(), memories.end(), memory);
    const bool alone = memory == nullptr || known == memories.end();
    const auto base = alone ? i : static_cast<std::size_t>(known - memories.begin());
    auto value = alone ? given_again(tensor) : in_memory_of(all_[base].value, tensor);
    // A copy that is no copy on write has memory for its own elements only.
    const bool whole = alone && shareable_memory(value) != nullptr &&
                       value.storage().nbytes() == tensor.storage().nbytes();
    memories.push_back(whole ? memory : nullptr);
    all_.push_back({std::move(value), base, tensor.requires_grad()});
  }
}

void Region::Given::leave(const std::shared_ptr<Offload>& offload, const Offload::Place& place) {
  const at::NoGradGuard no_grad;
  constexpr auto kStays = static_cast<std::size_t>(-1);
  std::vector<at::Tensor> bytes;
  std::vector<std::size_t> memory_of(all_.size(), kStays);
  for (std::size_t i = 0; i < all_.size(); ++i) {
    const auto& value = all_[i].value;
    if (shareable_memory(value) == nullptr || value.device() != offload->device()) continue;
    const auto size = static_cast<std::int64_t>(value.storage().nbytes());
    if (all_[i].base == i && size > 0 && size >= offload->options().least_bytes) {
      memory_of[i] = bytes.size();
      bytes.push_back(at::empty({0}, value.options().requires_grad(false).dtype(at::kByte))
                          .set_(value.storage(), 0, {size}, {1}));
    }
    memory_of[i] = memory_of[all_[i].base];
  }
  if (bytes.empty()) return;
  away_ = Offload::Parcel::send(offload, place, bytes);
  if (away_ == nullptr) return;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (memory_of[i] == kStays) continue;
    auto& value = all_[i].value;
    outlines_.push_back({i, memory_of[i], value.options().requires_grad(false), value.sizes().vec(),
                         value.strides().vec(), value.storage_offset()});
    value.reset();
  }
}

void Region::Given::come_back() {
  if (away_ == nullptr) return;
  const at::NoGradGuard no_grad;
  const auto memory = away_->take();
  for (const auto& outline : outlines_) {
    all_[outline.index].value =
        at::empty({0}, outline.options)
            .set_(memory[outline.memory].storage(), outline.offset, outline.sizes, outline.strides);
  }
  outlines_.clear();
  away_.reset();
}

std::vector<at::Tensor> Region::Given::again() const {
  std::vector<at::Tensor> copies;
  {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      const auto& [value, base, needs] = all_[i];
      copies.push_back(!value.defined() ? at::Tensor()
                       : base == i      ? given_again(value)
                                        : in_memory_of(copies[base], value));
    }
  }
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (all_[i].requires_grad) give_history(copies[i]);
  }
  return copies;
}

Region::Region(std::string name, const std::vector<at::Tensor>& inputs, WeightWatch watched,
               std::vector<const void*> weights)
    : name_(std::move(name)),
      inputs_(inputs),
      watched_(std::move(watched)),
      stays_(std::move(weights)) {
  watched_.begin_step();
  for (const auto& input : inputs) {
    if (input.defined()) stays_.push_back(memory_of(input));
  }
}

Region* Region::current() noexcept { return static_cast<Region*>(KeptResults::current()); }

void Region::run(bool again, c10::function_ref<void()> code) {
  const SavedTensorScope saved(this);
  const Scope results(this);
  std::optional<KeptProducts::Scope> products;
  if (products_) products.emplace(&*products_, again);
  code();
}

void Region::record(const std::function<void()>& first) {
  run(/*again=*/false, first);
  recorded_ = true;
  stays_.clear();
  if (wanted_ == 0) return;  // it will not run again
  const auto written = watched_.written();
  SMP_REQUIRE_AS(UnsupportedError, written.empty(), name_,
                 ": activation checkpointing runs a call twice, but this one has written to "
                 "parameter or buffer '",
                 written,
                 "', which the second run would write again; do not checkpoint this module, or "
                 "have its caller write the tensor");
  offload();
  queue_early();
}

void Region::queue_early() {
  const auto* const scope = ExecutionScope::current();
  if (scope == nullptr) return;
  auto identity = scope->identity();
  identity.phase = schedule::Phase::kBackward;
  auto queue = RecomputeAhead::of(scope->services().rank.value());
  early_.emplace(Early{queue, {}, scope->services(), identity, scope->base_key()});
  early_->place =
      queue->add(shared_from_this(), identity.microbatch, /*of_body=*/identity.module == kBody);
}

/// As its backward would, which runs later: nothing suspends, and what it throws is told there.
void Region::compute_ahead() noexcept {
  try {
    const InsideNode nothing_suspends;
    const ExecutionScope scope(early_->services, early_->identity, {}, early_->base_key);
    run_again();
    early_->computed = true;
  } catch (const c10::OutOfMemoryError&) {  // later there may be room
    let_go();
  } catch (const std::bad_alloc&) {
    let_go();
  } catch (...) {
    let_go();
    early_->thrown = std::current_exception();
  }
}

void Region::let_go() noexcept {
  for (auto& place : places_) place.value.reset();
  early_->computed = false;
  early_->thrown = nullptr;
}

std::int64_t Region::bytes_ahead() const noexcept {
  std::int64_t bytes = 0;
  for (const auto& place : places_) {
    if (!place.wanted || place.stays) continue;
    bytes += c10::multiply_integers(place.sizes) *
             static_cast<std::int64_t>(c10::elementSize(place.dtype));
  }
  return bytes;
}

/// Whether the call was computed ahead must not matter to what the backward gets.
void Region::begin_backward() {
  auto& early = *early_;
  if (ExecutionScope::current() == nullptr) {  // run_again() tells
    if (early.computed && !early.begun) let_go();
    return;
  }
  if (!std::exchange(early.begun, true)) {
    early.queue->began(early.place);
    if (early.computed && !watched_.written().empty()) let_go();  // run_again() tells
  }
  if (early.thrown != nullptr) std::rethrow_exception(early.thrown);
}

void Region::offload() {
  const auto offload = Offload::current();
  if (offload == nullptr) return;
  const auto* const scope = ExecutionScope::current();
  const int rank = scope == nullptr ? 0 : scope->services().rank.value();
  inputs_.leave(offload,
                offload->next_place(rank, scope == nullptr ? 0 : scope->identity().microbatch));
}

std::unique_ptr<torch::autograd::SavedVariableHooks> Region::next() {
  if (is_first_run(*this)) return std::make_unique<SavedPlace>(shared_from_this());
  return std::make_unique<RefilledPlace>(*this);
}

std::size_t Region::add(const at::Tensor& tensor) {
  places_.push_back({tensor.sizes().vec(), tensor.scalar_type(), {}});
  const auto* const memory = memory_of(tensor);
  places_.back().stays = std::find(stays_.begin(), stays_.end(), memory) != stays_.end();
  ++wanted_;
  return places_.size() - 1;
}

void Region::refuse_other(std::size_t index, const std::string& what) const {
  throw UsageError(base::concat(
      name_,
      ": activation checkpointing runs a call twice, and the second time it did something "
      "else: of the ",
      places_.size(), " tensors that its operators save, number ", index, ' ', what,
      "; a call must depend on its arguments, its parameters and its random numbers alone"));
}

void Region::refill(const at::Tensor& tensor) {
  const auto index = next_place_++;
  if (index > last_wanted_) throw Enough();  // code has caught the first one
  if (index >= places_.size()) refuse_other(index, "was not there the first time");
  auto& place = places_[index];
  if (!tensor.sizes().equals(place.sizes) || tensor.scalar_type() != place.dtype) {
    refuse_other(
        index, base::concat("is ", tensor.scalar_type(), " of shape ", tensor.sizes(), ", and was ",
                            place.dtype, " of shape ", c10::IntArrayRef(place.sizes)));
  }
  if (place.wanted) {
    place.value = tensor.tensor_data();  // notices writes
    place.version = place.value._version();
  }
  if (index == last_wanted_) throw Enough();
}

at::Tensor Region::value_of(std::size_t index) {
  SMP_REQUIRE_AS(UnsupportedError, recorded_, name_,
                 ": a backward pass inside a call with activation checkpointing; do not checkpoint "
                 "this module, or run that pass outside of it");
  if (early_) begin_backward();
  if (!places_[index].value.defined()) run_again();
  auto& place = places_[index];
  SMP_REQUIRE(place.value.defined() && place.value._version() == place.version, name_,
              ": one of the tensors that its backward needs, of shape ",
              c10::IntArrayRef(place.sizes), ", was modified by an inplace operation");
  return place.value;
}

void Region::forget(std::size_t index) noexcept {
  places_[index].value.reset();
  places_[index].wanted = false;
  if (--wanted_ > 0 || !recorded_) return;
  if (early_) early_->queue->ended(early_->place);
  inputs_.clear();
  results_.clear();
  if (products_) products_->clear();
}

void Region::require_unchanged() const {
  const auto written = watched_.written();
  SMP_REQUIRE(written.empty(), name_, ": parameter or buffer '", written,
              "' was changed between the forward and the backward of a call that is computed "
              "again; change it after the backward");
}

void Region::run_again() {
  SMP_ASSERT(!replays_, name_, " needs itself");
  require_unchanged();
  last_wanted_ = 0;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].wanted) last_wanted_ = i;
  }
  next_place_ = next_result_ = 0;
  inputs_.come_back();
  auto inputs = inputs_.again();
  replays_ = true;
  struct Over {
    bool& replays;
    ~Over() { replays = false; }
  } const over{replays_};
  try {
    run(/*again=*/true, [&] { rerun_(std::move(inputs)); });
  } catch (const Enough&) {
    return;
  }
  if (next_place_ > last_wanted_) return;  // code has caught what ended it
  refuse_other(next_place_, "is missing");
}

void Region::keep(const Packet& result) {
  results_.push_back({result.bytes, Given(result.tensors), nullptr});
}

void Region::keep_thrown(std::exception_ptr thrown) {
  results_.push_back({{}, Given({}), std::move(thrown)});
}

Packet Region::take() {
  SMP_REQUIRE(next_result_ < results_.size(), name_,
              ": activation checkpointing runs a call twice, and the second time it asked other "
              "ranks more often than the first time (",
              results_.size(), " times); a call must depend on its arguments alone");
  const auto& result = results_[next_result_++];
  if (result.thrown != nullptr) std::rethrow_exception(result.thrown);
  return {result.bytes, result.tensors.again()};
}

}  // namespace smp::server
