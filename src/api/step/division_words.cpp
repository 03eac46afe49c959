// api/step/division_words.cpp: hints where a tensor only looks like rows.
#include "api/step/division_words.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Type.h>

#include "base/check.h"

namespace smp {
namespace {

using base::concat;
using detail::Cut;

}  // namespace

void DivisionWords::tell() {
  for (const auto& part : parts_) {
    if (!is_worth_telling(part)) continue;
    told_.push_back({part.path, parts_.text_of(part), how(part), hint(part)});
    if (is_column_by_looks(part)) {
      const auto& list = parts_[part.inside];
      doubtful_.push_back(concat("argument ", list.path, " of a step is ", parts_.text_of(list),
                                 ", of which each tensor is taken for a column with the ",
                                 rows_.count(),
                                 " rows of the batch. If its entries are the rows, "
                                 "say split_entries = {",
                                 list.as_option(), "}; if not, split_axes = {{", list.as_option(),
                                 ", 0}} (StepOptions in smp/step.h)"));
    }
    const bool unsure =
        rows_.count() < 0 && several_ && part.is_list() && !part.whole && !part.holds_own;
    if (!unsure || part.entries() < 2) continue;
    doubtful_.push_back(
        concat("argument ", part.path, " of a step is ", parts_.text_of(part),
               ", and no tensor says how many rows the batch has: every microbatch gets the whole. "
               "If its entries are the rows, say split_entries = {",
               part.as_option(), "}; if not, non_split (StepOptions in smp/step.h)"));
  }
}

/// True if a list of several tensors alone was cut along their axes because they look like columns.
bool DivisionWords::is_column_by_looks(const ArgumentPart& part) const {
  if (!several_ || part.cut != Cut::kAxis || part.inside < 0 || part.axis) return false;
  const auto& list = parts_[part.inside];
  return list.is_list() && list.entries() > 1 && rows_.by_looks() &&
         !parts_.holds_several_kinds(list);
}

/// True unless its container is told as one, or its members tell all.
bool DivisionWords::is_worth_telling(const ArgumentPart& part) const {
  for (int c = part.inside; c >= 0; c = parts_[c].inside) {
    const auto& container = parts_[c];
    if (container.whole || container.cut == Cut::kEntries) return false;
  }
  if (part.is_tensor() || part.is_own() || part.whole || part.cut == Cut::kEntries) return true;
  return part.has_no_tensors() && !part.in_list && !parts_.is_cut_below(part);
}

void DivisionWords::tell_unknown(const std::string& name, const std::type_info& type, bool meant) {
  told_.push_back({name,
                   concat("of type ", c10::demangle(type.name())),
                   meant ? "whole (non_split)" : "whole",
                   {}});
  if (meant || !several_) return;
  doubtful_.push_back(
      concat("argument ", name, " of a step is of type ", c10::demangle(type.name()),
             ", which cannot be taken apart: every microbatch gets the whole. If it holds a batch, "
             "pass its tensors or give it a codec, with slice() if need be (smp/codec.h); if not, "
             "StepOptions::non_split says so"));
}

std::string DivisionWords::text_of(const std::type_info& type, std::size_t entries) const {
  return concat("of type ", c10::demangle(type.name()), " with ", entries, " entries");
}

std::string DivisionWords::how(const ArgumentPart& part) const {
  if (part.cut == Cut::kEntries) return "an entry a row";
  if (part.cut == Cut::kOwn) return "as its codec says";
  if (part.cut == Cut::kWhole) return part.whole ? "whole (non_split)" : "whole";
  return concat("along axis ", parts_.axis_of(part, parts_.tensor(part, *part.places.front())));
}

/// Returns what to do if a tensor was split that has no rows, but as many entries.
std::string DivisionWords::hint(const ArgumentPart& part) const {
  if (part.cut != Cut::kAxis || !several_ || rows_.count() < 2) return {};
  const auto& tensor = parts_.tensor(part, *part.places.front());
  const auto remedy = concat("non_split = {", part.as_option(), "}");
  if (tensor.dim() == 1 && c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)) {
    return concat("if these are offsets or indices and not one a row: ", remedy);
  }
  const int axis = parts_.axis_of(part, tensor);
  for (int d = 0; d < tensor.dim(); ++d) {
    if (d == axis || tensor.size(d) != rows_.count()) continue;
    return concat("axis ", d,
                  " is as long; if this is a mask or a matrix that all rows use: ", remedy);
  }
  return {};
}

}  // namespace smp
