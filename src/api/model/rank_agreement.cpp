// api/model/rank_agreement.cpp: hashes first; what they tell apart is then exchanged as text.
#include "api/model/rank_agreement.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <xxhash.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_set>
#include <utility>

#include "api/rank/agreement.h"
#include "api/rank/exchange.h"
#include "api/rank/rank.h"
#include "base/check.h"
#include "base/log.h"
#include "d2d/tensors/value_hash.h"
#include "deferred/delayed_tensors.h"
#include "module/path_below.h"
#include "server/modules/foreign_parameters.h"
#include "tp/slices/sliced_parameters.h"

namespace smp {
namespace {

struct Named {
  std::string name;
  at::Tensor tensor;
  bool buffer = false;
  std::uint64_t hash = 0;
};

std::vector<bool> placed_modules(const ModelDescription& model) {
  std::vector<bool> placed;
  for (std::size_t i = 0; i < model.modules.size(); ++i) {
    const auto* routed = model.routed[i];
    const int parent = model.tree.nodes[i].parent;
    placed.push_back(routed != nullptr ? routed->smp_place.placed()
                                       : parent >= 0 && placed[static_cast<std::size_t>(parent)]);
  }
  return placed;
}

std::vector<Named> tensors_of(const std::vector<const ModelDescription*>& models) {
  std::vector<Named> all;
  std::unordered_set<const void*> seen;
  const auto add = [&](const std::string& path, const auto& tensors, bool buffer) {
    for (const auto& item : tensors) {
      if (!item.value().defined()) continue;
      if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
      all.push_back({path_below(path, item.key()), item.value(), buffer});
    }
  };
  for (const auto* model : models) {
    const auto placed = placed_modules(*model);
    for (std::size_t i = 0; i < model->modules.size(); ++i) {
      if (placed[i]) continue;  // by another wrapper: one rank has its values
      const auto& path = model->tree.nodes[i].path;
      add(path, model->modules[i]->named_parameters(/*recurse=*/false), false);
      add(path, model->modules[i]->named_buffers(/*recurse=*/false), true);
    }
  }
  return all;
}

/// True if its values are in memory, in a form that can be read.
bool is_readable(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_meta() && !tensor.is_quantized() &&
         !deferred::is_delayed(tensor);
}

/// Returns a hash of type, shape and values; without the values if they are not in memory.
std::uint64_t hash_of(const at::Tensor& tensor) {
  std::uint64_t hash = XXH3_64bits(tensor.sizes().data(), tensor.sizes().size() * sizeof(long));
  hash = hash * 31 + static_cast<std::uint64_t>(tensor.scalar_type());
  if (!is_readable(tensor)) return hash;
  return d2d::value_hash(tensor, hash);
}

/// Returns a text for people, with enough to tell two tensors apart.
std::string text_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text.precision(9);
  text << c10::toString(tensor.scalar_type()) << tensor.sizes();
  if (tensor.layout() != at::kStrided || tensor.numel() == 0 || tensor.is_complex()) {
    return text.str();
  }
  const at::NoGradGuard no_grad;
  const auto values = tensor.detach().reshape({-1});
  text << ", first value " << values[0].item<double>() << ", 2-norm "
       << values.to(at::kDouble).norm().item<double>();
  return text.str();
}

/// As operator<< gives them; user code may refuse to print.
Facts printed(const std::vector<const ModelDescription*>& models) {
  Facts modules;
  for (const auto* model : models) {
    for (std::size_t i = 0; i < model->modules.size(); ++i) {
      std::ostringstream text;
      const auto& path = model->tree.nodes[i].path;
      try {
        model->modules[i]->pretty_print(text);
      } catch (const std::exception&) {
        text.str("(cannot be printed)");
      }
      modules.push_back({"module '" + (path.empty() ? "<root>" : path) + "'", text.str()});
    }
  }
  return modules;
}

/// The place of the first difference between the first rank and another one, and that other member.
struct Difference {
  std::size_t place;
  int member;
};

template <class T>
std::optional<Difference> first_difference(const std::vector<std::vector<T>>& all) {
  std::optional<Difference> first;
  for (std::size_t member = 1; member < all.size(); ++member) {
    const auto at = static_cast<std::size_t>(
        std::mismatch(all[0].begin(), all[0].end(), all[member].begin(), all[member].end()).first -
        all[0].begin());
    if (at == all[0].size()) continue;
    if (!first || at < first->place) first = {at, static_cast<int>(member)};
  }
  return first;
}

constexpr const char* kRemedy =
    "; build the same model on every rank: the same torch::manual_seed before it, the same "
    "arguments, the same file of weights";

/// The hash of a tensor whose values cannot be read.
constexpr std::uint64_t kUnknown = 0;

/// Sets the hashes of `tensors`; reads every value.
void add_hashes(std::vector<Named>& tensors) {
  for (auto& own : tensors) {
    own.hash = deferred::is_delayed(own.tensor) ? kUnknown : hash_of(own.tensor);
  }
}

void require_equal_values(const d2d::Communicator& ranks, const std::vector<Named>& tensors) {
  std::vector<std::uint64_t> hashes;
  hashes.reserve(tensors.size());
  for (const auto& own : tensors) hashes.push_back(own.hash);
  auto all = gather_values(ranks, hashes, "the values of the model");
  for (;;) {
    const auto difference = first_difference(all);
    if (!difference) return;
    const auto& [name, tensor, buffer, hash] = tensors.at(difference->place);
    const auto texts = gather_values(ranks, text_of(tensor), "a value that differs");
    const auto text = base::concat(buffer ? "buffer '" : "parameter '", name,
                                   "' differs between ranks: on rank ", ranks.members()[0], " ",
                                   texts[0], "; on rank ", ranks.members()[difference->member], " ",
                                   texts[static_cast<std::size_t>(difference->member)], kRemedy);
    SMP_REQUIRE(buffer, text);
    if (ranks.rank() == 0) base::log(base::LogLevel::kWarning, text);
    for (auto& own : all) own[difference->place] = 0;
  }
}

/// Of all ranks of the stage, those that ought to have `place` of `all` as member `own` has it.
int first_of_same(const Rank& rank, const d2d::Communicator& ranks, int own, bool slice) {
  if (!slice) return 0;
  const auto tp_rank = [&](int member) {
    return rank.topology().coordinates(ranks.members()[member].value()).tp;
  };
  int first = 0;
  while (tp_rank(first) != tp_rank(own)) ++first;
  return first;
}

/// The first parameter that differs between a member and the first one that ought to have the same,
/// and these two members.
struct Unequal {
  std::size_t place;
  int first, member;
};

std::optional<Unequal> first_unequal(const Rank& rank, const d2d::Communicator& ranks,
                                     const std::vector<std::vector<std::uint64_t>>& all,
                                     const std::vector<bool>& slices) {
  for (std::size_t place = 0; place < slices.size(); ++place) {
    const bool known = std::none_of(all.begin(), all.end(),
                                    [&](const auto& own) { return own[place] == kUnknown; });
    for (int member = 1; known && member < ranks.size(); ++member) {
      const int first = first_of_same(rank, ranks, member, slices[place]);
      if (all[static_cast<std::size_t>(first)][place] !=
          all[static_cast<std::size_t>(member)][place]) {
        return Unequal{place, first, member};
      }
    }
  }
  return std::nullopt;
}

/// Before placement, while every stage has all of them: what differs in one ends the whole job.
/// Slices are compared with those of the same part. Buffers are taken from the first replica
/// anyway.
void require_equal_replicas(const Rank& rank, const std::vector<const ModelDescription*>& models,
                            const std::vector<Named>& tensors) {
  std::vector<tp::SlicedParameters> of_models;
  for (const auto* model : models) of_models.emplace_back(*model->modules.front());
  std::vector<std::uint64_t> hashes;
  std::vector<bool> slices;
  std::vector<const Named*> parameters;
  for (const auto& own : tensors) {
    if (own.buffer) continue;
    parameters.push_back(&own);
    hashes.push_back(is_readable(own.tensor) ? own.hash : kUnknown);
    slices.push_back(std::any_of(of_models.begin(), of_models.end(),
                                 [&](const auto& model) { return model.contain(own.tensor); }));
  }
  const auto ranks = rank.groups().replicas();
  const auto all = gather_values(ranks, hashes, "the values of the model");
  const auto found = first_unequal(rank, ranks, all, slices);
  if (!found) return;
  const auto& own = *parameters[found->place];
  const auto texts = gather_values(ranks, text_of(own.tensor), "a value that differs");
  const auto [place, first, member] = *found;
  throw UsageError(base::concat(
      "parameter '", own.name, "' differs between ranks: on rank ", ranks.members()[first], " ",
      texts[static_cast<std::size_t>(first)], "; on rank ", ranks.members()[member], " ",
      texts[static_cast<std::size_t>(member)], kRemedy,
      "; or set initial_values = \"first\", and all replicas begin with what the first one has"));
}

/// The slices of models, as they are registered; the same ones on all ranks that share them.
struct NamedSlices {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
  std::vector<std::uint64_t> origins;
};

NamedSlices named_slices_of(const std::vector<const ModelDescription*>& models) {
  NamedSlices found;
  for (const auto* model : models) {
    const tp::SlicedParameters slices(*model->modules.front());
    for (const auto& item : model->modules.front()->named_parameters()) {
      if (!item.value().defined() || !slices.contain(item.value())) continue;
      found.names.push_back(item.key());
      found.tensors.push_back(item.value());
      found.origins.push_back(slices.origin(item.value()));
    }
  }
  return found;
}

/// Returns a hash of the values of a slice; 0 if they are not in memory, or all the same, because
/// such values show nothing.
std::uint64_t hash_of_drawn(const at::Tensor& slice) {
  const bool here = !deferred::is_delayed(slice) && !server::is_foreign(slice) &&
                    !slice.is_meta() && slice.layout() == at::kStrided && slice.numel() > 0;
  if (!here) return 0;
  const at::NoGradGuard no_grad;
  const auto values = slice.detach();
  const auto first = values.flatten()[0];
  return (values == first).all().item<bool>() ? 0 : hash_of(values);
}

/// Warns of ranks that hold equal slices. Ranks with the same seed draw the same numbers, each for
/// its own slice, if an initialiser is applied to what they hold. @param places  slices of unknown
/// origin
void warn_of_equal_slices(const d2d::Communicator& holders, const NamedSlices& slices,
                          const std::vector<std::size_t>& places) {
  std::vector<std::uint64_t> own;
  own.reserve(places.size());
  for (const auto place : places) own.push_back(hash_of_drawn(slices.tensors[place]));
  const auto all = gather_values(holders, own, "the values of slices");
  std::vector<std::string> names;
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::unordered_set<std::uint64_t> seen;
    const bool twice = std::any_of(all.begin(), all.end(), [&](const auto& of_rank) {
      return of_rank[i] != 0 && !seen.insert(of_rank[i]).second;
    });
    if (twice) names.push_back(slices.names[places[i]]);
  }
  if (names.empty() || holders.rank() != 0) return;
  const auto others =
      names.size() > 1 ? base::concat(" (and of ", names.size() - 1, " others)") : std::string();
  base::log(base::LogLevel::kWarning, "parameter '", names[0], "' is sliced over ",
            holders.members().text(), ", and some of these ranks hold equal slices of it", others,
            ": an initialiser that is applied to a distributed module draws the same numbers on "
            "every rank. Draw the whole tensor and copy the rank's part, or load whole values "
            "(docs/tensor_parallelism.md, Values)");
}

