// api/model/module_types.h: types of modules that a setting names.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace smp {

/// A type goes by its name without namespace, with or without "Impl".
class ModuleTypes {
 public:
  /// @param key    the setting's, for messages
  /// @param types  names with commas between them
  ModuleTypes(std::string key, const std::string& types);

  /// @throws UsageError  no module of any of `models` is of one of these types; names the nearest.
  void require_known(const std::vector<const torch::nn::Module*>& models) const;
  bool contain(const torch::nn::Module& module) const;

  /// Returns "Attention" for an object of "(anonymous namespace)::t5::AttentionImpl".
  static std::string name_of(const torch::nn::Module& module);

 private:
  std::string key_;
  std::set<std::string> types_;
};

}  // namespace smp
