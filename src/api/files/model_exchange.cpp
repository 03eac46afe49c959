// api/files/model_exchange.cpp: who owns what, told to checkpoints::Exchange.
#include "api/files/model_exchange.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "api/model/model_state.h"
#include "api/optimizer/whole_tensors.h"
#include "api/rank/exchange.h"
#include "api/rank/rank.h"
#include "base/check.h"
#include "checkpoint/load_plan.h"
#include "d2d/tensors/tensor_data.h"
#include "deferred/delayed_tensors.h"
#include "deferred/later_values.h"
#include "server/modules/foreign_parameters.h"

namespace smp {
namespace {

using checkpoints::Exchange;
using checkpoints::NamedTensor;
using checkpoints::Offer;
using checkpoints::TensorInfo;

/// Returns an offer of the tensors whose values this rank holds, under their first names. A slice
/// is offered as the whole, which all ranks that hold slices of it join when it is read.
Offer owned(const DistributedModelBase& model, const std::vector<NamedTensor>& tensors,
            const std::shared_ptr<const WholeTensors>& whole) {
  Offer offer;
  std::vector<at::Tensor> values;
  for (const auto& [tensor, names] : tensors) {
    // One that is not placed owns all, but for modules of a placed model.
    if (!model.owns(tensor) || server::is_foreign(tensor)) continue;
    if (tensor.layout() != at::kStrided) offer.problem = names[0] + " is no dense tensor";
    offer.tensors.push_back({names[0], tensor.scalar_type(), whole->sizes(tensor)});
    values.push_back(tensor);
  }
  offer.read = [values = std::move(values), whole](std::size_t i) {
    return whole->joined(values[i], values[i]);
  };
  return offer;
}

void require_values(const std::vector<NamedTensor>& tensors, const char* what) {
  for (const auto& [tensor, names] : tensors) {
    SMP_REQUIRE(!deferred::is_delayed(tensor), what, ": ", deferred::no_values_yet(names[0]));
  }
}

/// Returns an error if a tensor was registered after placement, because no rank knows its owner;
/// else nullptr.
std::exception_ptr registered_late(const std::vector<NamedTensor>& tensors,
                                   const Exchange& exchange, const char* what) {
  std::unordered_set<std::string> placed;
  for (const auto& info : exchange.tensors()) placed.insert(info.name);
  for (const auto& [tensor, names] : tensors) {
    if (placed.count(names[0]) > 0) continue;
    return std::make_exception_ptr(UsageError(base::concat(
        what, ": '", names[0],
        "' was registered after the model was placed, so that no other rank knows of it; register "
        "parameters, buffers and modules in constructors")));
  }
  return nullptr;
}

bool is_target(const Rank& rank, int pp_rank) {
  return pp_rank == kAllPpRanks || rank.pp_rank() == PpRank(pp_rank);
}

void check_target(const Rank& rank, int pp_rank, const char* what) {
  const int stages = rank.groups().of(Group::kPp).size();
  SMP_REQUIRE(
      pp_rank == kAllPpRanks || (pp_rank >= 0 && pp_rank < stages) || rank.parts().plan_request,
      what, " on pp_rank ", pp_rank, ", but there are ", stages, " stages");
}

/// Whoever takes part in joining slices, of this pipeline and of those that hold the others, goes
/// on, or nobody does.
void agree_everywhere(const Rank& rank, const Exchange& exchange,
                      const std::exception_ptr& own_problem, bool sliced, const char* what) {
  std::exception_ptr problem;
  try {
    exchange.agree(own_problem);
  } catch (const PeerLostError&) {
    throw;
  } catch (const std::exception&) {
    problem = std::current_exception();
  }
  if (sliced) checkpoints::agree(rank.groups().slice_holders(), problem, what);
  if (problem) std::rethrow_exception(problem);
}

/// The memory of tensors that a load writes one after the other.
class Memory {
 public:
  explicit Memory(const std::vector<NamedTensor>& targets) {
    for (const auto& [tensor, names] : targets) {
      if (!tensor.has_storage()) continue;
      storages_.insert(tensor.storage().unsafeGetStorageImpl());
      for (const auto& name : names) targets_.emplace(name, tensor);
    }
  }
  /// True if `value` may have changed when it is read for the tensor called `name`: it shares
  /// memory with the tensors, and is not that very one.
  bool is_written_before(const std::string& name, const at::Tensor& value) const {
    if (!value.has_storage() || storages_.count(value.storage().unsafeGetStorageImpl()) == 0) {
      return false;
    }
    const auto own = targets_.find(name);
    return own == targets_.end() || !own->second.is_alias_of(value) ||
           own->second.storage_offset() != value.storage_offset() ||
           own->second.sizes() != value.sizes() || own->second.strides() != value.strides();
  }

