// server/modules/setting_flags.cpp: found in the order in which modules are registered.
#include "server/modules/setting_flags.h"

#include <torch/csrc/autograd/variable.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

#include "base/random.h"
#include "module/path_below.h"

namespace smp::server {
namespace {
struct FlagAccess;
}  // namespace
}  // namespace smp::server

/// Gives access to a module's training flag: torch::nn::Module befriends every Cloneable<T>.
/// train() is virtual and recursive, and users override it: it is the wrong tool to put a single
/// flag back.
template <>
class torch::nn::Cloneable<smp::server::FlagAccess> {
 public:
  static bool& training(Module& module) noexcept { return module.is_training_; }
};

namespace smp::server {
namespace {

constexpr bool kOff = false;

bool& training(torch::nn::Module& module) noexcept {
  return torch::nn::Cloneable<FlagAccess>::training(module);
}

/// Returns the autograd metadata of a parameter, which stays as long as the parameter; nullptr if
/// nobody has asked for gradients yet.
const torch::autograd::AutogradMeta* meta_of(const at::Tensor& parameter) noexcept {
  return static_cast<const torch::autograd::AutogradMeta*>(
      parameter.unsafeGetTensorImpl()->autograd_meta());
}

bool requires_grad(const at::Tensor& parameter) noexcept {
  const auto* meta = meta_of(parameter);
  return meta != nullptr && meta->requires_grad_;
}

}  // namespace

// ---- what there is -----------------------------------------------------------------------------

void SettingFlags::attach(torch::nn::Module& root) {
  roots_.push_back(&root);
  find_all();
}

void SettingFlags::detach(const torch::nn::Module& root) noexcept {
  std::erase(roots_, &root);
  for (auto& flag : flags_) {
    if (flag.root != &root) continue;
    flag.module = nullptr;
    flag.parameter.reset();
  }
  outdated_ = true;
}

bool SettingFlags::renumber() {
  if (!outdated_) return false;
  find_all();
  return true;
}

void SettingFlags::find_all() {
  outdated_ = false;
  flags_.clear();
  places_.clear();
  without_place_.clear();
  numbers_.clear();
  subtrees_.clear();
  last_module_ = nullptr;
  for (auto* root : roots_) add_module(*root, *root, "");
}

void SettingFlags::add_module(torch::nn::Module& module, const torch::nn::Module& root,
                              const std::string& path) {
  const auto next = [this] { return static_cast<std::uint32_t>(flags_.size()); };
  const auto is_new = [&](const void* what) { return numbers_.emplace(what, next()).second; };
  if (!is_new(&module)) return;
  places_.push_back(&training(module));
  flags_.push_back({&root, &module, {}, path});
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (!item.value().defined() || !is_new(item.value().unsafeGetTensorImpl())) continue;
    const auto* const meta = meta_of(item.value());
    if (meta == nullptr) without_place_.push_back(next());
    places_.push_back(meta == nullptr ? &kOff : &meta->requires_grad_);
    flags_.push_back({&root, nullptr, item.value(), path_below(path, item.key())});
  }
  for (const auto& child : module.named_children()) {
    add_module(*child.value(), root, path_below(path, child.key()));
  }
}

std::optional<std::uint32_t> SettingFlags::number_of(const at::Tensor& parameter) const {
  const auto found = numbers_.find(parameter.unsafeGetTensorImpl());
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

const SettingFlags::Subtree& SettingFlags::find_subtree(const torch::nn::Module& module) {
  const auto [found, fresh] = subtrees_.try_emplace(&module);
  if (fresh) {
    std::vector<char> seen(flags_.size());
    list(module, seen, found->second);
  }
  last_module_ = &module;
  last_subtree_ = &found->second;
  return found->second;
}

void SettingFlags::list(const torch::nn::Module& module, std::vector<char>& seen,
                        Subtree& part) const {
  const auto add = [&](const void* what) {
    const auto known = numbers_.find(what);
    if (known == numbers_.end() || std::exchange(seen[known->second], 1) != 0) return false;
    part.push_back(known->second);
    return true;
  };
  if (!add(&module)) return;
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    add(item.value().unsafeGetTensorImpl());
  }
  for (const auto& child : module.named_children()) list(*child.value(), seen, part);
}

// ---- how they are ------------------------------------------------------------------------------

bool SettingFlags::get(std::uint32_t number) const noexcept {
  const auto& flag = flags_[number];
  if (flag.module != nullptr) return training(*flag.module);
  return flag.parameter.defined() && requires_grad(flag.parameter);
}

/// Compares all flags without branches, because nearly always none differs.
bool SettingFlags::are(const std::vector<char>& values) noexcept {
  if (values.size() != flags_.size()) return false;
  if (outdated_) return those_left_are(values);
  find_late_places();
  const bool* const* const places = places_.data();
  unsigned different = 0;
  for (std::size_t i = 0, end = places_.size(); i < end; ++i) {
    different |= static_cast<unsigned char>(values[i]) ^ static_cast<unsigned>(*places[i]);
  }
  return different == 0;
}

bool SettingFlags::those_left_are(const std::vector<char>& values) const noexcept {
  for (std::uint32_t i = 0; i < flags_.size(); ++i) {
    if (!flags_[i].gone() && get(i) != (values[i] != 0)) return false;
  }
  return true;
}

/// Finds the places of the flags of parameters that have required a gradient since they were
/// attached.
void SettingFlags::find_late_places() noexcept {
  std::erase_if(without_place_, [this](auto number) {
    const auto* const meta = meta_of(flags_[number].parameter);
    if (meta != nullptr) places_[number] = &meta->requires_grad_;
    return meta != nullptr;
  });
}

void SettingFlags::set(std::uint32_t number, bool on) noexcept {
  auto& flag = flags_[number];
  if (flag.module != nullptr) {
    training(*flag.module) = on;
  } else if (flag.parameter.defined()) {
    flag.parameter.unsafeGetTensorImpl()->set_requires_grad(on);
  }
}

std::uint64_t SettingFlags::training_key() const noexcept {
  std::uint64_t key = 0, bits = 0;
  int number = 0;
  for (const auto& flag : flags_) {
    if (flag.module == nullptr) continue;
    bits = bits << 1 | (training(*flag.module) ? 1 : 0);
    if (++number % 64 == 0) key = base::mix_key(key, bits);
  }
  return base::mix_key(key, bits);
}

std::string SettingFlags::describe(std::size_t number, bool on) const {
  const auto& flag = flags_.at(number);
  const auto name = "'" + (flag.name.empty() ? "<root>" : flag.name) + "'";
  if (flag.module != nullptr) {
    return "module " + name + (on ? " in training mode" : " in evaluation mode");
  }
  return "parameter " + name + (on ? " trainable" : " frozen (requires_grad = false)");
}

}  // namespace smp::server
