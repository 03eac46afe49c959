// tp/replacement/replacement.cpp: the four conditions of the paper (§5.2), from the root down.
#include "smp/tp/replacement.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/check.h"
#include "module/path_below.h"
#include "module/replace_contents.h"
#include "smp/detail/routed.h"
#include "smp/nn/attention_core.h"
#include "smp/nn/linear.h"
#include "smp/nn/rms_norm.h"
#include "smp/tp/distributed_decoder_layer.h"
#include "smp/tp/distributed_embedding.h"
#include "smp/tp/distributed_gated_mlp.h"
#include "smp/tp/distributed_grouped_query_attention.h"
#include "smp/tp/distributed_layer_norm.h"
#include "smp/tp/distributed_linear.h"
#include "smp/tp/distributed_mixture_of_experts.h"
#include "tp/group/tensor_parallel.h"
#include "tp/replacement/dropped_parameters.h"

namespace smp {
namespace {

/// Replacement rules by the name that RoutedBase::smp_type_name() gives.
using Rules = std::map<std::string, ReplacementRule>;

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Returns the tensors that a module itself computes with: its parameters, and what the program has
/// put in their places (`head->weight = table->weight`), which is registered elsewhere.
NamedTensors tensors_in(const torch::nn::Module& module) {
  NamedTensors all;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    const bool known = std::any_of(all.begin(), all.end(),
                                   [&](const auto& other) { return other.second.is_same(tensor); });
    if (tensor.defined() && !known) all.emplace_back(name, tensor);
  };
  for (const auto& item : module.named_parameters(/*recurse=*/false)) add(item.key(), item.value());
  if (const auto* const linear = dynamic_cast<const torch::nn::LinearImpl*>(&module)) {
    add("weight", linear->weight);
    add("bias", linear->bias);
  } else if (const auto* const table = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module)) {
    add("weight", table->weight);
  } else if (const auto* const norm = dynamic_cast<const torch::nn::LayerNormImpl*>(&module)) {
    add("weight", norm->weight);
    add("bias", norm->bias);
  } else if (const auto* const rms = dynamic_cast<const nn::RMSNormImpl*>(&module)) {
    add("weight", rms->weight);
  }
  return all;
}

/// Returns that two parameters of `module` are one tensor, which would be cut for each; or an empty
/// text.
std::string registered_twice(const torch::nn::Module& module) {
  std::map<const void*, std::string> names;  // by TensorImpl
  const auto twice = [&](const std::string& path, const torch::nn::Module& part) {
    for (const auto& [name, tensor] : tensors_in(part)) {
      const auto own = path_below(path, name);
      const auto [first, is_new] = names.emplace(tensor.unsafeGetTensorImpl(), own);
      if (is_new) continue;
      return base::concat("its parameters '", first->second, "' and '", own, "' are one tensor");
    }
    return std::string();
  };
  auto found = twice("", module);
  for (const auto& part : module.named_modules("", /*include_self=*/false)) {
    if (found.empty()) found = twice(part.key(), *part.value());
  }
  return found;
}

/// A rule of the library's: its modules cut each parameter by itself.
template <class Original, class Distributed>
void add_rule(Rules& rules) {
  ReplacementHooks<Original, Distributed> hooks;
  hooks.obstacle = [](const Original& original, int ranks) {
    const auto twice = registered_twice(original);
    return twice.empty() ? Distributed::obstacle(original, ranks) : twice;
  };
  rules.emplace(detail::type_name(typeid(Original)),
                replacement_rule<Original, Distributed>(hooks));
}

Rules& rules() {
  static Rules all = [] {
    Rules own;
    add_rule<torch::nn::LinearImpl, nn::DistributedLinearImpl>(own);
    add_rule<nn::LinearImpl, nn::DistributedLinearImpl>(own);
    add_rule<torch::nn::EmbeddingImpl, nn::DistributedEmbeddingImpl>(own);
    add_rule<torch::nn::LayerNormImpl, nn::DistributedLayerNormImpl>(own);
    add_rule<nn::GatedMlpImpl, nn::DistributedGatedMlpImpl>(own);
    add_rule<nn::GroupedQueryAttentionImpl, nn::DistributedGroupedQueryAttentionImpl>(own);
    add_rule<nn::MixtureOfExpertsImpl, nn::DistributedMixtureOfExpertsImpl>(own);
    add_rule<nn::DecoderLayerImpl, nn::DistributedDecoderLayerImpl>(own);
    return own;
  }();
  return all;
}

