// api/step/argument_parts.cpp: names are compared as whole steps of the way to a part.
#include "api/step/argument_parts.h"

#include <c10/util/Type.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include "base/check.h"

namespace smp {
namespace {

using base::concat;
using detail::OutlinePart;
using detail::PartKind;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// True if `name` stands in `path` as one or more whole steps of the way: from the argument's
/// number on if it begins with one.
/// @param at_end  nothing may follow
bool stands_in(std::string_view name, std::string_view path, bool at_end) {
  if (name.empty()) return false;
  for (auto at = path.find(name); at != path.npos; at = path.find(name, at + 1)) {
    const bool begins = is_digit(name.front()) ? at == 0 : at > 0 && path[at - 1] == '.';
    const auto end = at + name.size();
    const bool ends = end == path.size() || (!at_end && (path[end] == '.' || path[end] == '['));
    if (begins && ends) return true;
  }
  return false;
}

bool names_part(const ArgumentName& name, const ArgumentPart& part, bool at_end = false) {
  return stands_in(name.text(), part.path, at_end) || stands_in(name.text(), part.numbered, at_end);
}

bool is_named(const std::set<ArgumentName>& names, const ArgumentPart& part, bool at_end = false) {
  return std::any_of(names.begin(), names.end(),
                     [&](const ArgumentName& name) { return names_part(name, part, at_end); });
}

std::string way_from(std::size_t argument, const std::string& path) {
  const bool apart = !path.empty() && path.front() != '[';
  return concat(argument, apart ? "." : "", path);
}

const char* name_of(PartKind kind) {
  switch (kind) {
    case PartKind::kTensor:
      return "a tensor";
    case PartKind::kList:
      return "a list";
    case PartKind::kArray:
      return "an array";
    case PartKind::kMap:
      return "a map";
    case PartKind::kOwn:
      return "a value";
  }
  return "?";
}

}  // namespace

bool ArgumentPart::has_entries(std::int64_t count) const {
  return std::all_of(places.begin(), places.end(), [&](const auto* place) {
    return static_cast<std::int64_t>(place->entries) == count;
  });
}

bool ArgumentPart::has_no_tensors() const {
  return std::all_of(places.begin(), places.end(),
                     [](const auto* place) { return place->begin.tensors == place->end.tensors; });
}

std::string ArgumentPart::as_option() const {
  const bool is_number = std::all_of(path.begin(), path.end(), is_digit);
  return is_number ? path : concat('"', path, '"');
}

ArgumentParts::ArgumentParts(const std::vector<detail::StepArgument>& arguments,
                             const StepOptions& options)
    : arguments_(arguments), options_(options) {
  find();
  for (int p = size() - 1; p >= 0; --p) {  // members first
    auto& part = (*this)[p];
    apply_options(part);
    part.holds_tensors = !part.whole && (part.is_tensor() || part.holds_tensors);
    part.holds_own = !part.whole && (part.is_own() || part.holds_own);
    if (part.inside < 0) continue;
    (*this)[part.inside].holds_tensors |= part.holds_tensors;
    (*this)[part.inside].holds_own |= part.holds_own;
  }
}

void ArgumentParts::find() {
  for (std::size_t a = 0; a < arguments_.size(); ++a) {
    std::map<std::tuple<int, std::string, PartKind>, int> known;
    std::vector<int> part_of;  // by place
    for (const auto& place : arguments_[a].outline.parts()) {
      const int inside = place.inside < 0 ? -1 : part_of[static_cast<std::size_t>(place.inside)];
      const auto [at, is_new] = known.try_emplace({inside, place.path, place.kind}, size());
      if (is_new) add(a, place, inside);
      (*this)[at->second].places.push_back(&place);
      part_of.push_back(at->second);
    }
  }
}

void ArgumentParts::add(std::size_t argument, const OutlinePart& place, int inside) {
  const int number = size();
  auto& part = parts_.emplace_back();
  part.argument = argument;
  part.kind = place.kind;
  part.path = way_from(argument, place.path);
  part.numbered = way_from(argument, place.numbered);
  part.inside = inside;
  if (inside < 0) return;
  auto& container = (*this)[inside];
  part.in_list = container.in_list || container.is_list();
  container.members.push_back(number);
}

void ArgumentParts::apply_options(ArgumentPart& part) const {
  part.whole = is_named(options_.non_split, part);
  part.by_entries = part.is_list() && is_named(options_.split_entries, part, /*at_end=*/true);
  std::size_t longest = 0;  // the name that tells most
  for (const auto& [name, axis] : options_.split_axes) {
    if (!part.is_tensor() || name.text().size() <= longest || !names_part(name, part)) continue;
    longest = name.text().size();
    part.axis = axis;
  }
}

int ArgumentParts::axis_of(const ArgumentPart& part, const at::Tensor& tensor) const {
  const int axis = part.axis.value_or(0);
  const auto dimensions = static_cast<int>(tensor.dim());
  const int positive = axis < 0 ? axis + dimensions : axis;
  SMP_REQUIRE(positive >= 0 && positive < dimensions, "argument ", part.path,
              " of the step: a tensor of shape ", tensor.sizes(), " cannot be split along axis ",
              axis, "; name the argument in StepOptions::non_split or set split_axes");
  return positive;
}

std::optional<std::int64_t> ArgumentParts::rows_of(const ArgumentPart& part,
                                                   const OutlinePart& place) const {
  const auto& own = tensor(part, place);
  const int axis = part.axis.value_or(0);
  if (axis >= own.dim() || axis < -own.dim()) return std::nullopt;
  return own.size(axis);
}

bool ArgumentParts::holds_several_kinds(const ArgumentPart& list) const {
  return std::any_of(list.members.begin(), list.members.end(), [&](int member) {
    const auto& part = (*this)[member];
    if (part.is_list()) return false;
    if (!part.is_tensor()) return holds_several_kinds(part);
    const auto& first = tensor(part, *part.places.front());
    return std::any_of(part.places.begin(), part.places.end(), [&](const auto* place) {
      const auto& other = tensor(part, *place);
      return other.dim() != first.dim() || other.scalar_type() != first.scalar_type();
    });
  });
}

bool ArgumentParts::look_like_columns(const ArgumentPart& list) const {
  if (list.entries() == 1 || holds_several_kinds(list)) return true;
  return std::all_of(list.members.begin(), list.members.end(), [&](int member) {
    const auto& part = (*this)[member];
    if (!part.is_tensor()) return false;
    const auto sizes = tensor(part, *part.places.front()).sizes();
    const auto entries = static_cast<std::int64_t>(list.entries());
    if (!sizes.empty() && sizes[0] >= 2 * entries) return true;
    return std::all_of(part.places.begin(), part.places.end(),
                       [&](const auto* place) { return tensor(part, *place).sizes() == sizes; });
  });
}

bool ArgumentParts::is_cut_below(const ArgumentPart& part) const {
  return std::any_of(part.members.begin(), part.members.end(), [&](int member) {
    return (*this)[member].cut != detail::Cut::kWhole || is_cut_below((*this)[member]);
  });
}

std::string ArgumentParts::text_of(const ArgumentPart& part) const {
  const auto& first = *part.places.front();
  const auto& tensors = arguments_[part.argument].packet.tensors;
  std::string shape;
  if (first.begin.tensors < first.end.tensors) {
    const auto& tensor = tensors[first.begin.tensors];
    shape = concat(tensor.scalar_type(), ' ', tensor.sizes());
  }
  if (part.is_own()) return concat("of type ", c10::demangle(first.rule.type->name()));
  if (part.is_tensor()) {
    const auto count = part.places.size();
    return count == 1 ? shape : concat(count, " tensors, the first ", shape);
  }
  return concat(name_of(part.kind), " of ", first.entries,
                first.entries == 1 ? " entry" : " entries",
                shape.empty() ? "" : ", the first tensor ", shape);
}

std::vector<std::string> ArgumentParts::unknown_names() const {
  std::vector<std::string> texts;
  const auto check = [&](const ArgumentName& name, const char* option) {
    if (is_known(name)) return;
    texts.push_back(concat("StepOptions::", option, " names '", name.text(),
                           "', and no argument of the step, and no tensor or container in one, "
                           "is called so"));
  };
  for (const auto& name : options_.non_split) check(name, "non_split");
  for (const auto& [name, axis] : options_.split_axes) check(name, "split_axes");
  for (const auto& name : options_.split_entries) check(name, "split_entries");
  return texts;
}

bool ArgumentParts::is_known(const ArgumentName& name) const {
  for (std::size_t a = 0; a < arguments_.size(); ++a) {
    if (name.text() == std::to_string(a)) return true;
  }
  return std::any_of(parts_.begin(), parts_.end(),
                     [&](const ArgumentPart& part) { return names_part(name, part); });
}

}  // namespace smp
