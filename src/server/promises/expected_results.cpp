// server/promises/expected_results.cpp: one hash names a kind of call.
#include "server/promises/expected_results.h"

#include <algorithm>

#include "base/random.h"

namespace smp::server {
namespace {

/// A bound on the keys kept: arguments may hold a number that differs at each call.
constexpr std::size_t kMost = 1 << 16;

/// True if a later call may return an output that needs a gradient where this one does not. As a
/// promise it would lose that gradient; the other way round nothing is lost.
bool may_need_gradient_later(const at::Tensor& output, bool requires_grad, bool grad) {
  const bool can = output.is_floating_point() || output.is_complex();
  return grad && can && !requires_grad;
}

bool can_be_promised(const ForwardResponse& answer, bool grad) {
  const auto& tensors = answer.result.tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) return false;
    if (may_need_gradient_later(tensors[i], answer.requires_grad[i], grad)) return false;
  }
  return answer.links.empty() && answer.hooked.empty() && !answer.settings &&
         answer.withheld.empty() && !tensors.empty() &&
         std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
           return tensor.layout() == c10::kStrided && !tensor.is_inference();
         });
}

}  // namespace

std::uint64_t ExpectedResults::key_of(const ForwardRequest& request) {
  auto key = base::mix_key(request.call, static_cast<std::uint64_t>(request.module.value));
  std::uint64_t modes = request.modes.grad ? 1 : 0;
  for (const auto& autocast : request.modes.autocast) {
    modes = modes << 8 | (autocast.enabled ? 1 + static_cast<std::uint64_t>(autocast.dtype) : 0);
  }
  key = base::mix_key(key, modes);
  if (!request.settings.plain) {
    key =
        base::mix_key(base::mix_key(key, request.settings.first), request.settings.further.view());
  }
  key = base::mix_key(key, std::string_view(request.arguments.bytes));
  for (std::size_t i = 0; i < request.arguments.tensors.size(); ++i) {
    const auto& tensor = request.arguments.tensors[i];
    const auto kind = tensor.defined() ? 1 + static_cast<std::uint64_t>(tensor.scalar_type()) : 0;
    const auto device = tensor.defined() ? static_cast<std::uint64_t>(tensor.device().type()) : 0;
    key = base::mix_key(key, device << 16 | kind << 1 | std::uint64_t{request.requires_grad[i]});
  }
  return key;
}

ExpectedResult* ExpectedResults::find(std::uint64_t key) {
  const auto found = results_.find(key);
  return found == results_.end() ? nullptr : &found->second;
}

void ExpectedResults::learn(std::uint64_t key, const ForwardResponse& answer, bool grad) {
  if (results_.size() >= kMost) return;
  const auto [place, is_new] = results_.try_emplace(key);
  auto& expected = place->second;
  if (expected.refused) return;
  expected.refused = !can_be_promised(answer, grad);
  if (expected.refused) return;
  std::vector<ExpectedResult::Output> outputs;
  for (std::size_t i = 0; i < answer.result.tensors.size(); ++i) {
    const auto& tensor = answer.result.tensors[i];
    outputs.push_back({tensor.scalar_type(), tensor.device().type(), answer.requires_grad[i]});
  }
  const bool differs =
      !is_new && (expected.bytes != answer.result.bytes || expected.outputs != outputs);
  expected.bytes = answer.result.bytes;
  expected.outputs = std::move(outputs);
  expected.refused = differs;
}

}  // namespace smp::server
