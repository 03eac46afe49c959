// trial/tracer/switch_watch.cpp: three looks at the flags of all modules and parameters.
#include "trial/tracer/switch_watch.h"

#include <torch/nn/module.h>

#include <functional>

#include "base/check.h"

namespace smp::partitioning {
namespace {

/// Visits all flags in one order: training mode of modules, requires_grad of parameters.
/// @param visit  gets the path of the module, the name of the parameter or "", and the flag
void each_flag(const std::vector<TracedModel>& models,
               const std::function<void(const std::string&, const std::string&, bool)>& visit) {
  for (const auto& model : models) {
    for (std::size_t i = 0; i < model.modules->size(); ++i) {
      const auto& module = *(*model.modules)[i];
      const auto& path = model.tree->nodes[i].path;
      visit(path, "", module.is_training());
      for (const auto& item : module.named_parameters(/*recurse=*/false)) {
        visit(path, item.key(), item.value().requires_grad());
      }
    }
  }
}

}  // namespace

std::vector<char> SwitchWatch::flags() const {
  std::vector<char> all;
  each_flag(models_, [&](auto&, auto&, bool on) { all.push_back(on ? 1 : 0); });
  return all;
}

void SwitchWatch::begin_run() {
  at_begin_ = flags();
  at_first_call_.clear();
}

void SwitchWatch::call_begins() {
  if (at_first_call_.empty()) at_first_call_ = flags();
}

void SwitchWatch::end_run() {
  const auto now = flags();
  if (at_first_call_.size() != now.size() || at_begin_.size() != now.size()) return;
  for (std::size_t i = 0; i < now.size() && found_.empty(); ++i) {
    if (now[i] != at_begin_[i] && now[i] != at_first_call_[i]) found_ = describe(i);
  }
}

std::string SwitchWatch::describe(std::size_t flag) const {
  std::string text;
  std::size_t number = 0;
  each_flag(models_, [&](const auto& path, const auto& name, bool on) {
    if (number++ != flag) return;
    text = name.empty() ? base::concat("module '", path.empty() ? "<root>" : path, "' in ",
                                       on ? "training mode" : "evaluation mode")
                        : base::concat("parameter '", path.empty() ? "" : path + ".", name, "' ",
                                       on ? "trainable" : "frozen");
  });
  return text;
}

}  // namespace smp::partitioning
