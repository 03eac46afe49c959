// api/wait.cpp: waiting for the values of promised tensors.
#include "smp/wait.h"

#include "server/execution_scope.h"
#include "server/promised_tensor.h"

namespace smp {

void wait() {
  if (auto* scope = server::ExecutionScope::current()) scope->finish_calls();
}

namespace detail {

void await(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) server::fetch(tensor);
}

}  // namespace detail

}  // namespace smp
