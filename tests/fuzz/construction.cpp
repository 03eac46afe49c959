// fuzz/construction.cpp: drawn, built twice, compared.
#include "fuzz/construction.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iomanip>
#include <map>
#include <set>
#include <sstream>
#include <string_view>

#include "base/check.h"
#include "fuzz/acts.h"
#include "fuzz/apart.h"
#include "fuzz/between.h"
#include "smp/smp.h"
#include "support/dice.h"

namespace smp::fuzz {
namespace constructions {
namespace {

using at::Tensor;
using Acts = std::vector<Act>;
using Facts = std::map<std::string, std::string>;
const std::string kMemory = "memory of ";

// ---- drawing -----------------------------------------------------------------------------------

int draw_row(Dice& dice) {
  int sum = 0;
  for (const auto& row : rows()) sum += row.weight;
  int at = dice.below(sum), number = 0;
  while ((at -= rows()[static_cast<std::size_t>(number)].weight) >= 0) ++number;
  return number;
}

Acts draw_acts(Dice& dice, int count, int depth) {
  Acts acts;
  for (int i = 0; i < count; ++i) {
    auto& act = acts.emplace_back();
    act.row = draw_row(dice);
    act.seed = dice.next();
    const bool holds = rows()[static_cast<std::size_t>(act.row)].holds_others;
    if (holds && depth < 3) act.inner = draw_acts(dice, dice.between(1, 4), depth + 1);
  }
  return acts;
}

// ---- building ----------------------------------------------------------------------------------

/// A module that lives on any rank.
struct PieceImpl : torch::nn::Module {
  PieceImpl(Builder& builder, const Acts& acts) { builder.build(*this, acts); }
  Tensor forward(const Tensor& x) { return x; }
};
SMP_MODULE(Piece);

struct WholeImpl : torch::nn::Module {
  WholeImpl(Builder& builder, const Construction& construction) {
    // Members get values once a registered tensor of their scope is placed.
    register_parameter("anchor", torch::rand({3}));
    for (const auto& acts : construction.modules) {
      pieces.push_back(register_module("m" + std::to_string(pieces.size()), Piece(builder, acts)));
    }
  }
  Tensor forward(Tensor x) {
    for (auto& piece : pieces) x = piece(x);
    return x;
  }
  std::vector<Piece> pieces;
};
TORCH_MODULE(Whole);

std::string bytes_of(const Tensor& tensor) {
  if (tensor.is_meta()) return "none, a meta tensor";
  const auto plain = tensor.detach().resolve_conj().resolve_neg().contiguous();
  std::string_view bytes(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
  std::string text = base::concat(std::hex, std::hash<std::string_view>()(bytes));
  if (plain.numel() > 0)
    text += base::concat(" from ", plain.flatten()[0].item().toComplexDouble());
  return text;
}

std::string described(const Tensor& tensor) {
  return base::concat(tensor.scalar_type(), " ", tensor.sizes(), " strides ", tensor.strides(),
                      tensor.requires_grad() ? ", grad" : "", tensor.is_leaf() ? ", leaf" : "",
                      ", values ", bytes_of(tensor));
}

/// Notes which of `tensors` share memory with which.
void note_memory(const std::vector<std::pair<std::string, Tensor>>& tensors, Facts& facts) {
  std::map<const void*, std::string> first;
  for (const auto& [name, tensor] : tensors) {
    const void* memory = tensor.storage().unsafeGetStorageImpl();
    if (tensor.numel() == 0) memory = tensor.unsafeGetTensorImpl();
    facts[kMemory + name] = first.try_emplace(memory, name).first->second;
  }
}

std::string state() { return bytes_of(at::detail::getDefaultCPUGenerator().get_state()); }

void note_what_was_seen(const std::vector<std::string>& seen, Facts& facts) {
  for (std::size_t i = 0; i < seen.size(); ++i) facts["seen " + std::to_string(i)] = seen[i];
  facts["generator"] = state();
  facts["default type"] = base::concat(c10::get_default_dtype());
}

void note_members(const Builder& builder, Facts& facts) {
  for (std::size_t i = 0; i < builder.members().size(); ++i) {
    // As a forward would use it.
    facts["member " + std::to_string(i)] = described(builder.members()[i].detach() + 0);
  }
}

Facts build_ordinarily(const Construction& construction) {
  Builder builder(/*delayed=*/false);
  Whole whole(builder, construction);
  auto seen = builder.seen();
  for (const auto seed : construction.between) {
    const auto load = [&](const StateDict& dict, bool strict) {
      load_state_dict(*whole, dict, strict);
    };
    act_between(*whole, load, seed, seen);
  }
  Facts facts;
  note_what_was_seen(seen, facts);
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& all : {whole->named_parameters(), whole->named_buffers()}) {
    for (const auto& item : all) tensors.emplace_back(item.key(), item.value());
  }
  for (const auto& [name, tensor] : tensors) facts[name] = described(tensor);
  note_memory(tensors, facts);
  note_members(builder, facts);
  return facts;
}

/// Returns what one rank has of it, and of all of it what every rank sees.
Facts build_delayed(const Construction& construction) {
  Builder builder(/*delayed=*/true);
  Whole whole{nullptr};
  {
    const delay_param_initialization delay;
    whole = Whole(builder, construction);
  }
  DistributedModel model(whole);
  for (std::size_t i = 0; i < construction.modules.size(); ++i) {
    model.set_partition("m" + std::to_string(i), static_cast<int>(i) % construction.ranks);
  }
  auto seen = builder.seen();
  for (const auto seed : construction.between) {
    const auto load = [&](const StateDict& dict, bool strict) {
      model.load_state_dict(dict, strict);
    };
    act_between(*whole, load, seed, seen);
  }
  Facts facts;
  note_what_was_seen(seen, facts);
  model.place();
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& all : {model.local_named_parameters(), model.local_named_buffers()}) {
    for (const auto& [name, tensor] : all) tensors.emplace_back(name, tensor);
  }
  for (const auto& [name, tensor] : tensors) facts[name] = described(tensor);
  if (construction.ranks == 1) note_memory(tensors, facts);
  note_members(builder, facts);
  return facts;
}

std::string difference(const Facts& expected, const Facts& seen) {
  for (const auto& [name, fact] : seen) {
    const auto found = expected.find(name);
    if (found == expected.end()) return name + " is there: " + fact;
    if (found->second != fact) return name + ": " + found->second + " <> " + fact;
  }
  return "";
}

int errors_in(const Facts& facts) {
  return static_cast<int>(std::count_if(facts.begin(), facts.end(), [](const auto& item) {
    return item.second.ends_with(Builder::kThrows);
  }));
}

/// What a constructor may leave behind.
class Restored {
 public:
  ~Restored() { torch::set_default_dtype(type_); }

