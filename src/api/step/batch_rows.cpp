// api/step/batch_rows.cpp: sets of numbers of rows that would fit, intersected.
#include "api/step/batch_rows.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "base/check.h"

namespace smp {
namespace {

using base::concat;
using detail::Cut;

std::set<std::int64_t> common(const std::set<std::int64_t>& a, const std::set<std::int64_t>& b) {
  std::set<std::int64_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(both, both.end()));
  return both;
}

/// Returns the number of entries of a container; nothing if that differs from place to place.
std::set<std::int64_t> entries_of(const ArgumentPart& container) {
  const auto entries = static_cast<std::int64_t>(container.entries());
  return container.has_entries(entries) ? std::set{entries} : std::set<std::int64_t>();
}

std::string joined(const std::set<std::int64_t>& numbers) {
  std::string text;
  for (const auto number : numbers) text += concat(text.empty() ? "" : " or ", number);
  return text;
}

}  // namespace

BatchRows::BatchRows(const ArgumentParts& parts, const detail::SeenCuts& seen, bool several)
    : parts_(parts), seen_(seen), several_(several) {
  take_of_tensors();
  take_of_codecs();
  if (count_ < 0) take_of_options();
  if (count_ < 0) take_of_lists();
  SMP_REQUIRE(count_ != 0,
              "the batch of this step has no rows; leave the step out on every rank or, if other "
              "replicas have rows, let this one go on without a batch (smp::Join)");
}

/// Takes the rows of a part for those of the batch.
void BatchRows::take(const ArgumentPart& part, std::int64_t rows) {
  if (count_ < 0) {
    count_ = rows;
    origin_ = concat("argument ", part.path);
  }
  SMP_REQUIRE(rows == count_, "argument ", part.path, " of the step has ", rows, " rows, ", origin_,
              " has ", count_,
              "; give them one batch size, or name the argument that has none "
              "in StepOptions::non_split");
}

void BatchRows::take_of_tensors() {
  for (const auto& part : parts_) {
    if (!part.is_tensor() || part.whole || part.in_list) continue;
    for (const auto* place : part.places) {
      const auto& tensor = parts_.tensor(part, *place);
      take(part, tensor.size(parts_.axis_of(part, tensor)));
    }
  }
}

void BatchRows::take_of_codecs() {
  for (const auto& part : parts_) {
    if (!part.is_own() || part.whole || is_of_a_row(part)) continue;
    for (const auto* place : part.places) {
      if (place->rule.rows >= 0) take(part, place->rule.rows);
    }
  }
}

/// True if the options say that it is a part of one row.
bool BatchRows::is_of_a_row(const ArgumentPart& part) const {
  for (int c = part.inside; c >= 0; c = parts_[c].inside) {
    if (parts_[c].by_entries) return true;
  }
  return false;
}

void BatchRows::take_of_options() {
  for (const auto& part : parts_) {
    if (part.by_entries && !part.whole && !part.in_list) {
      take(part, static_cast<std::int64_t>(part.entries()));
    }
  }
  if (count_ >= 0) return;
  for (const auto& part : parts_) {
    if (part.whole || !part.axis) continue;
    for (const auto* place : part.places) {
      const auto& tensor = parts_.tensor(part, *place);
      take(part, tensor.size(parts_.axis_of(part, tensor)));
    }
  }
}

/// Takes the number of rows that fits the lists of tensors. A list that fits two is no evidence for
/// one of them, and neither is another list: that may have no rows at all.
void BatchRows::take_of_lists() {
  for (const auto& part : parts_) {
    if (!part.is_list() || !part.holds_tensors || part.in_list) continue;
    const auto fit = fit_as_seen(part);
    if (!several_ && fit.size() != 1) continue;  // nothing is divided
    SMP_REQUIRE(fit.size() <= 1, "argument ", part.path, " of the step is ", parts_.text_of(part),
                ", and no other tensor tells whether the batch has ", joined(fit),
                " rows. Say split_entries = {", part.as_option(),
                "} if the entries of the list are the rows, split_axes = {{", part.as_option(),
                ", 0}} if each tensor has them along axis 0 (StepOptions in smp/step.h)");
    SMP_REQUIRE(!fit.empty(), "argument ", part.path, " of the step is ", parts_.text_of(part),
                ", and no number of rows fits what is in it; if it has none, name it in "
                "StepOptions::non_split");
    by_looks_ |= !seen_.contains(part.path) && !part.has_entries(*fit.begin());
    take(part, *fit.begin());
  }
}

/// Returns the numbers of rows that fit a list, if possible as in earlier calls.
BatchRows::Fit BatchRows::fit_as_seen(const ArgumentPart& list) const {
  const auto known = seen_.find(list.path);
  if (known != seen_.end() && known->second != Cut::kWhole) {
    auto fit = known->second == Cut::kEntries ? entries_of(list) : fit_container(list);
    if (!fit.empty()) return fit;
  }
  return fit_list(list);
}

BatchRows::Fit BatchRows::fit_tensors(const ArgumentPart& part) const {
  Fit rows;
  for (const auto* place : part.places) rows.insert(parts_.rows_of(part, *place).value_or(-1));
  return rows.size() == 1 && *rows.begin() >= 0 ? rows : Fit{};
}

BatchRows::Fit BatchRows::fit_list(const ArgumentPart& list) const {
  auto numbers = fit_container(list);
  const bool columns = parts_.look_like_columns(list) && !has_list_beside(list);
  if (numbers.empty() || !columns) numbers.merge(entries_of(list));
  return numbers;
}

/// True if there is a list of something else than tensors with as many entries, such as a label
/// for each.
bool BatchRows::has_list_beside(const ArgumentPart& list) const {
  return list.entries() > 1 && std::any_of(parts_.begin(), parts_.end(), [&](const auto& other) {
           return other.is_list() && !other.in_list && !other.whole && !other.holds_own &&
                  other.has_no_tensors() && other.entries() == list.entries();
         });
}

/// Returns the numbers of rows that fit all members with tensors.
BatchRows::Fit BatchRows::fit_container(const ArgumentPart& container) const {
  std::optional<Fit> fit;
  for (const int member : container.members) {
    const auto& part = parts_[member];
    if (!part.holds_tensors) continue;
    auto own = part.is_tensor() ? fit_tensors(part)
               : part.is_list() ? fit_list(part)
                                : fit_container(part);
    fit = fit ? common(*fit, own) : std::move(own);
  }
  return fit.value_or(Fit{});
}

bool BatchRows::fit_members(const ArgumentPart& container) const {
  return std::all_of(container.members.begin(), container.members.end(), [&](int member) {
    const auto& part = parts_[member];
    if (!part.holds_tensors) return true;
    if (part.is_tensor()) return fit_tensors(part) == Fit{count_};
    return (part.is_list() && part.has_entries(count_)) || fit_members(part);
  });
}

}  // namespace smp
