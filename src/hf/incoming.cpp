// hf/incoming.cpp: see the header.
#include "hf/incoming.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "hf/family_names.h"

namespace smp::hf {
namespace {

using checkpoints::TensorInfo;

/// Returns what `part` of the tensor `whole` is like. @throws UsageError  it has no such part.
TensorInfo part_of(const TensorInfo& whole, const Part& part, const std::string& own_name,
                   const std::string& path) {
  TensorInfo info{own_name, whole.dtype, whole.sizes};
  if (part.turned) {
    SMP_REQUIRE(info.sizes.size() == 2, path, ": \"", whole.name, "\" is ",
                c10::IntArrayRef(whole.sizes), ", expected [inputs, outputs]");
    std::swap(info.sizes[0], info.sizes[1]);
  }
  if (part.count == 1) return info;
  const auto count = static_cast<std::int64_t>(part.count);
  SMP_REQUIRE(!info.sizes.empty() && info.sizes[0] % count == 0, path, ": \"", whole.name, "\" is ",
              c10::IntArrayRef(whole.sizes), ", which cannot be cut into the ", count,
              " tensors of the model that share it, \"", own_name, "\" among them");
  info.sizes[0] /= count;
  return info;
}

}  // namespace

Incoming::Incoming(std::shared_ptr<const PublishedFiles> files, const NameMap& names,
                   const std::vector<std::string>& own_names)
    : files_(std::move(files)), names_(names), used_(files_->size()) {
  for (const auto& name : own_names) add(name);
  for (std::size_t i = 0; i < used_.size(); ++i) {
    if (!used_[i]) sort_left_over(i);
  }
}

void Incoming::add(const std::string& own_name) {
  const auto part = published_part(names_, own_name);
  const auto number = files_->find_tied(part.name);
  if (!number) return;
  const auto& entry = files_->entry(*number);
  SMP_REQUIRE_AS(UnsupportedError, entry.unreadable.empty(), entry.file->path(), ": \"",
                 entry.info.name, "\": ", entry.unreadable);
  used_[*number] = true;
  tensors_.push_back(part_of(entry.info, part, own_name, entry.file->path()));
  sources_.push_back({*number, part});
}

/// A tensor of the files that no name of the model asks for.
void Incoming::sort_left_over(std::size_t number) {
  const auto& name = files_->name(number);
  for (const auto& tie : ties_of(files_->family())) {
    if (tie.copy != name && tie.name != name) continue;
    const auto first = files_->find(tie.name);
    for (const auto& other : ties_of(files_->family())) {
      if (other.name != tie.name) continue;
      const auto copy = files_->find(other.copy);
      for (const auto& used : {first, copy}) {
        if (!used || !used_[*used]) continue;
        copies_.push_back({number, *used, tie.may_differ});
        return;
      }
    }
  }
  if (may_be_left_out(files_->family(), name)) {
    ignored_.push_back(name);
  } else {
    auto info = files_->entry(number).info;
    // What cannot be read is told of as bytes, which no tensor of the model takes.
    if (!files_->entry(number).unreadable.empty()) info.dtype = at::kByte;
    unexpected_.push_back(std::move(info));
  }
}

void Incoming::require_ties() const {
  for (const auto& [number, of, may_differ] : copies_) {
    const auto differs = files_->difference(of, number);
    SMP_REQUIRE(!differs, files_->path(), ": the model has one tensor for \"",
                files_->entry(of).info.name, "\" and \"", files_->entry(number).info.name,
                "\", and the files have two: ", *differs, ". Nothing was loaded. ",
                may_differ ? "Give the model a head of its own, whatever config.json says of "
                             "tie_word_embeddings: hf::has_own_head() tells"
                           : "In transformers they are one tensor too: the file is of another "
                             "program, or damaged");
  }
}

at::Tensor Incoming::read(std::size_t index) const {
  const auto& [number, part] = sources_.at(index);
  if (part.count == 1 && !part.turned) return files_->read(number);
  if (turned_number_ != number) {
    turned_ = at::Tensor();
    turned_ = part.turned ? files_->read(number).t() : files_->read(number);
    turned_number_ = number;
  }
  const auto rows = turned_.size(0) / static_cast<std::int64_t>(part.count);
  auto values = turned_.narrow(0, rows * static_cast<std::int64_t>(part.index), rows)
                    .clone(at::MemoryFormat::Contiguous);
  if (part.index + 1 == part.count) {  // the last one that is read, as a rule
    turned_ = at::Tensor();
    turned_number_.reset();
  }
  return values;
}

void Incoming::read_into(std::size_t index, const at::Tensor& target) const {
  const auto& [number, part] = sources_.at(index);
  if (part.count == 1 && !part.turned) return files_->read_into(number, target);
  const at::NoGradGuard no_grad;
  target.copy_(read(index));
}

std::vector<std::string> names_in(const PublishedFiles& files, const NameMap& names) {
  std::vector<std::string> own;
  std::set<std::string> there;
  const auto add = [&](const std::string& name) {
    if (!there.insert(name).second) return;
    auto more = own_names(names, name).first;
    own.insert(own.end(), more.begin(), more.end());
  };
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto& name = files.name(i);
    const auto& ties = ties_of(files.family());
    const auto tie =
        std::find_if(ties.begin(), ties.end(), [&](const Tie& one) { return one.copy == name; });
    if (tie == ties.end()) {
      if (!may_be_left_out(files.family(), name)) add(name);
      continue;
    }
    const auto first = files.find_tied(std::string(tie->name));
    add(std::string(tie->name));
    if (tie->may_differ && *first != i && files.difference(*first, i)) add(name);
  }
  return own;
}

}  // namespace smp::hf
