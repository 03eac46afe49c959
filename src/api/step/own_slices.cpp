// api/step/own_slices.cpp: see the header.
#include "api/step/own_slices.h"

#include <c10/util/Type.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "server/protocol/exception_text.h"

namespace smp {
namespace {

/// Returns a part of a packet as one of its own.
Packet part_of(const Packet& whole, const detail::OutlinePart& part) {
  const auto tensors = whole.tensors.begin();
  return {whole.bytes.substr(part.begin.bytes, part.end.bytes - part.begin.bytes),
          {tensors + static_cast<std::ptrdiff_t>(part.begin.tensors),
           tensors + static_cast<std::ptrdiff_t>(part.end.tensors)}};
}

std::vector<Packet> slices_of(const Packet& argument, const OwnPlace& own, int microbatches) {
  const auto& rule = own.place->rule;
  try {
    return rule.slices(part_of(argument, *own.place), microbatches);
  } catch (...) {
    throw UsageError(
        base::concat("argument ", own.path, " of the step, of type ",
                     c10::demangle(rule.type->name()), ": slice() of its codec, for ", microbatches,
                     " microbatches, threw: ", server::text_of(std::current_exception())));
  }
}

/// Where the tensor's elements begin; nullptr if nobody can share them.
const void* memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.numel() == 0) return nullptr;
  return tensor.has_storage() ? tensor.const_data_ptr() : nullptr;
}

}  // namespace

OwnSlices::OwnSlices(const std::vector<detail::StepArgument>& arguments, const Division& division,
                     int microbatches) {
  slices_.resize(arguments.size());
  for (std::size_t a = 0; a < arguments.size(); ++a) {
    slices_[a].resize(static_cast<std::size_t>(microbatches));
    for (const auto& own : division.own(a)) {
      auto parts = slices_of(arguments[a].packet, own, microbatches);
      for (std::size_t m = 0; m < parts.size(); ++m) {
        note_memory(static_cast<int>(m), parts[m]);
        slices_[a][m].push_back(std::move(parts[m]));
      }
    }
  }
  std::sort(memory_.begin(), memory_.end());
  memory_.erase(std::unique(memory_.begin(), memory_.end()), memory_.end());
}

void OwnSlices::note_memory(int microbatch, const Packet& slice) {
  for (const auto& tensor : slice.tensors) {
    if (const auto* at = memory_of(tensor)) memory_.emplace_back(at, microbatch);
  }
}

bool OwnSlices::is_common(const at::Tensor& tensor) const {
  const auto* const at = memory_of(tensor);
  if (at == nullptr) return false;
  const auto first = std::lower_bound(memory_.begin(), memory_.end(), std::pair(at, 0));
  return first != memory_.end() && std::next(first) != memory_.end() &&
         std::next(first)->first == at;
}

std::vector<std::string_view> OwnSlices::bytes(std::size_t argument, int microbatch) const {
  std::vector<std::string_view> all;
  for (const auto& slice : of(argument, microbatch)) all.push_back(slice.bytes);
  return all;
}

}  // namespace smp
