// tp/replacement.cpp: the four conditions of the paper (§5.2), from the root down.
#include "smp/tp/replacement.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <map>
#include <set>

#include "base/check.h"
#include "smp/routed.h"
#include "smp/tp/distributed_embedding.h"
#include "smp/tp/distributed_layer_norm.h"
#include "smp/tp/distributed_linear.h"
#include "tp/tensor_parallel.h"

namespace smp {
namespace {

/// By the name that RoutedBase::smp_type_name() gives.
using Rules = std::map<std::string, ReplacementRule>;

template <class Original, class Distributed>
void add_rule(Rules& rules) {
  rules.emplace(detail::type_name(typeid(Original)), replacement_rule<Original, Distributed>());
}

Rules& rules() {
  static Rules all = [] {
    Rules own;
    add_rule<torch::nn::LinearImpl, nn::DistributedLinearImpl>(own);
    add_rule<torch::nn::EmbeddingImpl, nn::DistributedEmbeddingImpl>(own);
    add_rule<torch::nn::LayerNormImpl, nn::DistributedLayerNormImpl>(own);
    return own;
  }();
  return all;
}

/// The places at which each parameter of a model is registered.
class Sharing {
 public:
  explicit Sharing(const torch::nn::Module& model) {
    add(model);
    for (const auto& module : model.modules(/*include_self=*/false)) add(*module);
  }
  /// A parameter of `module`, or of what is below it, that a module elsewhere has too; or empty.
  std::string shared_by(const torch::nn::Module& module) const {
    std::map<const void*, std::size_t> within;
    for (const auto* part : parts_of(module)) {
      for (const auto& item : part->named_parameters(/*recurse=*/false)) {
        if (item.value().defined()) ++within[item.value().unsafeGetTensorImpl()];
      }
    }
    for (const auto& item : module.named_parameters()) {
      const auto* const tensor = item.value().unsafeGetTensorImpl();
      if (holders_.at(tensor) > within[tensor]) return item.key();
    }
    return {};
  }

 private:
  static std::set<const torch::nn::Module*> parts_of(const torch::nn::Module& module) {
    std::set<const torch::nn::Module*> parts{&module};
    for (const auto& part : module.modules(/*include_self=*/false)) parts.insert(part.get());
    return parts;
  }
  void add(const torch::nn::Module& module) {
    if (!seen_.insert(&module).second) return;
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      if (item.value().defined()) ++holders_[item.value().unsafeGetTensorImpl()];
    }
  }
  std::set<const torch::nn::Module*> seen_;
  std::map<const void*, std::size_t> holders_;  // modules, by TensorImpl
};

class Replacing {
 public:
  explicit Replacing(const torch::nn::Module& model) : sharing_(model) {}

  void visit(torch::nn::Module& module, const std::string& path) {
    if (!seen_.insert(&module).second) return;
    auto* const routed = dynamic_cast<RoutedBase*>(&module);
    if (routed != nullptr && routed->smp_stand_in) return;  // of a model wrapped before
    if (routed != nullptr && replaced(*routed, path)) return;
    const auto* const distributed = dynamic_cast<const DistributedModule*>(&module);
    if (distributed != nullptr && !distributed->sliced().empty()) {
      const auto type = routed != nullptr ? routed->smp_type_name() : module.name();
      rows.push_back({path, type, /*marked=*/true, {}, /*built=*/true});
    }
    for (const auto& child : module.named_children()) {
      visit(*child.value(), path.empty() ? child.key() : path + '.' + child.key());
    }
  }
  std::vector<ReplacementCandidate> rows;

 private:
  bool replaced(RoutedBase& routed, const std::string& path) {
    const auto type = routed.smp_type_name();
    const auto rule = rules().find(type);
    const bool marked = routed.smp_tensor_parallel.value_or(false);
    if (rule == rules().end()) {  // a container, of which the modules are asked, or an unknown leaf
      auto& module = routed.smp_module();
      const bool built = dynamic_cast<const DistributedModule*>(&module) != nullptr;
      if (marked && !built && module.children().empty() && !module.parameters().empty()) {
        rows.push_back({path, type, marked, "no distributed implementation is registered"});
      }
      return false;
    }
    auto reason = obstacle(routed.smp_module(), rule->second);
    if (!marked) reason = reason.empty() ? "not marked" : "not marked, and " + reason;
    rows.push_back({path, type, marked, std::move(reason)});
    if (!rows.back().obstacle.empty()) return false;
    routed.smp_stand_in = rule->second.make(routed.smp_module());
    return true;
  }

  std::string obstacle(const torch::nn::Module& module, const ReplacementRule& rule) const {
    const auto shared = sharing_.shared_by(module);
    if (!shared.empty()) return "it shares parameter '" + shared + "' with another module";
    for (const auto& item : module.named_parameters()) {
      if (item.value().is_meta()) {
        return "parameter '" + item.key() +
               "' has no values yet (smp::delay_param_initialization); build it outside of that "
               "scope, or use the distributed module itself";
      }
    }
    return rule.obstacle(module, tp::TensorParallel::current().size());
  }

  const Sharing sharing_;
  std::set<const torch::nn::Module*> seen_;
};

}  // namespace

void register_replacement(const std::type_info& impl, ReplacementRule rule) {
  rules().insert_or_assign(detail::type_name(impl), std::move(rule));
}

std::vector<ReplacementCandidate> replace_marked_modules(torch::nn::Module& model) {
  if (tp::TensorParallel::current().size() == 1) return {};
  Replacing replacing(model);
  replacing.visit(model, "");
  return std::move(replacing.rows);
}

}  // namespace smp
