// api/rank/wait.cpp: waiting for the values of promised tensors.
#include "smp/wait.h"

#include "server/promises/promised_tensor.h"
#include "server/running/execution_scope.h"

namespace smp {

void wait() {
  if (auto* scope = server::ExecutionScope::current()) scope->outgoing().finish();
}

namespace detail {

void await(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) server::fetch(tensor);
}

}  // namespace detail

}  // namespace smp
