// tp/slices/distributed_modules.cpp: see the header.
#include "tp/slices/distributed_modules.h"

#include <torch/nn/module.h>

#include <unordered_set>

#include "smp/detail/call.h"

namespace smp::tp {
namespace {

class Walk {
 public:
  std::vector<std::pair<std::string, const DistributedModule*>> found;

  void visit(const torch::nn::Module& module, const std::string& path) {
    if (!seen_.insert(&module).second) return;
    if (const auto* const distributed = dynamic_cast<const DistributedModule*>(&module)) {
      found.emplace_back(path, distributed);
    }
    const auto* const routed = dynamic_cast<const RoutedBase*>(&module);
    if (routed != nullptr && routed->smp_stand_in) visit(routed->smp_stand_in->module(), path);
    for (const auto& child : module.named_children()) {
      visit(*child.value(), path.empty() ? child.key() : path + '.' + child.key());
    }
  }

 private:
  std::unordered_set<const torch::nn::Module*> seen_;
};

}  // namespace

std::vector<std::pair<std::string, const DistributedModule*>> distributed_modules_of(
    const torch::nn::Module& model) {
  Walk walk;
  walk.visit(model, "");
  return std::move(walk.found);
}

}  // namespace smp::tp
