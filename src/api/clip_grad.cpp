// api/clip_grad.cpp: norms of all ranks in the order of one process, then LibTorch's formula.
#include "smp/clip_grad.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <unordered_set>

#include "api/exchange.h"
#include "api/placed_parameters.h"
#include "api/runtime.h"
#include "base/check.h"
#include "smp/distributed_model.h"
#include "tp/sliced_parameters.h"

namespace smp {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What one rank knows: a norm for each gradient that it holds.
struct Share {
  double max_norm = 0;
  double norm_type = 0;
  bool error_if_nonfinite = false;
  std::vector<std::int64_t> places;   ///< in the list of parameters
  std::vector<std::int64_t> strange;  ///< of these, those that no placed model has
  std::vector<at::Tensor> norms;
};

/// Of one replica: what it owns.
struct OwnedNorms {
  std::vector<std::int64_t> places;
  std::vector<at::Tensor> norms;
};

/// One gradient of any rank.
struct Norm {
  std::int64_t place;
  int rank;
  at::Tensor value;
};

void refuse_in_step(const char* what) {
  const auto* runtime = Runtime::find_current();
  SMP_REQUIRE(runtime == nullptr || !Runtime::current().in_step(), what,
              " inside a step; call it after the step, on every rank");
}

std::vector<at::Tensor> parameters_of(ModelList models) {
  std::vector<at::Tensor> all;
  std::unordered_set<const void*> seen;
  for (const DistributedModelBase& model : models) {
    for (auto& parameter : model.parameters()) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) all.push_back(parameter);
    }
  }
  return all;
}

at::Tensor norm_of(const at::Tensor& gradient, double norm_type) {
  const auto values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
  if (norm_type != kInfinity) return values.norm(norm_type);
  return values.numel() == 0 ? at::zeros({}, values.options()) : values.abs().max();
}

at::Tensor total_of(const std::vector<at::Tensor>& norms, double norm_type) {
  if (norm_type == 0) return at::full({}, static_cast<double>(norms.size()), at::kFloat);
  if (norms.size() == 1) return norms[0];
  const auto all = at::stack(norms);
  return norm_type == kInfinity ? all.max() : all.norm(norm_type);
}

Share own_share(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                bool error_if_nonfinite) {
  Share share{max_norm, norm_type, error_if_nonfinite, {}, {}, {}};
  auto* runtime = Runtime::find_current();
  const auto models = runtime == nullptr ? std::nullopt : std::optional<PlacedParameters>(*runtime);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& gradient = parameters[i].grad();
    if (!gradient.defined()) continue;
    share.places.push_back(static_cast<std::int64_t>(i));
    if (models && !models->known(parameters[i])) share.strange.push_back(share.places.back());
    share.norms.push_back(norm_of(gradient.detach(), norm_type));
  }
  return share;
}

/// Of what replicas have not averaged each would get a norm of its own.
void refuse_of_one_replica(const Share& own, const std::vector<at::Tensor>& parameters) {
  auto* runtime = Runtime::find_current();
  if (runtime == nullptr || runtime->num_replicas() == 1) return;
  SMP_REQUIRE_AS(UnsupportedError, own.strange.empty(), "smp::clip_grad_norm_: tensor ",
                 own.strange.front(),
                 " of the list belongs to no smp::DistributedModel, and its gradient is not "
                 "averaged over the ",
                 runtime->num_replicas(), " replicas; register it as a parameter of a module");
  SMP_REQUIRE(!runtime->replica_gradients().apart(parameters),
              "smp::clip_grad_norm_ after a step under no_sync(): gradients of replicas differ, "
              "and so would what they are scaled by; make the last step before it without "
              "no_sync()");
}

/// Norms of slices become those of whole parameters: all ranks that share them call it.
void join_slices(Share& own, const std::vector<at::Tensor>& parameters) {
  auto* runtime = Runtime::find_current();
  if (runtime == nullptr || runtime->topology().tp_size() == 1) return;
  std::vector<std::size_t> sliced;  // numbers of norms
  for (const auto* model : runtime->models()) {
    const tp::SlicedParameters slices(model->base_module());
    for (std::size_t i = 0; i < own.places.size(); ++i) {
      const auto& parameter = parameters[static_cast<std::size_t>(own.places[i])];
      if (slices.contain(parameter)) sliced.push_back(i);
    }
  }
  std::vector<at::Tensor> norms;
  for (const auto i : sliced) norms.push_back(own.norms[i]);
  const auto all = gather_values(runtime->slice_holders(), norms, "norms of slices");
  for (const auto& others : all) {
    SMP_REQUIRE(others.size() == sliced.size(), "smp::clip_grad_norm_: of ", sliced.size(),
                " slices of distributed modules that have gradients here, another "
                "tensor-parallel rank has gradients of ",
                others.size(), "; call it alike on every rank, after the same steps");
  }
  for (std::size_t k = 0; k < sliced.size(); ++k) {
    std::vector<at::Tensor> parts;
    for (const auto& others : all) parts.push_back(others[k]);
    own.norms[sliced[k]] = total_of(parts, own.norm_type);
  }
}

