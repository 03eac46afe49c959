// api/planning/trial_results.cpp: bytes of dense tensors; of others, that there are some.
#include "api/planning/trial_results.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include "base/check.h"

namespace smp {
namespace {

/// Returns the tensors without their graph.
std::vector<at::Tensor> values_of(const std::vector<at::Tensor>& tensors) {
  const at::DisableRecordFunctionGuard unwatched;  // this is no reading of the body's
  std::vector<at::Tensor> values;
  for (const auto& tensor : tensors) {
    values.push_back(tensor.defined() ? tensor.detach() : tensor);
  }
  return values;
}

}  // namespace

std::string result_bytes(const std::vector<at::Tensor>& tensors, bool values) {
  const at::DisableRecordFunctionGuard unwatched;  // this is no reading of the body's
  std::string bytes;
  for (const auto& tensor : tensors) {
    const bool readable = tensor.defined() && tensor.layout() == at::kStrided;
    bytes += readable ? base::concat(tensor.sizes(), tensor.scalar_type()) : std::string("none");
    if (!readable || !values || tensor.numel() == 0) continue;
    const auto dense = tensor.detach().cpu().contiguous();
    bytes.append(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
  }
  return bytes;
}

void TrialResults::note(int microbatch, const std::vector<at::Tensor>& results) {
  const auto i = static_cast<std::size_t>(microbatch);
  last_.at(i) = values_of(results);
  if (first_[i].empty()) first_[i] = result_bytes(last_[i], values_);
}

bool TrialResults::changed() const {
  for (std::size_t i = 0; i < first_.size(); ++i) {
    if (result_bytes(last_[i], values_) != first_[i]) return true;
  }
  return false;
}

}  // namespace smp
