// api/optimizer/total_norm.cpp: each rank's norms are joined over slices, shards and stages, then
// summed as in one process.
#include "api/optimizer/total_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "api/model/placed_parameters.h"
#include "api/rank/exchange.h"
#include "api/rank/public_call.h"
#include "api/rank/rank.h"
#include "api/rank/session_parts.h"
#include "api/replicas/replicas.h"
#include "api/state/session_state.h"
#include "base/check.h"
#include "server/modules/foreign_parameters.h"
#include "smp/distributed_model.h"
#include "tp/slices/sliced_parameters.h"

namespace smp {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The options that all ranks must pass alike.
struct Passed {
  double max_norm = 0;
  double norm_type = 0;
  bool error_if_nonfinite = false;
};

/// NaN is like NaN.
bool alike(double own, double other) {
  return own == other || (std::isnan(own) && std::isnan(other));
}

/// Returns the difference in words; empty if the options are alike.
std::string difference(const Passed& own, const Passed& other) {
  if (alike(own.max_norm, other.max_norm) && alike(own.norm_type, other.norm_type) &&
      own.error_if_nonfinite == other.error_if_nonfinite) {
    return {};
  }
  return base::concat("ranks pass different options, max_norm ", own.max_norm, " and ",
                      other.max_norm, ", norm_type ", own.norm_type, " and ", other.norm_type,
                      ", error_if_nonfinite ", own.error_if_nonfinite, " and ",
                      other.error_if_nonfinite, "; call it alike on every rank");
}

/// The share of one rank: a norm for each tensor that it holds.
struct Share {
  Passed passed;
  std::vector<std::int64_t> places;   ///< numbers in the list of parameters
  std::vector<std::int64_t> strange;  ///< of these, those that no placed model has
  std::vector<at::Tensor> norms;
  std::string problem;  ///< why there is no norm: all stages say it together
};

/// The norms of one of the ranks that share slices.
struct SliceNorms {
  Passed passed;
  std::string problem;
  std::vector<at::Tensor> norms;
};

/// The norms of what one replica owns.
struct OwnedNorms {
  Passed passed;
  std::string problem;
  std::vector<std::int64_t> places;
  std::vector<at::Tensor> norms;
};

/// The norm of one tensor, from any rank.
struct Norm {
  std::int64_t place;
  int rank;
  at::Tensor value;
};

/// Returns the norm of one tensor. Narrower types are computed in float32, because their squares
/// overflow and their sums have three digits.
at::Tensor norm_of(const at::Tensor& tensor, double norm_type) {
  auto values = tensor.is_sparse() ? tensor.coalesce().values() : tensor;
  if (at::isReducedFloatingType(values.scalar_type())) values = values.to(at::kFloat);
  if (norm_type != kInfinity) return values.norm(norm_type);
  return values.numel() == 0 ? at::zeros({}, values.options()) : values.abs().max();
}

at::Tensor total_of(const std::vector<at::Tensor>& norms, double norm_type) {
  if (norm_type == 0) return at::full({}, static_cast<double>(norms.size()), at::kFloat);
  if (norms.size() == 1) return norms[0];
  const auto all = at::stack(norms);
  return norm_type == kInfinity ? all.max() : all.norm(norm_type);
}

/// Returns the tensor of a parameter that a norm is taken of; undefined: it has none here.
using TensorOf = at::Tensor (*)(const at::Tensor& parameter);

/// Return the gradient, or the value, of `parameter`; undefined: it has none here.
at::Tensor gradient_of(const at::Tensor& parameter) { return parameter.grad(); }
at::Tensor value_of(const at::Tensor& parameter) {
  const bool has_norm = parameter.is_floating_point() || parameter.is_complex();
  const bool counts = has_norm && !server::is_foreign(parameter);
  return counts ? parameter : at::Tensor();
}

Share own_share(const std::vector<at::Tensor>& parameters, const NormOptions& options,
                TensorOf tensor_of) {
  Share share{{options.max_norm, options.norm_type, options.error_if_nonfinite}, {}, {}, {}, {}};
  const auto* state = SessionState::find_current();
  const auto models = state == nullptr ? std::nullopt : std::optional<PlacedParameters>(*state);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto tensor = tensor_of(parameters[i]);
    if (!tensor.defined()) continue;
    share.places.push_back(static_cast<std::int64_t>(i));
    if (models && !models->known(parameters[i])) share.strange.push_back(share.places.back());
    share.norms.push_back(norm_of(tensor.detach(), options.norm_type));
  }
  return share;
}

