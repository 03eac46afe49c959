// api/files/model_exchange.cpp: who owns what, told to checkpoint::Exchange.
#include "api/files/model_exchange.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "api/optimizer/whole_tensors.h"
#include "api/rank/rank.h"
#include "base/check.h"
#include "checkpoint/load_plan.h"
#include "deferred/delayed_tensors.h"
#include "server/modules/foreign_parameters.h"

namespace smp {
namespace {

using checkpoint::Exchange;
using checkpoint::NamedTensor;
using checkpoint::Offer;
using checkpoint::TensorInfo;

/// Returns an offer of the tensors whose values this rank holds, under their first names. A slice
/// is offered as the whole, which all ranks that hold slices of it join when it is read.
Offer owned(const DistributedModelBase& model, const std::vector<NamedTensor>& tensors,
            const std::shared_ptr<const WholeTensors>& whole) {
  Offer offer;
  std::vector<at::Tensor> values;
  for (const auto& [tensor, names] : tensors) {
    if (!model.owns(tensor)) continue;
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
  if (sliced) checkpoint::agree(rank.groups().slice_holders(), problem, what);
  if (problem) std::rethrow_exception(problem);
}

/// A load that has been checked, and that may wait for the model's tensors to have values.
class PendingLoad {
 public:
  PendingLoad(DistributedModelBase& model, const d2d::Communicator& ranks, Offer offer, bool strict,
              const char* what)
      : source_(base::concat(what, ": ", offer.source)),
        tensors_(checkpoint::tensors_of(model.base_module())),
        whole_(Rank::current(), model),
        exchange_(ranks, std::move(offer), what),
        plan_(
            checkpoint::plan_load(whole_.shapes(tensors_), exchange_.tensors(), strict, source_)) {}

  const LoadResult& result() const { return plan_.result; }
  bool is_delayed() const {
    return std::any_of(tensors_.begin(), tensors_.end(),
                       [](const NamedTensor& named) { return deferred::is_delayed(named.tensor); });
  }

  void carry_out() {
    std::vector<bool> wanted(exchange_.tensors().size());
    std::vector<at::Tensor> targets(wanted.size());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const auto& source = plan_.sources[i];
      // Copies of small buffers take them too.
      if (!source || server::is_foreign(tensors_[i].tensor)) continue;
      wanted[*source] = true;
      targets[*source] = tensors_[i].tensor;
    }
    exchange_.deliver(wanted, [&](std::size_t source, const at::Tensor& values) {
      checkpoint::store(targets[source], whole_.own_part(targets[source], values));
    });
  }

 private:
  std::string source_;  // of the values, for messages
  std::vector<NamedTensor> tensors_;
  WholeTensors whole_;
  Exchange exchange_;
  checkpoint::LoadPlan plan_;
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
  const auto load =
      std::make_shared<PendingLoad>(model, model_holders(rank), std::move(offer), strict, what);
  if (load->is_delayed()) {
    model.on_placed([load] { load->carry_out(); });
  } else {
    load->carry_out();
  }
  return load->result();
}

Offer offer_of(StateDict dict) {
  Offer offer;
  offer.source = "the dict";
  std::vector<at::Tensor> values;
  for (const auto& [name, tensor] : dict) {
    offer.tensors.push_back(TensorInfo::of(name, tensor));
    values.push_back(tensor);
  }
  offer.read = [values = std::move(values)](std::size_t i) { return values[i]; };
  return offer;
}

}  // namespace smp