/// Counts the places at which each parameter and each module of a model is registered.
class Sharing {
 public:
  explicit Sharing(const torch::nn::Module& model) {
    for (const auto* part : parts_of(model)) count(*part, holders_);
  }
  /// Returns a parameter ("parameter 'weight'") or module ("module 'core'") of `module`, or of what
  /// is below it, that a module elsewhere has too; or empty.
  std::string shared_by(const torch::nn::Module& module) const {
    Holders within;
    for (const auto* part : parts_of(module)) count(*part, within);
    for (const auto& item : module.named_modules("", /*include_self=*/false)) {
      const auto* const part = item.value().get();
      if (holders_.at(part) > within.at(part)) return "module '" + item.key() + "'";
    }
    auto shared = shared_tensor(module, "", within);
    for (const auto& item : module.named_modules("", /*include_self=*/false)) {
      if (shared.empty()) shared = shared_tensor(*item.value(), item.key(), within);
    }
    return shared;
  }

 private:
  using Holders = std::map<const void*, std::size_t>;  // by TensorImpl, or module

  std::string shared_tensor(const torch::nn::Module& part, const std::string& path,
                            const Holders& within) const {
    for (const auto& [name, tensor] : tensors_in(part)) {
      const auto* const key = tensor.unsafeGetTensorImpl();
      if (holders_.at(key) > within.at(key)) return "parameter '" + path_below(path, name) + "'";
    }
    return {};
  }
  static std::set<const torch::nn::Module*> parts_of(const torch::nn::Module& module) {
    std::set<const torch::nn::Module*> parts{&module};
    for (const auto& part : module.modules(/*include_self=*/false)) parts.insert(part.get());
    return parts;
  }
  static void count(const torch::nn::Module& module, Holders& holders) {
    for (const auto& item : tensors_in(module)) ++holders[item.second.unsafeGetTensorImpl()];
    for (const auto& child : module.named_children()) ++holders[child.value().get()];
  }

  Holders holders_;
};

class Replacing {
 public:
  explicit Replacing(const torch::nn::Module& model) : sharing_(model) {}

  /// @param uneven  whether ranks call the module with other numbers of rows
  void visit(torch::nn::Module& module, const std::string& path, bool uneven = false) {
    if (!seen_.insert(&module).second) return;
    auto* const routed = dynamic_cast<RoutedBase*>(&module);
    if (routed != nullptr && routed->smp_stand_in) return;  // of a model wrapped before
    if (routed != nullptr && replaced(*routed, path, uneven)) return;
    const auto* const distributed = dynamic_cast<const DistributedModule*>(&module);
    if (distributed != nullptr && !distributed->sliced().empty()) {
      const auto type = routed != nullptr ? routed->smp_type_name() : module.name();
      rows.push_back({path, type, /*marked=*/true, {}, /*built=*/true});
    }
    const bool chooses = dynamic_cast<const nn::MixtureOfExpertsImpl*>(&module) != nullptr &&
                         !tp::TensorParallel::current().same_batch();
    for (const auto& child : module.named_children()) {
      visit(*child.value(), path_below(path, child.key()),
            uneven || (chooses && child.key() == "experts"));
    }
  }
  std::vector<ReplacementCandidate> rows;

 private:
  bool replaced(RoutedBase& routed, const std::string& path, bool uneven) {
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
    auto reason = uneven ? "it is of an expert, which each rank calls with another number of tokens"
                         : obstacle(routed.smp_module(), rule->second);
    if (!marked) reason = reason.empty() ? "not marked" : "not marked, and " + reason;
    rows.push_back({path, type, marked, std::move(reason)});
    if (!rows.back().obstacle.empty()) return false;
    refuse_marks_below(routed, path);
    routed.smp_stand_in = made(routed, path, rule->second);
    hand_over_marks(routed, *routed.smp_stand_in);
    take_over(routed.smp_module(), path, *routed.smp_stand_in);
    return true;
  }

