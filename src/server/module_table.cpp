// server/module_table.cpp: modules are numbered in the order they come.
#include "server/module_table.h"

#include "base/check.h"
#include "base/random.h"
#include "module/running_statistics.h"

namespace smp::server {

void ModuleTable::attach_model(const std::vector<RoutedBase*>& modules) {
  const auto model = models_++;
  for (auto* module : modules) {
    auto& place = module->smp_place;
    place.index = static_cast<int>(entries_.size());
    entries_.push_back({module, place.path, base::mix_key(model, std::string_view(place.path)),
                        module->smp_draws_random(),
                        module::is_normalisation(module->smp_module())});
  }
}

void ModuleTable::detach_model(const std::vector<RoutedBase*>& modules) noexcept {
  for (auto& entry : entries_) {
    for (const auto* gone : modules) {  // by address: the module itself may have ended
      if (entry.module == gone) entry.module = nullptr;
    }
  }
}

const ModuleTable::Entry& ModuleTable::at(ModuleId id) const {
  const auto number = static_cast<std::size_t>(id.value);
  SMP_ASSERT(number < entries_.size(), "module ", id.value, " of ", entries_.size());
  return entries_[number];
}

RoutedBase& ModuleTable::module(ModuleId id) const {
  const auto& entry = at(id);
  SMP_ASSERT(entry.module != nullptr, "module ", id.value, " (", entry.path,
             ") of a model that is gone");
  return *entry.module;
}

const char* ModuleTable::path(ModuleId id) const noexcept {
  const auto number = static_cast<std::size_t>(id.value);
  return number < entries_.size() ? entries_[number].path.c_str() : "<body>";
}

}  // namespace smp::server