/// Returns why replicas would get different norms, or an empty text: some tensors are not alike in
/// them.
/// @param gradients  true for norms of gradients, false for norms of values
std::string problem_of_replicas(const Share& own, const std::vector<at::Tensor>& parameters,
                                bool gradients) {
  const auto* session = SessionParts::find_current();
  if (session == nullptr || session->rank.groups().num_replicas() == 1) return {};
  if (!own.strange.empty()) {
    return base::concat("tensor ", own.strange.front(),
                        " of the list belongs to no smp::DistributedModel, so that each of ",
                        session->rank.groups().num_replicas(),
                        " replicas has its own; register it as a parameter of a module");
  }
  if (gradients && session->replicas.gradients().left_apart(parameters)) {
    return "after a step under no_sync() gradients of replicas differ, and so would their norms; "
           "make the last step before it without no_sync()";
  }
  return {};
}

/// Turns norms of slices into those of whole parameters; all ranks that share them call it.
void join_slices(Share& own, const std::vector<at::Tensor>& parameters) {
  const auto* session = SessionParts::find_current();
  if (session == nullptr || session->rank.topology().tp_size() == 1) return;
  std::vector<std::size_t> sliced;  // numbers of norms
  for (const auto* model : session->state.models()) {
    const tp::SlicedParameters slices(model->base_module());
    for (std::size_t i = 0; i < own.places.size(); ++i) {
      const auto& parameter = parameters[static_cast<std::size_t>(own.places[i])];
      if (slices.contain(parameter)) sliced.push_back(i);
    }
  }
  SliceNorms slices{own.passed, own.problem, {}};
  for (const auto i : sliced) slices.norms.push_back(own.norms[i]);
  const auto all = gather_values(session->rank.groups().slice_holders(), slices, "norms of slices");
  for (const auto& others : all) {
    const auto other_options = difference(all[0].passed, others.passed);
    if (!other_options.empty()) own.problem = other_options;
    if (own.problem.empty()) own.problem = others.problem;
    if (others.norms.size() != all[0].norms.size()) {
      own.problem = base::concat(
          "of ", all[0].norms.size(), " slices of distributed modules that count on one rank, ",
          others.norms.size(),
          " do on another tensor-parallel rank; call it alike on every rank, after the same steps");
    }
  }
  if (!own.problem.empty()) return;
  for (std::size_t k = 0; k < sliced.size(); ++k) {
    std::vector<at::Tensor> parts;
    for (const auto& others : all) parts.push_back(others.norms[k]);
    own.norms[sliced[k]] = total_of(parts, own.passed.norm_type);
  }
}

/// Adds the norms of what other replicas own alone, who have the gradients; those of slices come
/// from replicas of the slice. All replicas call it.
void join_shards(Share& own, const std::vector<at::Tensor>& parameters) {
  const auto* session = SessionParts::find_current();
  if (session == nullptr || !session->replicas.shards().active()) return;
  const auto& shards = session->replicas.shards();
  const auto& groups = session->rank.groups();
  const auto num_own = own.places.size();  // those of others, in lists of theirs, are put behind
  for (const bool slices : {false, true}) {
    OwnedNorms owned{own.passed, own.problem, {}, {}};
    for (std::size_t i = 0; i < num_own; ++i) {
      const auto& parameter = parameters.at(static_cast<std::size_t>(own.places[i]));
      if (!shards.is_here(parameter) || shards.is_slice(parameter) != slices) continue;
      owned.places.push_back(own.places[i]);
      owned.norms.push_back(own.norms[i]);
    }
    const auto replicas = slices ? groups.slice_replicas() : groups.replicas();
    const auto all = gather_values(replicas, owned, "norms of sharded gradients");
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (own.problem.empty()) own.problem = all[r].problem;
      if (own.problem.empty()) own.problem = difference(all[0].passed, all[r].passed);
      if (static_cast<int>(r) == replicas.rank()) continue;
      own.places.insert(own.places.end(), all[r].places.begin(), all[r].places.end());
      own.norms.insert(own.norms.end(), all[r].norms.begin(), all[r].norms.end());
    }
  }
}

