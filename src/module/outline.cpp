// module/outline.cpp: the way to what is being written is one text, which grows and shrinks.
#include "smp/detail/outline.h"

namespace smp::detail {

void Outline::add_tensor(PacketPlace at) {
  add(PartKind::kTensor, at);
  parts_.back().end = {at.bytes, at.tensors + 1};
}

void Outline::add_own(const SliceRule& rule, PacketPlace begin, PacketPlace end) {
  add(PartKind::kOwn, begin);
  parts_.back().end = end;
  parts_.back().rule = rule;
}

void Outline::open(PartKind kind, std::size_t entries, PacketPlace at) {
  add(kind, at);
  parts_.back().entries = entries;
  open_.push_back(static_cast<int>(parts_.size()) - 1);
  members_.push_back({path_.size(), numbered_.size()});
  // All entries of a list are alike; members of the others have names or numbers.
  if (kind == PartKind::kList) append("[]", "[]");
}

void Outline::close(PacketPlace at) {
  parts_[innermost()].end = at;
  open_.pop_back();
  leave();
}

void Outline::enter(std::string_view name, std::size_t number) {
  members_.push_back({path_.size(), numbered_.size()});
  const auto digits = std::to_string(number);
  if (!path_.empty()) append(".", ".");
  append(name.empty() ? digits : name, digits);
}

void Outline::leave() {
  path_.resize(members_.back().path);
  numbered_.resize(members_.back().numbered);
  members_.pop_back();
}

void Outline::add(PartKind kind, PacketPlace at) {
  parts_.push_back({.kind = kind,
                    .path = path_,
                    .numbered = numbered_,
                    .inside = open_.empty() ? -1 : open_.back(),
                    .begin = at});
}

void Outline::append(std::string_view name, std::string_view number) {
  path_ += name;
  numbered_ += number;
}

}  // namespace smp::detail
