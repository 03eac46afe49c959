// server/promises/later_tensor.cpp: a guard that asks a source.
#include "server/promises/later_tensor.h"

#include <memory>
#include <string>
#include <utility>

#include "module/later_tensor.h"
#include "server/values/guarded_tensor.h"

namespace smp::server {
namespace {

using module::LaterValues;

class LaterGuard final : public TensorGuard {
 public:
  explicit LaterGuard(std::shared_ptr<LaterValues> source) : source_(std::move(source)) {}
  void before_use(const at::Tensor& tensor, const std::string&, bool) override {
    bring_values(tensor);
  }
  const std::shared_ptr<LaterValues>& source() const noexcept { return source_; }

 private:
  const std::shared_ptr<LaterValues> source_;
};

std::shared_ptr<LaterValues> later_source_of(const at::Tensor& tensor) noexcept {
  const auto* const guard = dynamic_cast<const LaterGuard*>(guard_of(tensor));
  return guard == nullptr ? nullptr : guard->source();
}

at::Tensor make_later(const at::Tensor& like, std::shared_ptr<LaterValues> source) {
  guard_without_memory(like, c10::make_intrusive<LaterGuard>(std::move(source)),
                       "the memory of a tensor was asked for whose values come when an operator "
                       "uses it; call smp::wait(tensor) first (smp/wait.h)");
  return like;
}

[[maybe_unused]] const bool later_tensors_are_known =
    module::make_later_tensors_by({&make_later, &later_source_of});

}  // namespace

void bring_values(const at::Tensor& tensor) {
  const auto source = later_source_of(tensor);  // the tensor's guard goes with the last use of it
  if (source == nullptr) return;
  const auto values = source->values();
  if (later_source_of(tensor) == source) unguard(tensor, values);
}

}  // namespace smp::server
