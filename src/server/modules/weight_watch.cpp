// server/modules/weight_watch.cpp: version counters, and a few elements.
#include "server/modules/weight_watch.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/random.h"
#include "server/values/tensor_memory.h"

namespace smp::server {
namespace {

/// Returns a hash of a tensor's version, and of its first, middle and last elements if these can be
/// read without an operator.
std::uint64_t look_at(const at::Tensor& tensor) {
  std::uint64_t look = version_of(tensor);
  if (!tensor.is_cpu() || tensor.layout() != at::kStrided || tensor.numel() == 0) return look;
  if (!tensor.is_contiguous() || !tensor.has_storage()) return look;
  const auto* elements = static_cast<const char*>(tensor.const_data_ptr());
  const auto size = tensor.itemsize();
  const auto count = static_cast<std::size_t>(tensor.numel());
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

void WeightWatch::refuse_written(GlobalRank rank, int microbatch) const {
  for (const auto& weight : weights_) {
    SMP_REQUIRE(look_at(weight.tensor) == weight.look, "rank ", rank, ": parameter '", weight.path,
                "' was written while microbatch ", microbatch,
                " of a step was in its body. The step() of an optimizer belongs after the step, on "
                "every rank (smp::DistributedOptimizer). If a module writes it in forward, "
                "specialise smp::shared_state_v for its class (smp/state.h)");
  }
}

}  // namespace smp::server
