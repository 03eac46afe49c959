// server/backward/missing_derivative.cpp: LibTorch names a kernel that no program has called.
#include "server/backward/missing_derivative.h"

#include <c10/util/Exception.h>

#include <exception>
#include <string>

#include "base/check.h"
#include "server/running/execution_scope.h"

namespace smp::server {
namespace {

void explain(c10::Error& error) {
  const std::string told = error.what_without_backtrace();
  const auto has = [&](const char* text) { return told.find(text) != told.npos; };
  const auto* const scope = ExecutionScope::current();
  if (scope == nullptr || !has("_scaled_dot_product_") || !has("_backward is not implemented")) {
    return;
  }
  constexpr const char* kRemedy =
      "at::globalContext().setSDPUseFlash(false) before the step, on every rank";
  if (has(kRemedy)) return;
  char who[256];
  scope->describe(who, sizeof who);
  error.add_context(base::concat(
      who,
      ": a derivative of a gradient (create_graph) through scaled_dot_product_attention(), "
      "whose fast kernels LibTorch differentiates once; call ",
      kRemedy,
      " (on GPUs setSDPUseMemEfficient(false) and setSDPUseCuDNN(false) too), for the "
      "kernel that can be differentiated twice"));
}

}  // namespace

void explain_missing_derivative() noexcept try { throw; } catch (c10::Error& error) {
  try {
    explain(error);
  } catch (const std::exception&) {  // no memory for more words
  }
} catch (...) {  // another error
}

}  // namespace smp::server