/// Checks that the slices of each parameter were cut from the same values.
void require_equal_origins(const d2d::Communicator& holders,
                           const std::vector<const ModelDescription*>& models) {
  const auto slices = named_slices_of(models);
  const auto& names = slices.names;
  auto all = gather_values(holders, slices.origins, "the origin of slices");
  for (std::size_t member = 0; member < all.size(); ++member) {
    SMP_REQUIRE(all[member].size() == names.size(), "rank ", holders.members()[holders.rank()],
                " holds slices of ", names.size(), " parameters, but rank ",
                holders.members()[static_cast<int>(member)], ", of the same ",
                holders.members().text(), ", of ", all[member].size(), kRemedy);
  }
  std::vector<std::size_t> unknown;  // somewhere
  for (std::size_t place = 0; place < names.size(); ++place) {
    if (std::none_of(all.begin(), all.end(), [&](const auto& own) { return own[place] == 0; }))
      continue;
    unknown.push_back(place);
    for (auto& own : all) own[place] = 0;
  }
  const auto difference = first_difference(all);
  SMP_REQUIRE(!difference, "parameter '", names[difference->place], "' is sliced over ",
              holders.members().text(), ", but rank ", holders.members()[difference->member],
              " has cut its slice from other values than rank ", holders.members()[0], kRemedy);
  if (!unknown.empty()) warn_of_equal_slices(holders, slices, unknown);
}

}  // namespace

