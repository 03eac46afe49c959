// fuzz/judge.cpp: what the ranks saw, compared with what one process saw.
#include "fuzz/judge.h"

#include <ATen/ATen.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <map>
#include <sstream>
#include <vector>

#include "fuzz/refusals.h"
#include "fuzz/runner.h"

namespace smp::fuzz {
namespace {

using torch::Tensor;

constexpr double kTolerance = 1e-10;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string numbers(const Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::ostringstream out;
  const auto flat = tensor.flatten().to(torch::kDouble);
  out.precision(12);
  for (std::int64_t i = 0; i < std::min<std::int64_t>(flat.numel(), 4); ++i) {
    out << (i == 0 ? "" : " ") << flat[i].item<double>();
  }
  return out.str();
}

bool same(const Tensor& ours, const Tensor& reference) {
  if (ours.defined() != reference.defined()) return false;
  if (!ours.defined()) return true;
  if (ours.sizes() != reference.sizes() || ours.dtype() != reference.dtype()) return false;
  if (!reference.is_floating_point()) return torch::equal(ours, reference);
  const double scale = std::max(1e-3, reference.abs().max().item<double>());
  const auto alike = ours.eq(reference).logical_or(reference.isnan().logical_and(ours.isnan()));
  const auto apart = (ours - reference).abs().masked_fill(alike, 0);
  return apart.max().item<double>() <= kTolerance * scale;
}

/// The step whose losses or gradients are so large that the parameters after it, and with them the
/// results of later steps, hang on last bits.
int diverging_step(const Trace& reference) {
  constexpr double kDiverged = 1e5, kRunAway = 1e20;
  int first = std::numeric_limits<int>::max();
  for (const auto& [name, tensor] : reference.values) {
    if (name.rfind("step ", 0) != 0 || !tensor.defined() || tensor.numel() == 0) continue;
    const double largest = tensor.abs().max().item<double>();
    if (!(largest > kDiverged)) continue;
    // So high a power of the parameters has lost the digits that they have.
    const int step = std::stoi(name.substr(5)) - (largest > kRunAway ? 1 : 0);
    first = std::min(first, step);
  }
  return first;
}

/// Training that diverges makes the last bit of one step the first of the next: from then on there
/// is nothing to compare.
bool is_after(const std::string& name, int step) {
  if (name.rfind("step ", 0) != 0) return step < std::numeric_limits<int>::max();
  return std::stoi(name.substr(5)) > step;
}

/// What differs first, in the order of the names; empty: nothing.
std::string difference(const std::vector<Trace>& ranks, const Trace& reference) {
  std::map<std::string, Tensor> found;
  const int diverging = diverging_step(reference);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const auto& [name, tensor] : ranks[rank].values) {
      const auto expected = reference.values.find(name);
      if (expected == reference.values.end())
        return name + " exists on rank " + std::to_string(rank) + " only";
      if (!same(tensor, expected->second) && !is_after(name, diverging)) {
        return name + ", rank " + std::to_string(rank) + ": " + numbers(tensor) + " instead of " +
               numbers(expected->second);
      }
      found[name] = tensor;
    }
  }
  for (const auto& [name, tensor] : reference.values) {
    if (!found.count(name)) return name + " is on no rank";
  }
  return {};
}

/// The original's text, where it happened; the other ranks have it in theirs.
const Trace* origin(const std::vector<Trace>& ranks) {
  const Trace* shortest = nullptr;
  for (const auto& trace : ranks) {
    if (trace.error.empty()) continue;
    if (shortest == nullptr || trace.error.size() < shortest->error.size()) shortest = &trace;
  }
  return shortest;
}

Result judge_failure(const std::vector<Trace>& ranks, const Trace& reference) {
  const Trace& first = *origin(ranks);
  const std::string where = first.failed_at == kPlacing
                                ? "before the first step: "
                                : "step " + std::to_string(first.failed_at) + ": ";
  for (const auto& trace : ranks) {
    if (trace.error.empty() || trace.failed_at != first.failed_at) {
      return {Verdict::kTorn, "not on all ranks, " + where + first.error};
    }
    if (!trace.aftermath.empty()) {
      return {Verdict::kTorn, where + first.error + "\n  afterwards: " + trace.aftermath};
    }
  }
  for (const auto& trace : ranks) {
    if (!reference.error.empty() && trace.failed_at == reference.failed_at &&
        trace.error.find(first_line(reference.error)) != std::string::npos) {
      return {Verdict::kBothThrow, first_line(reference.error)};
    }
  }
  const char* const ran_on = reason_to_run(reference.error);
  if (ran_on != nullptr && reference.failed_at < first.failed_at && reason_to_run(first.error)) {
    return {Verdict::kBothThrow, ran_on};
  }
  for (const auto& trace : ranks) {
    if (const char* reason = reason_to_refuse(trace.error)) return {Verdict::kRefused, reason};
  }
  if (!reference.error.empty() && first.failed_at == reference.failed_at) {
    return {Verdict::kBothThrow, "other words: " + first_line(first.error)};
  }
  return {Verdict::kUndocumented, where + first.error};
}

Result judge_traces(const std::vector<Trace>& ranks, const Trace& reference) {
  if (origin(ranks) != nullptr) return judge_failure(ranks, reference);
  if (const char* reason = reason_to_run(reference.error)) return {Verdict::kBothThrow, reason};
  if (!reference.error.empty()) {
    return {Verdict::kUnnoticed,
            "step " + std::to_string(reference.failed_at) + ": " + first_line(reference.error)};
  }
  const auto text = difference(ranks, reference);
  return text.empty() ? Result{} : Result{Verdict::kDifferent, text};
}

}  // namespace

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kEqual:
      return "equal";
    case Verdict::kBothThrow:
      return "both throw";
    case Verdict::kRefused:
      return "refused";
    case Verdict::kDifferent:
      return "DIFFERENT";
    case Verdict::kUndocumented:
      return "UNDOCUMENTED ERROR";
    case Verdict::kUnnoticed:
      return "ERROR UNNOTICED";
    case Verdict::kTorn:
      return "RANKS DISAGREE";
    case Verdict::kCrash:
      return "CRASH";
    case Verdict::kHang:
      return "HANG";
  }
  return "?";
}

Result judge(const Program& program) {
  c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
  const Trace reference = run_reference(program);
  std::vector<Trace> ranks;
  try {
    ranks = run_ranks(program);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return {text.find("deadlock") != std::string::npos ? Verdict::kHang : Verdict::kUndocumented,
            "the session: " + text};
  }
  auto result = judge_traces(ranks, reference);
  result.replayed = ranks[0].replayed;
  for (const auto& rank : ranks) result.ahead += rank.ahead;
  return result;
}

}  // namespace smp::fuzz