/// Norms of what other replicas own alone, and so have the gradients of, become ours: those of
/// slices come from replicas of the slice. All replicas call it.
void join_shards(Share& own, const std::vector<at::Tensor>& parameters) {
  auto* runtime = Runtime::find_current();
  if (runtime == nullptr || !runtime->optimizer_shards().active()) return;
  const auto& shards = runtime->optimizer_shards();
  for (const bool slices : {false, true}) {
    OwnedNorms owned;
    for (std::size_t i = 0; i < own.places.size(); ++i) {
      const auto& parameter = parameters[static_cast<std::size_t>(own.places[i])];
      if (!shards.is_here(parameter) || shards.is_slice(parameter) != slices) continue;
      owned.places.push_back(own.places[i]);
      owned.norms.push_back(own.norms[i]);
    }
    const auto replicas = slices ? runtime->slice_replicas() : runtime->replicas();
    const auto all = gather_values(replicas, owned, "norms of sharded gradients");
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (static_cast<int>(r) == replicas.rank()) continue;
      own.places.insert(own.places.end(), all[r].places.begin(), all[r].places.end());
      own.norms.insert(own.norms.end(), all[r].norms.begin(), all[r].norms.end());
    }
  }
}

std::vector<Share> all_shares(const Share& own) {
  auto* runtime = Runtime::find_current();
  if (runtime == nullptr) return {own};
  const auto shares = gather_values(runtime->communicator(Group::kPp), own, "smp::clip_grad_norm_");
  for (const auto& share : shares) {
    SMP_REQUIRE(share.max_norm == shares[0].max_norm && share.norm_type == shares[0].norm_type &&
                    share.error_if_nonfinite == shares[0].error_if_nonfinite,
                "smp::clip_grad_norm_: ranks pass different options, max_norm ", shares[0].max_norm,
                " and ", share.max_norm, ", norm_type ", shares[0].norm_type, " and ",
                share.norm_type, "; call it alike on every rank");
  }
  return shares;
}

void refuse_shared_strangers(const std::vector<Share>& shares) {
  std::map<std::int64_t, std::size_t> holders;
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    for (const auto place : shares[rank].strange) {
      const auto [other, first] = holders.emplace(place, rank);
      SMP_REQUIRE(first, "smp::clip_grad_norm_: tensor ", place,
                  " of the list belongs to no smp::DistributedModel and has gradients on stages ",
                  other->second, " and ", rank,
                  ", so that it has no one gradient; register it as a parameter of a module");
    }
  }
}

/// In the order of `parameters`, as one process sums them.
std::vector<at::Tensor> in_order(const std::vector<Share>& shares) {
  std::vector<Norm> norms;
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    for (std::size_t i = 0; i < shares[rank].norms.size(); ++i) {
      norms.push_back({shares[rank].places[i], static_cast<int>(rank), shares[rank].norms[i]});
    }
  }
  std::stable_sort(norms.begin(), norms.end(),
                   [](const Norm& a, const Norm& b) { return a.place < b.place; });
  std::vector<at::Tensor> values;
  for (auto& norm : norms) values.push_back(std::move(norm.value));
  return values;
}

}  // namespace

double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                       bool error_if_nonfinite) {
  refuse_in_step("clip_grad_norm_");
  const at::NoGradGuard no_grad;
  auto own = own_share(parameters, max_norm, norm_type, error_if_nonfinite);
  refuse_of_one_replica(own, parameters);
  join_slices(own, parameters);
  join_shards(own, parameters);
  const auto shares = all_shares(own);
  refuse_shared_strangers(shares);
  const auto norms = in_order(shares);
  if (norms.empty()) return 0;
  const auto total = total_of(norms, norm_type);
  const double norm = total.item<double>();
  SMP_REQUIRE(!error_if_nonfinite || std::isfinite(norm), "the total norm of order ", norm_type,
              " of the gradients is ", norm,
              ", so they cannot be clipped; pass error_if_nonfinite = false to scale them anyway");
  const auto scale = at::clamp(max_norm / (total + 1e-6), std::nullopt, 1.0);
  for (const auto& parameter : parameters) {
    const auto& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    (gradient.is_sparse() ? gradient.detach()._values() : gradient.detach()).mul_(scale);
  }
  return norm;
}

double clip_grad_norm_(ModelList models, double max_norm, double norm_type,
                       bool error_if_nonfinite) {
  return clip_grad_norm_(parameters_of(models), max_norm, norm_type, error_if_nonfinite);
}

double clip_grad_norm_(DistributedModelBase& model, double max_norm, double norm_type,
                       bool error_if_nonfinite) {
  return clip_grad_norm_(model.parameters(), max_norm, norm_type, error_if_nonfinite);
}

void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  refuse_in_step("clip_grad_value_");
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    const auto& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse()) {  // the entries of one element are clamped as their sum
      auto summed = gradient.detach().coalesce().clone();
      summed._values().clamp_(-clip_value, clip_value);
      at::Tensor(parameter).mutable_grad() = summed;
    } else {
      gradient.detach().clamp_(-clip_value, clip_value);
    }
  }
}

void clip_grad_value_(ModelList models, double clip_value) {
  clip_grad_value_(parameters_of(models), clip_value);
}

void clip_grad_value_(DistributedModelBase& model, double clip_value) {
  clip_grad_value_(model.parameters(), clip_value);
}

bool detail::any_placed(const std::vector<at::Tensor>& parameters) noexcept {
  auto* runtime = Runtime::find_current();
  if (runtime == nullptr) return false;
  if (parameters.empty()) {  // the share of a rank that owns nothing: the others wait for it
    const auto& all = runtime->models();
    const bool shared = runtime->topology().pp_size() > 1 || runtime->optimizer_shards().active();
    return shared &&
           std::any_of(all.begin(), all.end(), [](auto* model) { return model->partitioned(); });
  }
  const PlacedParameters models(*runtime);
  return std::any_of(parameters.begin(), parameters.end(), [&](const at::Tensor& parameter) {
    return parameter.defined() && models.known(parameter);
  });
}

}  // namespace smp
