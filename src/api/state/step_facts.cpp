// api/state/step_facts.cpp: facts as names and values; where bytes differ, the first fact that
// does.
#include "api/state/step_facts.h"

#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "api/rank/agreement.h"
#include "api/state/optimizer_fields.h"
#include "base/check.h"
#include "base/random.h"

namespace smp {
namespace {

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

/// Lists all options that optimizer_fields.h knows; of other optimizers the learning rate, if any.
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
  facts.push_back({"the step", name_of(body)});
  facts.push_back({"the number of microbatches", std::to_string(microbatches)});
  facts.push_back({"what becomes of gradients", gradients});
  facts.push_back({"zero_grad() since the last step", zeroed_ ? "called" : "not called"});
  facts.push_back(
      {"the number of optimizer.step() since the last step", std::to_string(optimizer_steps_)});
  facts.push_back({"gradients since the last step",
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
      facts.push_back({name + "'s options", typeid(options).name()});
      list_options(options, [&](const char* option, double value) {
        facts.push_back({base::concat(option, " of ", name, ", group ", g), text_of(value)});
      });
    }
  }
  facts.push_back({"the number of optimizers", std::to_string(optimizers_.size())});
  return to_bytes(facts);
}

std::string StepFacts::explain(int rank, const std::string& facts, int other,
                               const std::string& others) {
  const auto found =
      differences({GlobalRank(rank), GlobalRank(other)}, {to_facts(facts), to_facts(others)});
  if (found.empty()) return {};
  return base::concat("rank ", rank, " and rank ", other, " did not do the same: ", found.front(),
                      "; every rank runs the same program, with the same steps, optimizers, "
                      "learning rates and calls of clip_grad_norm_");
}

}  // namespace smp