 private:
  std::unordered_set<const void*> storages_;
  std::unordered_map<std::string, at::Tensor> targets_;  // by name
};

/// A load into a model, by all ranks that hold a part of it. What has values is written at once;
/// what has none yet gets the values of now when the model is placed, in the order of the program.
class ModelLoad {
 public:
  /// Checks everything, on all ranks.
  ModelLoad(DistributedModelBase& model, const d2d::Communicator& ranks, Offer offer, bool strict,
            const char* what)
      : model_(model),
        tensors_(checkpoints::tensors_of(model.base_module())),
        whole_(Rank::current(), model),
        source_(base::concat(what, ": ", offer.source)),
        exchange_(std::in_place, ranks, offer, what) {
    exchange_->agree(checkpoints::attempt([&] {
      if (strict) require_given(what);
      plan_ =
          checkpoints::plan_load(whole_.shapes(tensors_), exchange_->tensors(), strict, source_);
      require_writable(what);
    }));
    exchange_->require_same(same_values(strict));
  }

  const LoadResult& result() const { return plan_.result; }
  /// Says what is lost by types that hold less; before write().
  void warn_of_narrowing() const {
    checkpoints::warn_of_narrowing(tensors_, exchange_->tensors(), plan_, source_);
  }
  /// Returns a hash of what is loaded into parameters; replicas have buffers of their own.
  std::uint64_t fingerprint() const {
    std::unordered_set<const void*> parameters;
    for (const auto& parameter : model_.base_module().parameters()) {
      parameters.insert(parameter.unsafeGetTensorImpl());
    }
    std::vector<bool> chosen(exchange_->tensors().size());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const bool counts = parameters.contains(tensors_[i].tensor.unsafeGetTensorImpl());
      if (counts && plan_.sources[i]) chosen[*plan_.sources[i]] = true;
    }
    return exchange_->fingerprint(chosen);
  }

  /// Returns true if values wait for the model's placement.
  bool write() {
    for (const auto& named : tensors_) deferred::fill_as_other_views(named.tensor);
    const auto later =
        targets([](const at::Tensor& tensor) { return deferred::is_delayed(tensor); });
    std::optional<Exchange> kept;
    if (!later.empty()) kept = exchange_->kept(wanted(later));
    const auto now = targets([](const at::Tensor& tensor) {
      // Copies of small buffers take them too.
      return !deferred::is_delayed(tensor) && !server::is_foreign(tensor);
    });
    const auto overlapping = sharing_memory(now);
    const auto place = [&](std::size_t source) {
      const auto& target = now.at(source);
      const bool whole = !overlapping.contains(source) && !whole_.is_slice(target);
      return whole ? checkpoints::memory_for(exchange_->tensors()[source], target) : at::Tensor();
    };
    Targets held_back;  // values of tensors that share memory: the model's order counts
    const auto take = [&](std::size_t source, const at::Tensor& values) {
      const auto& target = now.at(source);
      const auto own = whole_.own_part(target, values);
      if (overlapping.contains(source)) {
        held_back.emplace(source, d2d::independent_copy(own));
      } else {
        checkpoints::store(target, own);
      }
    };
    exchange_->deliver(wanted(now), take, place);
    for (const std::size_t source : in_order(held_back)) {
      checkpoints::store(now.at(source), held_back.at(source));
    }
    for (const std::size_t source : in_order(later)) {
      const auto& target = later.at(source);
      deferred::LaterValues values(target, exchange_->tensors()[source].dtype);
      const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
      checkpoints::store(target, values.take_stand_in());
      waiting_.emplace(source, Waiting{target, std::move(values)});
    }
    exchange_ = std::move(kept);
    return exchange_.has_value();
  }

