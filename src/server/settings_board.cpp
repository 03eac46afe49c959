// server/settings_board.cpp: flags of modules and parameters by number, and the views of them.
#include "server/settings_board.h"

#include <torch/csrc/autograd/variable.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace smp::server {
namespace {
struct FlagAccess;
}  // namespace
}  // namespace smp::server

/// torch::nn::Module befriends every Cloneable<T>. train() is virtual and recursive, and users
/// override it: it is the wrong tool to put a single flag back.
template <>
class torch::nn::Cloneable<smp::server::FlagAccess> {
 public:
  static bool& training(Module& module) noexcept { return module.is_training_; }
};

namespace smp::server {
namespace {

constexpr std::size_t kInFirst = 64;

bool& training(torch::nn::Module& module) noexcept {
  return torch::nn::Cloneable<FlagAccess>::training(module);
}

/// Once there is one it stays as long as the parameter; nullptr: nobody has asked for gradients
/// yet.
const torch::autograd::AutogradMeta* meta_of(const at::Tensor& parameter) noexcept {
  return static_cast<const torch::autograd::AutogradMeta*>(
      parameter.unsafeGetTensorImpl()->autograd_meta());
}

bool requires_grad(const at::Tensor& parameter) noexcept {
  const auto* meta = meta_of(parameter);
  return meta != nullptr && meta->requires_grad_;
}

std::string below(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

void put(std::string& further, std::size_t place, bool on) {
  if (place / 8 == further.size()) further += '\0';
  auto& byte = further[place / 8];
  byte = static_cast<char>(byte | (on << (place % 8)));
}

bool bit(const Settings& settings, std::size_t place) {
  if (settings.plain) return true;
  if (place < kInFirst) return ((settings.first >> place) & 1) != 0;
  place -= kInFirst;
  return ((settings.further.view()[place / 8] >> (place % 8)) & 1) != 0;
}

}  // namespace

// ---- what there is -----------------------------------------------------------------------------

void SettingsBoard::attach(torch::nn::Module& root) {
  roots_.push_back(&root);
  find_all();
}

/// Numbers stay until the next step: there may be views.
void SettingsBoard::detach(const torch::nn::Module& root) noexcept {
  std::erase(roots_, &root);
  for (auto& flag : flags_) {
    if (flag.root != &root) continue;
    flag.module = nullptr;
    flag.parameter.reset();
  }
  const auto is_gone = [this](std::uint32_t number) {
    return flags_[number].module == nullptr && !flags_[number].parameter.defined();
  };
  std::erase_if(places_, [&](const Place& place) { return is_gone(place.number); });
  std::erase_if(without_place_, is_gone);
  outdated_ = true;
}

void SettingsBoard::find_all() {
  outdated_ = false;
  suspended_ = {};
  flags_.clear();
  places_.clear();
  without_place_.clear();
  numbers_.clear();
  subtrees_.clear();
  last_module_ = nullptr;
  known_.clear();
  for (auto* root : roots_) add_module(*root, *root, "");
}

void SettingsBoard::add_module(torch::nn::Module& module, const torch::nn::Module& root,
                               const std::string& path) {
  const auto next = [this] { return static_cast<std::uint32_t>(flags_.size()); };
  const auto is_new = [&](const void* what) { return numbers_.emplace(what, next()).second; };
  if (!is_new(&module)) return;
  places_.push_back({&training(module), next()});
  flags_.push_back({&root, &module, {}, path});
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (!item.value().defined() || !is_new(item.value().unsafeGetTensorImpl())) continue;
    if (const auto* meta = meta_of(item.value())) {
      places_.push_back({&meta->requires_grad_, next()});
    } else {
      without_place_.push_back(next());
    }
    flags_.push_back({&root, nullptr, item.value(), below(path, item.key())});
  }
  for (const auto& child : module.named_children()) {
    add_module(*child.value(), root, below(path, child.key()));
  }
}

std::optional<std::uint32_t> SettingsBoard::number_of(const at::Tensor& parameter) const {
  const auto found = numbers_.find(parameter.unsafeGetTensorImpl());
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

const SettingsBoard::Subtree& SettingsBoard::find_subtree(const torch::nn::Module& module) {
  const auto [found, fresh] = subtrees_.try_emplace(&module);
  if (fresh) {
    std::vector<char> seen(flags_.size());
    list(module, seen, found->second);
  }
  last_module_ = &module;
  last_subtree_ = &found->second;
  return found->second;
}

void SettingsBoard::list(const torch::nn::Module& module, std::vector<char>& seen,
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

// ---- views -------------------------------------------------------------------------------------

bool SettingsBoard::get(std::uint32_t number) const noexcept {
  const auto& flag = flags_[number];
  if (flag.module != nullptr) return training(*flag.module);
  return flag.parameter.defined() && requires_grad(flag.parameter);
}

/// Flags that are gone count for nothing. No branches: nearly always none differs.
bool SettingsBoard::says(const View& view) const noexcept {
  if (view->size() != flags_.size()) return false;
  const char* const flags = view->data();
  int different = 0;
  for (const auto& place : places_) different |= static_cast<int>(*place.on) ^ flags[place.number];
  return different == 0 &&
         std::all_of(without_place_.begin(), without_place_.end(),
                     [&](auto number) { return get(number) == (flags[number] != 0); });
}

void SettingsBoard::set(std::uint32_t number, bool on) noexcept {
  auto& flag = flags_[number];
  if (flag.module != nullptr) {
    training(*flag.module) = on;
  } else if (flag.parameter.defined()) {
    flag.parameter.unsafeGetTensorImpl()->set_requires_grad(on);
  }
}

void SettingsBoard::begin_step() {
  if (outdated_) find_all();
  if (base_->size() != flags_.size()) base_ = std::make_shared<std::vector<char>>(flags_.size());
  applied_ = base_;
  suspended_ = {};
  note(base_);
  begin_of_step_ = base_;
  known_.clear();
}

void SettingsBoard::begin_microbatches_with(const View& left) {
  if (left == base_) return;
  base_ = left;
  known_.clear();
}

/// Nobody has changed a flag since the execution was suspended.
void SettingsBoard::settle() noexcept {
  const auto [view, part] = std::exchange(suspended_, {});
  if (view == nullptr) return;
  if (part == nullptr) {
    note(*view);
  } else {
    note(*view, *part);
  }
}

void SettingsBoard::resume(const View& view) noexcept {
  if (suspended_.view == &view) {
    suspended_ = {};
  } else {
    apply(view);
  }
}

void SettingsBoard::apply(const View& view) noexcept {
  settle();
  if (view == applied_) return;
  for (std::uint32_t i = 0; i < view->size(); ++i) {
    if ((*view)[i] != (*applied_)[i]) set(i, (*view)[i] != 0);
  }
  applied_ = view;
}

template <class Numbers>
void SettingsBoard::note_in(View& view, const Numbers& numbers) noexcept {
  std::shared_ptr<std::vector<char>> changed;
  for (const std::uint32_t i : numbers) {
    const bool now = get(i);
    if (now == ((*view)[i] != 0)) continue;
    if (changed == nullptr) changed = std::make_shared<std::vector<char>>(*view);
    (*changed)[i] = now ? 1 : 0;
  }
  if (changed == nullptr) return;
  view = std::move(changed);
  applied_ = view;
}

void SettingsBoard::note(View& view) noexcept {
  if (suspended_.view == &view) suspended_ = {};
  if (says(view)) return;
  Subtree all(view->size());
  std::iota(all.begin(), all.end(), 0);
  note_in(view, all);
}

void SettingsBoard::note(View& view, const Subtree& part) noexcept {
  if (suspended_.view == &view) suspended_ = {};
  note_in(view, part);
}

// ---- what travels ------------------------------------------------------------------------------

Settings SettingsBoard::read(const Subtree& part) const {
  const bool plain = std::all_of(part.begin(), part.end(), [this](auto flag) { return get(flag); });
  return plain ? Settings() : read_all(part);
}

Settings SettingsBoard::read_all(const Subtree& part) const {
  Settings settings;
  settings.plain = false;
  std::string further;
  for (std::size_t i = 0; i < part.size(); ++i) {
    const bool on = get(part[i]);
    if (i < kInFirst) {
      settings.first |= std::uint64_t{on} << i;
    } else {
      put(further, i - kInFirst, on);
    }
  }
  settings.further = std::move(further);
  return settings;
}

void SettingsBoard::require_size(const Subtree& part, const Settings& settings) {
  const auto further = part.size() > kInFirst ? (part.size() - kInFirst + 7) / 8 : 0;
  SMP_REQUIRE(settings.plain || settings.further.view().size() == further,
              "the caller's copy of this module has other parts than its owner's; build the same "
              "model on every rank, and register modules and parameters before the first step");
}

SettingsBoard::View SettingsBoard::view_of(const Subtree& part, const Settings& settings) {
  require_size(part, settings);
  auto& known = known_[&part];
  if (known.view != nullptr && known.settings == settings) return known.view;
  std::shared_ptr<std::vector<char>> changed;
  for (std::size_t i = 0; i < part.size(); ++i) {
    const char on = bit(settings, i) ? 1 : 0;
    if ((*base_)[part[i]] == on) continue;
    if (changed == nullptr) changed = std::make_shared<std::vector<char>>(*base_);
    (*changed)[part[i]] = on;
  }
  known = {settings, changed == nullptr ? base_ : View(std::move(changed))};
  return known.view;
}

void SettingsBoard::write(const Subtree& part, const Settings& settings) {
  require_size(part, settings);
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (get(part[i]) != bit(settings, i)) set(part[i], bit(settings, i));
  }
}

std::uint64_t SettingsBoard::training_key() const noexcept {
  std::uint64_t key = 0, bits = 0;
  int number = 0;
  for (const auto& flag : flags_) {
    if (flag.module == nullptr) continue;
    bits = bits << 1 | (training(*flag.module) ? 1 : 0);
    if (++number % 64 == 0) key = base::mix_key(key, bits);
  }
  return base::mix_key(key, bits);
}

std::string SettingsBoard::describe(std::size_t number, bool on) const {
  const auto& flag = flags_.at(number);
  const auto name = "'" + (flag.name.empty() ? "<root>" : flag.name) + "'";
  if (flag.module != nullptr) {
    return "module " + name + (on ? " in training mode" : " in evaluation mode");
  }
  return "parameter " + name + (on ? " trainable" : " frozen (requires_grad = false)");
}

// ---- bodies ------------------------------------------------------------------------------------

void BodySettings::call_begins(const View& view) {
  if (first_call_ == nullptr) first_call_ = view;
  before_call_ = view;
}

void BodySettings::call_ends(const View& view, const SettingsBoard::Subtree& part) {
  if (view == before_call_) return;
  by_modules_.resize(view->size());
  for (const auto flag : part) {
    if ((*view)[flag] != (*before_call_)[flag]) by_modules_[flag] = 1;
  }
}

/// A switch that the body throws before its first call, it throws in every microbatch. Without a
/// call nobody knows what it used before.
bool BodySettings::leaves(std::size_t flag, const View& begin, const View& end) const {
  const auto& used = called() ? first_call_ : begin;
  return (*end)[flag] != (*begin)[flag] && (*end)[flag] != (*used)[flag];
}

bool BodySettings::changes_the_next(const View& begin, const View& end) const {
  if (begin == end) return false;
  for (std::size_t i = 0; i < end->size(); ++i) {
    if (leaves(i, begin, end)) return true;
  }
  return false;
}

std::optional<std::size_t> BodySettings::late_switch(const View& begin, const View& end) const {
  if (begin == end) return std::nullopt;
  for (std::size_t i = 0; i < end->size(); ++i) {
    const bool by_module = i < by_modules_.size() && by_modules_[i] != 0;
    if (!by_module && leaves(i, begin, end)) return i;
  }
  return std::nullopt;
}

void BodySettings::require_repeatable(const SettingsBoard& board, const View& begin,
                                      const View& end) const {
  const auto late = late_switch(begin, end);
  if (!late) return;
  const bool on = (*end)[*late] != 0;
  SMP_REQUIRE(false, "the step's body leaves ", board.describe(*late, on),
              called() ? " but called the model" : " but may have used the model",
              " before it did so. In one process the next microbatch would "
              "begin like that; here microbatches run at the same time, and it began with ",
              board.describe(*late, !on),
              ". Switch before the body's first call of the model, or back before the body ends");
}

}  // namespace smp::server