  /// True if calls of `part` run in their own way, to be computed again, say.
  static bool is_wrapped(const torch::nn::Module& part) {
    const auto* const routed = dynamic_cast<const RoutedBase*>(&part);
    return routed != nullptr && routed->smp_wrapper != nullptr;
  }
  /// What runs calls of parts in its own way would be lost: a stand-in calls parts of its own. But
  /// a core has its counterpart there.
  static void refuse_marks_below(RoutedBase& routed, const std::string& path) {
    if (routed.smp_wrapper != nullptr) return;  // and so the calls of all in it
    for (const auto& item : routed.smp_module().named_modules("", /*include_self=*/false)) {
      if (dynamic_cast<const nn::AttentionCoreImpl*>(item.value().get()) != nullptr) continue;
      SMP_REQUIRE_AS(UnsupportedError, !is_wrapped(*item.value()), "module '",
                     path.empty() ? "<root>" : path, "' (", routed.smp_type_name(),
                     ") is spread over ranks as one, and its '", item.key(),
                     "' is marked by "
                     "smp::set_activation_checkpointing, which nothing would follow; mark '",
                     path.empty() ? "<root>" : path, "' itself, or do not spread it");
    }
  }

  static void hand_over_marks(RoutedBase& routed, StandIn& stand_in) {
    const auto parts = stand_in.module().named_modules("", /*include_self=*/false);
    for (const auto& item : routed.smp_module().named_modules("", /*include_self=*/false)) {
      const auto* const part = dynamic_cast<const RoutedBase*>(item.value().get());
      const auto* const counterpart = parts.find(item.key());
      if (part == nullptr || part->smp_wrapper == nullptr || counterpart == nullptr) continue;
      auto* const own = dynamic_cast<RoutedBase*>(counterpart->get());
      if (own != nullptr) own->smp_wrapper = part->smp_wrapper;
    }
  }

  static std::shared_ptr<StandIn> made(RoutedBase& routed, const std::string& path,
                                       const ReplacementRule& rule) {
    try {
      return rule.make(routed.smp_module());
    } catch (const UsageError& error) {
      throw UsageError(base::concat("module '", path.empty() ? "<root>" : path, "' (",
                                    routed.smp_type_name(),
                                    ") cannot be replaced as its rule says: ", error.what()));
    }
  }

  /// Puts a stand-in that has parameters or children of its own in the place of the original in the
  /// model.
  static void take_over(torch::nn::Module& original, const std::string& path, StandIn& stand_in) {
    auto& own = stand_in.module();
    own.train(original.is_training());
    const auto kept = tensors_of(own), known = tensors_of(original);
    // Children of the original would be placed by themselves, though nobody calls them any more.
    stand_in.in_tree = !original.children().empty() ||
                       !std::includes(known.begin(), known.end(), kept.begin(), kept.end());
    if (!stand_in.in_tree) return;
    for (const auto& item : original.named_parameters()) {
      if (kept.count(item.value().unsafeGetTensorImpl()) != 0) continue;
      tp::note_dropped(item.value(), path.empty() ? item.key() : path + '.' + item.key());
    }
    module::replace_contents(original, own);
  }
  static std::set<const void*> tensors_of(const torch::nn::Module& module) {
    std::set<const void*> tensors;
    for (const auto& tensor : module.parameters()) tensors.insert(tensor.unsafeGetTensorImpl());
    return tensors;
  }

  std::string obstacle(const torch::nn::Module& module, const ReplacementRule& rule) const {
    const auto shared = sharing_.shared_by(module);
    if (!shared.empty()) return "it shares " + shared + " with another module";
    return rule.obstacle(module, tp::TensorParallel::current().size());
  }

  const Sharing sharing_;
  std::set<const torch::nn::Module*> seen_;
};

}  // namespace

void detail::require_of_rule(bool holds, const std::type_info& original, const char* problem) {
  SMP_REQUIRE(holds, "replacement of ", type_name(original), ": ", problem);
}

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