  /// Brings what waits to the ranks that need it.
  void bring() {
    std::vector<bool> needed(exchange_->tensors().size());
    for (const auto& [source, waiting] : waiting_) needed[source] = waiting.values.needed();
    exchange_->deliver(needed, [&](std::size_t source, const at::Tensor& values) {
      const auto& [target, later] = waiting_.at(source);
      later.give(whole_.own_part(target, values));
      if (model_.partitioned()) later.fill_target();
    });
  }

 private:
  using Targets = std::map<std::size_t, at::Tensor>;  // by source
  struct Waiting {
    at::Tensor target;
    deferred::LaterValues values;
  };

  template <class Wants>
  Targets targets(Wants&& wants) const {
    Targets chosen;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const auto& source = plan_.sources[i];
      if (source && wants(tensors_[i].tensor)) chosen.emplace(*source, tensors_[i].tensor);
    }
    return chosen;
  }
  /// Returns the sources of `some` in the order of the model's tensors.
  std::vector<std::size_t> in_order(const Targets& some) const {
    std::vector<std::size_t> sources;
    for (const auto& source : plan_.sources) {
      if (source && some.contains(*source)) sources.push_back(*source);
    }
    return sources;
  }
  /// Returns the sources of those that have a storage in common with others.
  static std::set<std::size_t> sharing_memory(const Targets& targets) {
    std::map<const void*, std::vector<std::size_t>> by_storage;
    for (const auto& [source, target] : targets) {
      if (target.has_storage()) {
        by_storage[target.storage().unsafeGetStorageImpl()].push_back(source);
      }
    }
    std::set<std::size_t> shared;
    for (const auto& [storage, sources] : by_storage) {
      if (sources.size() > 1) shared.insert(sources.begin(), sources.end());
    }
    return shared;
  }
  std::vector<bool> wanted(const Targets& targets) const {
    std::vector<bool> wanted(exchange_->tensors().size());
    for (const auto& [source, target] : targets) wanted[source] = true;
    return wanted;
  }

  /// Of a replica without any values not the names are what is wrong.
  void require_given(const char* what) const {
    const bool none = exchange_->tensors().empty() && !tensors_.empty();
    const auto& rank = Rank::current();
    SMP_REQUIRE(!none || rank.groups().num_replicas() == 1, "rank ", rank.topology().rank(), ": ",
                what,
                ": no rank of this replica was given any values, and nothing was loaded; "
                "every replica is given the same: read the file on all ranks, or on one of each "
                "replica (smp::mp_rank() == 0)");
  }

  void require_writable(const char* what) const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const auto& [tensor, names] = tensors_[i];
      if (!plan_.sources[i] || server::is_foreign(tensor) || deferred::is_delayed(tensor)) continue;
      const auto problem = checkpoints::problem_with_target(names[0], tensor);
      SMP_REQUIRE(problem.empty(), what, ": ", problem, "; nothing was loaded");
    }
  }

  /// Returns what is loaded into each tensor: under one of its names, or strictly under all.
  std::vector<checkpoints::SameValues> same_values(bool strict) const {
    std::vector<checkpoints::SameValues> groups;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!plan_.sources[i]) continue;
      groups.push_back({strict ? plan_.names[i] : std::vector<std::size_t>{*plan_.sources[i]},
                        tensors_[i].tensor.scalar_type()});
    }
    return groups;
  }

  DistributedModelBase& model_;
  std::vector<NamedTensor> tensors_;
  WholeTensors whole_;
  std::string source_;                // for messages
  std::optional<Exchange> exchange_;  // of what is offered, then of what waits
  checkpoints::LoadPlan plan_;
  std::map<std::size_t, Waiting> waiting_;  // by source
};

}  // namespace

