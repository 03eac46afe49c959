// hf/published_files.cpp: see the header.
#include "hf/published_files.h"

#include "base/check.h"
#include "hf/family_names.h"

namespace smp::hf {

PublishedFiles::PublishedFiles(const std::string& path, Family family)
    : family_(family), path_(path), files_(path) {
  for (std::size_t i = 0; i < files_.tensors().size(); ++i) {
    const auto& own = files_.tensors()[i].info.name;
    names_.push_back(canonical(family, own));
    const auto [place, added] = numbers_.emplace(names_.back(), i);
    SMP_REQUIRE(added, path, ": \"", files_.tensors()[place->second].info.name, "\" and \"", own,
                "\" are the same tensor, \"", names_.back(),
                "\", under names of two programs; remove one of them");
  }
  for (const auto& [alias, stored] : files_.aliases()) {
    const auto found = numbers_.find(canonical(family, stored));
    if (found != numbers_.end()) numbers_.emplace(canonical(family, alias), found->second);
  }
}

std::optional<std::size_t> PublishedFiles::find(std::string_view name) const {
  const auto found = numbers_.find(name);
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::size_t> PublishedFiles::find_tied(const std::string& name) const {
  if (auto found = find(name)) return found;
  for (const auto& tie : ties_of(family_)) {
    if (tie.name != name && tie.copy != name) continue;
    if (auto found = find(tie.name)) return found;
    for (const bool may_differ : {false, true}) {
      for (const auto& other : ties_of(family_)) {
        if (other.name != tie.name || other.may_differ != may_differ) continue;
        if (auto found = find(other.copy)) return found;
      }
    }
  }
  return std::nullopt;
}

std::optional<std::string> PublishedFiles::difference(std::size_t first, std::size_t second) const {
  const auto& a = entry(first).info;
  const auto& b = entry(second).info;
  if (a.sizes != b.sizes) {
    return base::concat("\"", a.name, "\" is ", c10::IntArrayRef(a.sizes), " and \"", b.name, "\" ",
                        c10::IntArrayRef(b.sizes));
  }
  const auto type = checkpoints::common_type(a.dtype, b.dtype);
  const auto found = checkpoints::first_difference(read(first), read(second), type);
  if (!found) return std::nullopt;
  return base::concat("element ", c10::IntArrayRef(found->place), " is ", found->first, " in \"",
                      a.name, "\" and ", found->second, " in \"", b.name, "\"");
}

}  // namespace smp::hf
