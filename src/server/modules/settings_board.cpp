// server/modules/settings_board.cpp: the views of all flags, and which of them the modules have.
#include "server/modules/settings_board.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace smp::server {
namespace {

constexpr std::size_t kInFirst = 64;

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

// ---- views -------------------------------------------------------------------------------------

void SettingsBoard::attach(torch::nn::Module& root) {
  flags_.attach(root);
  forget_views();
}

void SettingsBoard::forget_views() noexcept {
  suspended_ = {};
  known_.clear();
}

void SettingsBoard::begin_step() {
  if (flags_.renumber()) forget_views();
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

/// Puts the changes of the suspended execution into its view. No flag was changed since it was
/// suspended.
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
    if ((*view)[i] != (*applied_)[i]) flags_.set(i, (*view)[i] != 0);
  }
  applied_ = view;
}

template <class Numbers>
void SettingsBoard::note_in(View& view, const Numbers& numbers) noexcept {
  std::shared_ptr<std::vector<char>> changed;
  for (const std::uint32_t i : numbers) {
    const bool now = flags_.get(i);
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
  if (flags_.are(*view)) return;
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
  const bool plain =
      std::all_of(part.begin(), part.end(), [this](auto number) { return flags_.get(number); });
  return plain ? Settings() : read_all(part);
}

Settings SettingsBoard::read_all(const Subtree& part) const {
  Settings settings;
  settings.plain = false;
  std::string further;
  for (std::size_t i = 0; i < part.size(); ++i) {
    const bool on = flags_.get(part[i]);
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
    if (flags_.get(part[i]) != bit(settings, i)) flags_.set(part[i], bit(settings, i));
  }
}

}  // namespace smp::server
