// api/state/step_facts.cpp: facts as names and values; where bytes differ, the first fact that
// does.
#include "api/state/step_facts.h"

#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <sstream>
#include <string_view>
#include <utility>

#include "api/state/optimizer_fields.h"
#include "base/check.h"
#include "base/random.h"
#include "smp/codec.h"

namespace smp {
namespace {

struct Fact {
  std::string name;
  double number = 0;
  std::string text;
  friend bool operator==(const Fact&, const Fact&) = default;
};

using Facts = std::vector<Fact>;

/// False if `options` are none of these.
template <class... Known, class Add>
bool list_known(const torch::optim::OptimizerOptions& options, const Add& add) {
  const auto list = [&](const auto* known) {
    if (known == nullptr) return false;
    auto copy = *known;  // each_option() is also for those who change them
    each_option(copy, add);
    return true;
  };
  return (list(dynamic_cast<const Known*>(&options)) || ...);
}

/// All of those that optimizer_fields.h knows; of others the learning rate, if they have one.
template <class Add>
void list_options(const torch::optim::OptimizerOptions& options, const Add& add) {
  using namespace torch::optim;
  if (list_known<SGDOptions, AdamOptions, AdamWOptions, RMSpropOptions, AdagradOptions>(options,
                                                                                        add)) {
    return;
  }
  try {
    add("lr", options.get_lr());
  } catch (const std::exception&) {  // an optimizer of the user's own need not have one
  }
}

std::string shown(const Fact& fact) {
  if (!fact.text.empty()) return fact.text;
  std::ostringstream text;
  text.precision(17);
  text << fact.number;
  return text.str();
}

/// "smp::Step<Body>" out of the name of a function inside of it. The rest of that name depends on
/// how the step is called, which ranks may do differently.
std::string step_in(const std::string& function) {
  const std::string_view marker = "smp::Step<";
  const auto begin = function.find(marker);
  if (begin == std::string::npos) return "";
  int depth = 1;
  for (auto at = begin + marker.size(); at < function.size(); ++at) {
    if (function.compare(at, 2, "->") == 0) {
      ++at;
    } else if (function.compare(at, 8, "operator") == 0) {
      at = function.find('(', at) - 1;  // operator<, operator->
      if (at >= function.size()) return "";
    } else if (function[at] == '<') {
      ++depth;
    } else if (function[at] == '>' && --depth == 0) {
      return function.substr(begin, at + 1 - begin);
    }
  }
  return "";
}

Facts facts_of(const std::string& bytes) {
  Packet packet{bytes, {}};
  return Reader(packet).get<Facts>();
}

}  // namespace

void StepFacts::add_optimizer(std::weak_ptr<torch::optim::Optimizer> optimizer) {
  optimizers_.push_back(std::move(optimizer));
}

const std::string& StepFacts::name_of(const std::type_info& body) {
  const auto [known, fresh] = bodies_.try_emplace(&body);
  if (fresh) known->second = step_in(c10::demangle(body.name()));
  return known->second;
}

void StepFacts::note_clipping(const std::string& how) {
  constexpr std::size_t kMost = 8;
  if (!clipped_.empty() && clipped_.back().how == how) {
    ++clipped_.back().times;
  } else if (clipped_.size() < kMost) {
    clipped_.push_back({how, 1});
  } else {
    further_ = base::mix_key(further_, how);
  }
}

std::string StepFacts::text_of_clipping() const {
  std::string text;
  for (const auto& [how, times] : clipped_) {
    text += base::concat(text.empty() ? "" : ", ", how);
    if (times > 1) text += base::concat(", ", times, " times");
  }
  if (further_ != 0) text += base::concat(", and further calls of number ", further_);
  return text;
}

std::string StepFacts::take(const std::type_info& body, int microbatches, bool learns,
                            const std::string& gradients) {
  Facts facts;
  facts.push_back({"the step", 0, name_of(body)});
  facts.push_back({"the number of microbatches", static_cast<double>(microbatches), ""});
  facts.push_back({"what becomes of gradients", 0, gradients});
  facts.push_back({"zero_grad() since the last step", 0, zeroed_ ? "called" : "not called"});
  facts.push_back({"the number of optimizer.step() since the last step",
                   static_cast<double>(optimizer_steps_), ""});
  facts.push_back({"gradients since the last step", 0,
                   clipped_.empty() ? "not clipped" : "clipped " + text_of_clipping()});
  if (learns) {
    zeroed_ = false;
    optimizer_steps_ = 0;
    clipped_.clear();
    further_ = 0;
  }
  std::erase_if(optimizers_, [](const auto& optimizer) { return optimizer.expired(); });
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    const auto optimizer = optimizers_[i].lock();
    const auto name = "optimizer " + std::to_string(i);
    const auto& groups = optimizer->param_groups();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (!groups[g].has_options()) continue;
      const auto& options = groups[g].options();
      facts.push_back({name + "'s options", 0, typeid(options).name()});
      list_options(options, [&](const char* option, double value) {
        facts.push_back(
            {std::string(option) + " of " + name + ", group " + std::to_string(g), value, ""});
      });
    }
  }
  facts.push_back({"the number of optimizers", static_cast<double>(optimizers_.size()), ""});
  Writer writer;
  writer.put(facts);
  return std::move(writer).take().bytes;
}

std::string StepFacts::explain(int rank, const std::string& facts, int other,
                               const std::string& others) {
  const auto own = facts_of(facts);
  const auto theirs = facts_of(others);
  const auto pair = std::mismatch(own.begin(), own.end(), theirs.begin(), theirs.end());
  std::string text = base::concat("rank ", rank, " and rank ", other, " did not do the same: ");
  if (pair.first == own.end() || pair.second == theirs.end() ||
      pair.first->name != pair.second->name) {
    const auto missing = pair.first == own.end() ? pair.second->name : pair.first->name;
    text += base::concat("'", missing, "' is known to one of them only");
  } else {
    text += base::concat(pair.first->name, ": ", shown(*pair.first), " on rank ", rank, ", ",
                         shown(*pair.second), " on rank ", other);
  }
  return text +
         "; every rank runs the same program, with the same steps, optimizers, learning rates and "
         "calls of clip_grad_norm_";
}

}  // namespace smp