 private:
  caffe2::TypeMeta type_ = c10::get_default_dtype();
};

}  // namespace
}  // namespace constructions

using namespace constructions;

Construction draw_construction(std::uint64_t seed) {
  Dice dice(Dice(seed).next());  // the dice of neighbouring seeds throw alike
  Construction construction;
  construction.seed = seed;
  construction.ranks = dice.between(1, 4);
  for (int i = construction.ranks + dice.below(2); i > 0; --i) {
    construction.modules.push_back(draw_acts(dice, dice.between(2, 9), 0));
  }
  const int between = dice.chance(.5) ? dice.between(1, 4) : 0;
  for (int i = 0; i < between; ++i) construction.between.push_back(dice.next());
  return construction;
}

Result judge_construction(const Construction& construction) {
  const Restored restored;
  torch::manual_seed(construction.seed);
  const auto expected = build_ordinarily(construction);
  Config config;
  config.plan_cache = "off";
  config.skip_tracing = true;
  config.default_partition = 0;
  config.auto_partition = false;
  torch::manual_seed(construction.seed);
  Result result;
  std::set<std::string> names;
  try {
    run_local(
        construction.ranks,
        [&] {
          const auto seen = build_delayed(construction);
          for (const auto& [name, fact] : seen) names.insert(name);
          const auto differs = difference(expected, seen);
          if (differs.empty()) return;
          // Kernels refuse some arguments that functions of shapes do not (two dtypes).
          result = errors_in(seen) < errors_in(expected)
                       ? Result{Verdict::kRefused, "an error comes when values are computed"}
                       : Result{Verdict::kDifferent, differs};
        },
        config);
  } catch (const Error& error) {
    return {Verdict::kRefused, error.what()};
  } catch (const std::exception& error) {
    return {Verdict::kUndocumented, error.what()};
  }
  if (result.verdict != Verdict::kEqual) return result;
  for (const auto& [name, fact] : expected) {
    if (names.count(name) > 0 || name.rfind(kMemory, 0) == 0) continue;
    const auto memory = expected.find(kMemory + name);  // tied tensors have one name
    if (memory != expected.end() && memory->second != name) continue;
    return {Verdict::kDifferent, name + " is on no rank"};
  }
  return result;
}

namespace constructions {
namespace {

/// Calls `change` with a copy that lacks one statement, for each; stops when it returns true.
bool without_one(const Construction& whole,
                 const std::function<bool(const Construction&)>& change) {
  const std::function<bool(Construction&, Acts&)> try_list = [&](Construction& copy, Acts& acts) {
    for (std::size_t i = 0; i < acts.size(); ++i) {
      const auto act = acts[i];
      acts.erase(acts.begin() + static_cast<std::ptrdiff_t>(i));
      if (change(copy)) return true;
      acts.insert(acts.begin() + static_cast<std::ptrdiff_t>(i), act);
      if (try_list(copy, acts[i].inner)) return true;
    }
    return false;
  };
  Construction copy = whole;
  for (std::size_t i = 0; i < copy.between.size(); ++i) {
    copy.between.erase(copy.between.begin() + static_cast<std::ptrdiff_t>(i));
    if (change(copy)) return true;
    copy.between = whole.between;
  }
  for (auto& acts : copy.modules) {
    if (try_list(copy, acts)) return true;
  }
  return false;
}

void print(std::ostream& out, const Acts& acts, int depth) {
  for (const auto& act : acts) {
    out << std::string(static_cast<std::size_t>(2 * depth), ' ')
        << rows()[static_cast<std::size_t>(act.row)].text << " (" << act.seed << ")\n";
    print(out, act.inner, depth + 1);
  }
}

}  // namespace
}  // namespace constructions

Construction shrink_construction(const Construction& construction, Verdict verdict,
                                 double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  Construction best = construction;
  bool smaller = true;
  while (smaller) {
    smaller = without_one(best, [&](const Construction& candidate) {
      if (std::chrono::steady_clock::now() > end) return false;
      Result result;
      judge_apart(
          1, [&](int) { return judge_construction(candidate); },
          [&](int, const Result& own) { return result = own, true; }, 10);
      if (result.verdict != verdict) return false;
      best = candidate;
      return true;
    });
  }
  return best;
}

std::string pseudo_code(const Construction& construction) {
  std::ostringstream out;
  out << "seed " << construction.seed << ", " << construction.ranks << " ranks\n";
  for (std::size_t i = 0; i < construction.modules.size(); ++i) {
    out << "m" << i << ":\n";
    print(out, construction.modules[i], 1);
  }
  for (const auto seed : construction.between) {
    out << name_of_between(seed) << " (" << seed << ")\n";
  }
  return out.str();
}

}  // namespace smp::fuzz
