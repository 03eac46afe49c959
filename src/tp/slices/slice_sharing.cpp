// tp/slices/slice_sharing.cpp: see the header.
#include "tp/slices/slice_sharing.h"

#include <torch/nn/module.h>

#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "module/path_below.h"
#include "smp/detail/call.h"
#include "smp/tp/distributed_module.h"

namespace smp::tp {
namespace {

using torch::nn::Module;

/// Returns the modules and their paths, the model itself first; each once.
std::vector<std::pair<std::string, const Module*>> modules_of(const Module& model) {
  std::vector<std::pair<std::string, const Module*>> all{{"", &model}};
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    all.emplace_back(item.key(), item.value().get());
  }
  return all;
}

class SliceHolders {
 public:
  explicit SliceHolders(const Module& model) {
    for (const auto& [path, module] : modules_of(model)) {
      add(path, *module, *module);
      const auto* const routed = dynamic_cast<const RoutedBase*>(module);
      if (routed == nullptr || !routed->smp_stand_in) continue;
      for (const auto& [own, part] : modules_of(routed->smp_stand_in->module())) {
        add(path_below(path, own), *part, *module);
      }
    }
  }

  /// Returns the path of the slice if `parameter` of `module` is one that this module does not hold
  /// as a slice; else nullptr.
  const std::string* held_elsewhere(const at::Tensor& parameter, const Module& module) const {
    const auto found = holders_.find(parameter.unsafeGetTensorImpl());
    if (found == holders_.end() || found->second.modules.count(&module) != 0) return nullptr;
    return &found->second.slice;
  }

 private:
  struct Holder {
    std::string slice;
    std::unordered_set<const Module*> modules;
  };

  /// @param root  the module with which, or below which, the slices of `module` may be registered
  void add(const std::string& path, const Module& module, const Module& root) {
    const auto* const distributed = dynamic_cast<const DistributedModule*>(&module);
    if (distributed == nullptr) return;
    const auto parameters = module.named_parameters(/*recurse=*/false);
    for (const auto& [name, slice] : distributed->sliced()) {
      const auto* const tensor = parameters[name].unsafeGetTensorImpl();
      auto& holder = holders_.try_emplace(tensor, Holder{path_below(path, name), {}}).first->second;
      for (const auto& part : modules_of(root)) holder.modules.insert(part.second);
    }
  }

  std::unordered_map<const void*, Holder> holders_;  // by TensorImpl
};

}  // namespace

std::optional<SharedSlice> find_shared_slice(const Module& model) {
  const SliceHolders holders(model);
  for (const auto& [path, module] : modules_of(model)) {
    for (const auto& item : module->named_parameters(/*recurse=*/false)) {
      if (!item.value().defined()) continue;
      const auto* const slice = holders.held_elsewhere(item.value(), *module);
      if (slice != nullptr) return SharedSlice{*slice, path_below(path, item.key())};
    }
  }
  return std::nullopt;
}

}  // namespace smp::tp
