// api/describe_model.cpp: one walk over the modules, in order of registration.
#include "api/describe_model.h"

#include <torch/nn/module.h>

#include <sstream>
#include <unordered_map>

#include "base/check.h"

namespace smp {
namespace {

class Walk {
 public:
  ModelDescription description;

  void visit(torch::nn::Module& module, const std::string& path, int parent) {
    const auto [known, fresh] =
        nodes_.emplace(&module, static_cast<int>(description.tree.nodes.size()));
    if (!fresh) {
      description.tree.nodes[static_cast<std::size_t>(known->second)].aliases.push_back(path);
      return;
    }
    const int node = add_node(module, path, parent);
    for (const auto& child : module.named_children()) {
      visit(*child.value(), path.empty() ? child.key() : path + "." + child.key(), node);
    }
  }

  /// Once all parameters are known: views of their memory.
  void find_views() {
    for (std::size_t i = 0; i < description.modules.size(); ++i) {
      const auto& module = *description.modules[i];
      for (const auto& tensor : module.parameters(/*recurse=*/false)) note_view(i, tensor);
      for (const auto& tensor : module.buffers(/*recurse=*/false)) note_view(i, tensor);
    }
  }

 private:
  int add_node(torch::nn::Module& module, const std::string& path, int parent) {
    const int node = description.tree.add(path, parent);
    auto* routed = dynamic_cast<RoutedBase*>(&module);
    description.modules.push_back(&module);
    description.routed.push_back(routed);
    auto& own = description.tree.nodes[static_cast<std::size_t>(node)];
    own.stays_because = why_it_stays(module, routed);
    if (routed != nullptr) own.state_use = routed->smp_state_use();
    own.sequential = module.name().find("Sequential") != std::string::npos;
    for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
      const int number = number_of(parameter.value(),
                                   path.empty() ? parameter.key() : path + "." + parameter.key());
      description.tree.nodes[static_cast<std::size_t>(node)].parameters.push_back(
          {parameter.key(), number});
    }
    return node;
  }

  void note_view(std::size_t node, const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    if (parameters_.count(tensor.unsafeGetTensorImpl()) != 0 &&
        parameters_.at(tensor.unsafeGetTensorImpl()) ==
            memory_.at(tensor.storage().unsafeGetStorageImpl())) {
      return;  // the parameter itself
    }
    const auto found = memory_.find(tensor.storage().unsafeGetStorageImpl());
    if (found != memory_.end()) description.tree.nodes[node].viewed.push_back(found->second);
  }

  static std::string why_it_stays(const torch::nn::Module& module, const RoutedBase* routed) {
    if (routed != nullptr) return routed->smp_cannot_cross();
    return "its calls are not routed: define " + module.name() +
           " with SMP_MODULE and create it through its holder or smp::make_module";
  }

  int number_of(const at::Tensor& tensor, const std::string& name) {
    auto& all = description.tree.parameters;
    const auto [known, fresh] =
        parameters_.emplace(tensor.unsafeGetTensorImpl(), static_cast<int>(all.size()));
    if (fresh) {
      if (tensor.has_storage()) {
        memory_.emplace(tensor.storage().unsafeGetStorageImpl(), known->second);
      }
      std::ostringstream shape;
      shape << c10::toString(tensor.scalar_type()) << tensor.sizes();
      all.push_back({name, shape.str(), tensor.numel(),
                     static_cast<std::int64_t>(tensor.numel() * tensor.element_size())});
    }
    return known->second;
  }

  std::unordered_map<const torch::nn::Module*, int> nodes_;
  std::unordered_map<const void*, int> parameters_;
  std::unordered_map<const void*, int> memory_;  // by storage: the first parameter in it
};

}  // namespace

ModelDescription describe_model(torch::nn::Module& model) {
  Walk walk;
  walk.visit(model, "", -1);
  walk.find_views();
  return std::move(walk.description);
}

}  // namespace smp
