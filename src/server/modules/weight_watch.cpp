// server/modules/weight_watch.cpp: version counters, and a few elements.
#include "server/modules/weight_watch.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/random.h"
#include "server/values/tensor_memory.h"

namespace smp::server {
namespace {

/// Of a larger tensor only some elements are read.
constexpr std::size_t kReadWhole = 1024;

/// Returns a hash of a tensor's version, and of its elements if these can be read without an
/// operator: of all, or of the first, the middle and the last.
std::uint64_t look_at(const at::Tensor& tensor) {
  std::uint64_t look = version_of(tensor);
  if (!tensor.is_cpu() || tensor.layout() != at::kStrided || tensor.numel() == 0) return look;
  if (!tensor.is_contiguous() || !tensor.has_storage()) return look;
  const auto* elements = static_cast<const char*>(tensor.const_data_ptr());
  const auto size = tensor.itemsize();
  const auto count = static_cast<std::size_t>(tensor.numel());
  if (tensor.nbytes() <= kReadWhole) {
    return base::mix_key(look, XXH3_64bits(elements, tensor.nbytes()));
  }
  for (const std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, elements + at * size, std::min(size, sizeof bits));
    look = base::mix_key(look, bits);
  }
  return look;
}

}  // namespace

void WeightWatch::add(const std::string& path, const at::Tensor& parameter) {
  weights_.push_back({path, parameter});
}

void WeightWatch::begin_step() {
  for (auto& weight : weights_) weight.look = look_at(weight.tensor);
}

bool WeightWatch::has_written(const at::Tensor& tensor) const {
  const auto* const memory = memory_of(tensor);
  return memory != nullptr &&
         std::any_of(weights_.begin(), weights_.end(), [memory](const Weight& weight) {
           return memory_of(weight.tensor) == memory && look_at(weight.tensor) != weight.look;
         });
}

std::string WeightWatch::written() const {
  const auto found = std::find_if(weights_.begin(), weights_.end(), [](const Weight& weight) {
    return look_at(weight.tensor) != weight.look;
  });
  return found == weights_.end() ? std::string() : found->path;
}

void WeightWatch::look_again(const at::Tensor& parameter) {
  for (auto& weight : weights_) {
    if (weight.tensor.is_same(parameter)) weight.look = look_at(weight.tensor);
  }
}

void WeightWatch::refuse_written(GlobalRank rank, int microbatch) const {
  const auto path = written();
  SMP_REQUIRE(path.empty(), "rank ", rank, ": parameter '", path, "' was written while microbatch ",
              microbatch,
              " of a step was in its body. The step() of an optimizer belongs after the step, on "
              "every rank (smp::DistributedOptimizer). If a module writes it in forward, "
              "specialise smp::shared_state_v for its class (smp/state.h)");
}

}  // namespace smp::server
