// server/backward/written_tensor.cpp: LibTorch tells shape and version, and nothing else.
#include "server/backward/written_tensor.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "schedule/work_order.h"
#include "server/running/execution_scope.h"
#include "server/values/tensor_memory.h"

namespace smp::server {
namespace {

using base::concat;

/// What LibTorch tells of the tensor.
struct Written {
  std::string shape;  // "[4, 3]"
  std::uint32_t version = 0;
};

std::optional<Written> written_tensor(const std::string& text) {
  constexpr std::string_view kBegin = "modified by an inplace operation: [";
  constexpr std::string_view kVersion = " is at version ";
  const auto begin = text.find(kBegin);
  if (begin == text.npos) return std::nullopt;
  const auto shape = text.find(" [", begin + kBegin.size());
  const auto end = text.find("]]", begin);
  const auto version = text.find(kVersion, begin);
  if (shape == text.npos || end == text.npos || version == text.npos || shape > end)
    return Written();
  const auto* const digits = text.c_str() + version + kVersion.size();
  return Written{text.substr(shape + 1, end - shape),
                 static_cast<std::uint32_t>(std::strtoul(digits, nullptr, 10))};
}

/// Returns "parameter 'a.weight'" or "buffer 'a.mean'", if a tensor of the models has this shape
/// and version.
std::string known_tensor(const Written& written, const ModuleTable& modules) {
  const auto is_meant = [&](const at::Tensor& tensor) {
    return tensor.defined() && version_of(tensor) == written.version && written.version > 0 &&
           concat(tensor.sizes()) == written.shape;
  };
  for (int id = 0; id < static_cast<int>(modules.size()); ++id) {
    auto* const module = modules.find(ModuleId{id});
    if (module == nullptr) continue;
    const auto path = concat(module->smp_place.path, module->smp_place.path.empty() ? "" : ".");
    for (const auto& item : module->smp_module().named_parameters()) {
      if (is_meant(item.value())) return concat("parameter '", path, item.key(), "'");
    }
    for (const auto& item : module->smp_module().named_buffers()) {
      if (is_meant(item.value())) return concat("buffer '", path, item.key(), "'");
    }
  }
  return {};
}

/// Returns the other microbatches that began work on this rank in the step: "0, 2".
std::string others_that_ran(const schedule::WorkOrder* work, int microbatch) {
  std::string others;
  for (int m = 0; work != nullptr && m < work->microbatches(); ++m) {
    if (m == microbatch || work->place(schedule::Phase::kForward, m) < 0) continue;
    others += concat(others.empty() ? "" : ", ", m);
  }
  return others;
}

constexpr const char* kSavedIt = ", which saved it in the forward of ";

void explain(c10::Error& error, const torch::autograd::Node& node) {
  const std::string told = error.what_without_backtrace();
  const auto written = written_tensor(told);
  const auto* const scope = ExecutionScope::current();
  if (!written || scope == nullptr || told.find(kSavedIt) != told.npos) return;
  const auto& services = scope->services();
  const auto& own = scope->identity();
  char who[256];
  scope->describe(who, sizeof who);
  const auto known = known_tensor(*written, services.modules);
  const auto others = services.one_at_a_time ? "" : others_that_ran(services.work, own.microbatch);
  const auto text = concat(
      who, ": needed by ", node.name(), kSavedIt,
      own.module == kBody ? "the step's body" : "this module", "; ",
      known.empty() ? "no parameter or buffer of a model, but a tensor that this code captured, "
                      "keeps or made"
                    : concat("it may be ", known));
  if (others.empty()) {
    error.add_context(concat(text, ". No other microbatch ran here meanwhile: microbatch ",
                             own.microbatch, " wrote it itself, as it would in one process"));
    return;
  }
  error.add_context(
      concat(text, ". Microbatches run at the same time, and microbatch ", others, " ran on rank ",
             services.rank,
             " too: if it captured the same variable, it wrote it "
             "between this one's forward and backward. Save a clone() of it, give each microbatch "
             "its own (a local variable, an argument), or write it after the step; "
             "smp::shared_state_v for a module that keeps it (smp/state.h), or "
             "active_microbatches = 1 with pipeline = interleaved, runs one after the other"));
}

}  // namespace

void explain_written_tensor(const torch::autograd::Node& node) noexcept try {
  throw;
} catch (c10::Error& error) {
  try {
    explain(error, node);
  } catch (const std::exception&) {  // no memory for more words
  }
} catch (...) {  // another error
}

}  // namespace smp::server