std::vector<Share> all_shares(const Share& own, const char* caller) {
  const auto* rank = Rank::find_current();
  if (rank == nullptr) return {own};
  const auto shares = gather_values(rank->groups().of(Group::kPp), own, caller);
  for (const auto& share : shares) {
    const auto problem = difference(shares[0].passed, share.passed);
    SMP_REQUIRE(problem.empty(), caller, ": ", problem);
  }
  for (const auto& share : shares) {
    SMP_REQUIRE(share.problem.empty(), caller, ": ", share.problem);
  }
  return shares;
}

void refuse_shared_strangers(const std::vector<Share>& shares, const char* caller) {
  std::map<std::int64_t, std::size_t> holders;
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    for (const auto place : shares[rank].strange) {
      const auto [other, first] = holders.emplace(place, rank);
      SMP_REQUIRE(first, caller, ": tensor ", place,
                  " of the list belongs to no smp::DistributedModel and counts on stages ",
                  other->second, " and ", rank,
                  ", so that it is no one tensor; register it as a parameter of a module");
    }
  }
}

/// Returns the norms in the order of `parameters`, as one process sums them.
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

at::Tensor total_of_stages(const Share& own, const char* caller) {
  const auto shares = all_shares(own, caller);
  refuse_shared_strangers(shares, caller);
  const auto norms = in_order(shares);
  return norms.empty() ? at::Tensor() : total_of(norms, own.passed.norm_type);
}

/// Checks that the models of `parameters` are placed; before that every rank has all of them.
void require_placed(const std::vector<at::Tensor>& parameters, const char* caller) {
  const auto* state = SessionState::find_current();
  if (state == nullptr) return;
  const PlacedParameters models(*state);
  for (const auto& parameter : parameters) {
    if (!parameter.defined() || !models.known(parameter)) continue;
    SMP_REQUIRE(models.placed(parameter) || models.foreign(parameter), caller,
                " before a model was placed; call it after the first step that uses the model, or "
                "after its place()");
  }
}

}  // namespace

at::Tensor total_norm_of_gradients(const std::vector<at::Tensor>& parameters,
                                   const NormOptions& options) {
  const PublicCall call(options.caller);
  refuse_in_step(options.caller);
  const at::NoGradGuard no_grad;
  auto own = own_share(parameters, options, gradient_of);
  own.problem = problem_of_replicas(own, parameters, /*gradients=*/true);
  join_slices(own, parameters);
  join_shards(own, parameters);
  return total_of_stages(own, options.caller);
}

at::Tensor total_norm_of_values(const std::vector<at::Tensor>& parameters,
                                const NormOptions& options) {
  const PublicCall call(options.caller);
  refuse_in_step(options.caller);
  require_placed(parameters, options.caller);
  const at::NoGradGuard no_grad;
  auto own = own_share(parameters, options, value_of);
  own.problem = problem_of_replicas(own, parameters, /*gradients=*/false);
  join_slices(own, parameters);
  return total_of_stages(own, options.caller);
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

void refuse_in_step(const char* caller) {
  const auto* rank = Rank::find_current();
  SMP_REQUIRE(rank == nullptr || !rank->in_step(), caller,
              " inside a step; call it after the step, on every rank");
}

}  // namespace smp