Rank& between_steps(const char* what) {
  auto& rank = Rank::current();
  SMP_REQUIRE(!rank.in_step(), what,
              " inside a step; call it before or after, on every rank of the pipeline");
  return rank;
}

d2d::Communicator model_holders(const Rank& rank) {
  return rank.groups().of(rank.topology().tp_size() > 1 ? Group::kMp : Group::kPp);
}

void agree_with_replicas(const Rank& rank, const std::exception_ptr& problem,
                         const std::function<std::uint64_t()>& fingerprint, const char* what) {
  if (rank.groups().num_replicas() == 1 || rank.config().initial_values != "equal") {
    if (problem) std::rethrow_exception(problem);
    return;
  }
  std::uint64_t own = 0;
  auto own_problem = problem;
  if (!problem) own_problem = checkpoints::attempt([&] { own = fingerprint(); });
  const auto replicas = rank.groups().replicas();
  checkpoints::agree(replicas, own_problem, what);
  const auto all = gather_values(replicas, own, what);
  for (std::size_t i = 1; i < all.size(); ++i) {
    SMP_REQUIRE(all[i] == all[0], what, ": the replicas of ranks ", replicas.members()[0], " and ",
                replicas.members()[static_cast<int>(i)],
                " load different parameters, and would be trained apart; give all replicas the "
                "same, or set initial_values = first if they are to differ. Nothing was loaded");
  }
}

void gather_model(const DistributedModelBase& model, const std::vector<NamedTensor>& tensors,
                  int pp_rank, const std::exception_ptr& problem, const char* what,
                  const std::function<void(std::size_t, const at::Tensor&)>& take) {
  auto& rank = between_steps(what);
  check_target(rank, pp_rank, what);
  require_values(tensors, what);
  std::unordered_map<std::string, std::size_t> number;
  for (std::size_t i = 0; i < tensors.size(); ++i) number.emplace(tensors[i].names[0], i);
  const auto whole = std::make_shared<const WholeTensors>(rank, model);
  Exchange exchange(rank.groups().of(Group::kPp), owned(model, tensors, whole), what);
  agree_everywhere(rank, exchange, problem ? problem : registered_late(tensors, exchange, what),
                   whole->any(), what);
  const std::vector<bool> wanted(tensors.size(), is_target(rank, pp_rank));
  exchange.deliver(wanted, [&](std::size_t i, const at::Tensor& values) {
    take(number.at(exchange.tensors()[i].name), values);
  });
}

LoadResult load_model(DistributedModelBase& model, Offer offer, bool strict, const char* what) {
  auto& rank = between_steps(what);
  std::shared_ptr<ModelLoad> load;
  const auto problem = checkpoints::attempt([&] {
    load = std::make_shared<ModelLoad>(model, model_holders(rank), std::move(offer), strict, what);
  });
  agree_with_replicas(
      rank, problem, [&] { return load->fingerprint(); }, what);
  if (rank.topology().rank() == 0) load->warn_of_narrowing();
  if (load->write()) before_values(model, [load] { load->bring(); });
  return load->result();
}

Offer offer_of(StateDict dict, const std::vector<NamedTensor>& targets) {
  const Memory memory(targets);
  Offer offer;
  offer.source = "the dict";
  std::vector<at::Tensor> values;
  for (const auto& [name, tensor] : dict) {
    offer.tensors.push_back(TensorInfo::of(name, tensor));
    if (offer.problem.empty()) offer.problem = problem_with_values(name, tensor);
    const bool may_change = offer.problem.empty() && memory.is_written_before(name, tensor);
    values.push_back(may_change ? d2d::independent_copy(tensor) : tensor);
  }
  offer.read = [values = std::move(values)](std::size_t i) { return values[i]; };
  return offer;
}

std::string problem_with_values(const std::string& name, const at::Tensor& tensor) {
  if (deferred::is_delayed(tensor)) return deferred::no_values_yet(name);
  if (server::is_foreign(tensor)) {
    return name +
           " lives on another rank and has no values here; ask the smp::DistributedModel "
           "for its state_dict(), on every rank";
  }
  return checkpoints::problem_with_values(name, tensor);
}

}  // namespace smp