std::vector<bool> compared(const Rank& rank, const std::vector<at::Tensor>& parameters) {
  if (rank.groups().num_replicas() == 1 || rank.config().initial_values != "equal") {
    return std::vector<bool>(parameters.size(), false);
  }
  std::string readable;
  for (const auto& parameter : parameters) readable += is_readable(parameter) ? '+' : '-';
  std::vector<bool> on_all(parameters.size(), true);
  for (const auto& own :
       gather_values(rank.groups().replicas(), readable, "which values can be read")) {
    for (std::size_t i = 0; i < on_all.size(); ++i) on_all[i] = on_all[i] && own.at(i) == '+';
  }
  return on_all;
}

void require_same_models(const Rank& rank, const std::vector<const ModelDescription*>& models) {
  const auto stages = rank.groups().of(Group::kPp);
  const bool compares_replicas =
      rank.groups().num_replicas() > 1 && rank.config().initial_values == "equal";
  auto tensors = tensors_of(models);
  if (stages.size() > 1 || compares_replicas) add_hashes(tensors);
  if (stages.size() > 1) {
    require_same(stages, printed(models), "the modules of the ranks",
                 "build the same model on every rank");
    require_equal_values(stages, tensors);
  }
  if (compares_replicas) require_equal_replicas(rank, models, tensors);
  const auto holders = rank.groups().slice_holders();
  if (holders.size() > 1) require_equal_origins(holders, models);
}

}  // namespace smp
