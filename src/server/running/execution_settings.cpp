// server/running/execution_settings.cpp: when flags are read, and how many of them.
#include "server/running/execution_settings.h"

#include <utility>

namespace smp::server {

ExecutionSettings::ExecutionSettings(SettingsBoard& board, RoutedBase* module)
    : board_(board),
      view_(board.base()),
      part_(module == nullptr ? nullptr : &board.flags().subtree(module->smp_module())) {}

void ExecutionSettings::set(const View& view) {
  view_ = view;
  apply();
}

const ExecutionSettings::View& ExecutionSettings::note() noexcept {
  if (part_ == nullptr) {
    board_.note(view_);
  } else {
    board_.note(view_, *part_);
  }
  return view_;
}

void ExecutionSettings::suspend() noexcept {
  if (!own_code_only_) {
    board_.suspend(view_, part_);
  } else if (!std::exchange(noted_, true)) {
    note();
  }
}

const SettingsBoard::Subtree& ExecutionSettings::part_of(const RoutedBase& module) const {
  return board_.flags().subtree(const_cast<RoutedBase&>(module).smp_module());
}

void ExecutionSettings::body_call_begins(const RoutedBase& module) {
  if (!body_.called()) {
    board_.note(view_);
  } else {
    board_.note(view_, part_of(module));
  }
  body_.call_begins(view_);
}

void ExecutionSettings::body_call_ends(const RoutedBase& module) noexcept {
  const auto& part = part_of(module);
  board_.note(view_, part);
  body_.call_ends(view_, part);
}

OwnCodeOnly::OwnCodeOnly(ExecutionSettings* settings) noexcept
    : settings_(settings), before_(settings != nullptr && settings->own_code_only_) {
  if (settings_ == nullptr) return;
  settings_->own_code_only_ = true;
  settings_->noted_ = false;
}

OwnCodeOnly::~OwnCodeOnly() {
  if (settings_ != nullptr) settings_->own_code_only_ = before_;
}

}  // namespace smp::server
