// server/module_table.h: the routed modules of a session by number, and what the server needs to
// know of each again and again, found out once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "server/ids.h"
#include "smp/call.h"

namespace smp::server {

/// Threads: the rank's. Paths stay where they are as long as the table lives, so that reports and
/// graphs that outlive their model can name a module.
class ModuleTable {
 public:
  struct Entry {
    RoutedBase* module = nullptr;  ///< nullptr: its model is gone
    std::string path;
    std::uint64_t random_key = 0;  ///< of model and path
    bool draws_random = false;
    bool keeps_statistics = false;  ///< a normalisation layer, which may keep running statistics
  };

  /// Adds the routed modules of one model, placed already (RoutedBase::smp_place), and numbers
  /// them.
  void attach_model(const std::vector<RoutedBase*>& modules);
  /// A model ends, and its modules may: their numbers stay taken.
  void detach_model(const std::vector<RoutedBase*>& modules) noexcept;

  std::size_t size() const noexcept { return entries_.size(); }
  /// @throws InternalError  there is no such module.
  [[nodiscard]] const Entry& at(ModuleId id) const;
  /// @throws InternalError  there is no such module, or its model is gone.
  [[nodiscard]] RoutedBase& module(ModuleId id) const;
  /// "<body>" for kBody. Valid as long as the table.
  [[nodiscard]] const char* path(ModuleId id) const noexcept;

 private:
  std::deque<Entry> entries_;
  std::uint64_t models_ = 0;
};

}  // namespace smp::server
