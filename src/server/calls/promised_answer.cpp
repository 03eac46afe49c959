// server/calls/promised_answer.cpp: first what cannot be put right, then histories and values.
#include "server/calls/promised_answer.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "server/graph/node_hooks.h"
#include "server/promises/promised_tensor.h"
#include "server/values/guarded_tensor.h"
#include "server/values/hooked_arguments.h"
#include "server/values/link_follower.h"
#include "server/values/output_links.h"
#include "server/values/output_shapes.h"
#include "server/values/tensor_forms.h"
#include "server/values/tensor_memory.h"

namespace smp::server {
namespace {

constexpr const char* kNotKnown =
    ", unlike in earlier calls, and was passed on to another remote module before that was known. "
    "Call smp::wait() on it (smp/wait.h), or set promised_outputs to false";

/// Lives while it is used, on the stack of the caller's fiber.
class PromisedAnswer {
 public:
  PromisedAnswer(const PromisedResult& result, ForwardResponse&& response)
      : to_(result), response_(std::move(response)) {
    if (!response_.withheld.empty()) {
      outputs_ = shapes_of(response_.withheld, requires_grad_);
    } else {
      outputs_ = std::move(response_.result.tensors);
      restore_forms(response_.forms, outputs_);
      requires_grad_ = response_.requires_grad;
    }
    if (!is_linked()) return;
    told_ = OutputLinks::from_note(response_.links, outputs_.size(), to_.arguments.tensors.size());
  }

  Outcome outcome() const noexcept {
    if (is_linked()) return Outcome::kLinked;
    return response_.withheld.empty() ? Outcome::kValues : Outcome::kWithheld;
  }

  bool is_as_expected() const {
    if (is_linked() || !response_.hooked.empty() || response_.settings) return false;
    if (response_.result.bytes != to_.expected.bytes || outputs_.size() != to_.outputs.size()) {
      return false;
    }
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const auto& expected = to_.expected.outputs[i];
      if (!outputs_[i].defined() || outputs_[i].scalar_type() != expected.dtype) return false;
      if (requires_grad_[i] != expected.requires_grad) return false;
    }
    return true;
  }

  void require_that_consumers_know_of_gradients() const {
    for (std::size_t i = 0; i < std::min(to_.outputs.size(), requires_grad_.size()); ++i) {
      const bool differs = requires_grad_[i] && !to_.expected.outputs[i].requires_grad;
      SMP_REQUIRE_AS(UnsupportedError, !differs || !to_.outputs[i].passed_on, who(), ": tensor ", i,
                     " of its result requires a gradient", kNotKnown);
    }
  }

  void give_history() {
    const auto& facts = to_.call->facts();
    auto& node = to_.node;
    const auto hooked = watch_hooked_arguments(response_.hooked, to_.arguments.tensors, facts.path);
    if (facts.record && node == nullptr) {
      node = make_node<RemoteCall>(to_.call);
      node->set_next_edges(torch::autograd::collect_next_edges(to_.arguments.tensors));
    }
    const auto passing = arguments_among();
    if (is_linked()) {
      require_unchanged_arguments();
      require_that_consumers_are_right(passing);
      require_no_hooks();
    }
    if (node != nullptr) {
      node->keep_gradients(hooked);
      node->set_inner(std::move(response_.inner));
      node->set_passing(passing);
    }
    if (node != nullptr && !passing.empty()) {
      give_history_to_arguments(passing);
    } else if (node != nullptr || is_linked()) {
      follow_links(response_.links, outputs_, to_.arguments.tensors, requires_grad_, node,
                   facts.path);
    }
  }

  void take_values() {
    for (std::size_t i = 0; i < to_.outputs.size(); ++i) {
      auto& [value, promise, live, passed_on] = to_.outputs[i];
      if (!live) continue;
      value = is_linked() ? fetched(outputs_[i]) : std::move(outputs_[i]);
      SMP_REQUIRE(value.defined(), who(), ": tensor ", i,
                  " of its result is undefined, and was defined in earlier calls like this one; "
                  "call smp::wait() on its results (smp/wait.h), or set promised_outputs to "
                  "false");
      SMP_REQUIRE_AS(UnsupportedError, can_be_guarded(value), who(), ": tensor ", i,
                     " of its result is ", value.layout(),
                     ", and was dense in earlier calls like this one; call smp::wait() on its "
                     "results (smp/wait.h), or set promised_outputs to false");
    }
  }

 private:
  /// Which outputs are arguments, where nothing else is linked; empty if something is.
  std::vector<RemoteCall::Passing> arguments_among() const {
    std::vector<RemoteCall::Passing> passing;
    if (!told_.changes.empty() || told_.num_outputs != outputs_.size()) return passing;
    for (const auto& link : told_.links) {
      if (link.kind != OutputLink::Kind::kSame || link.source != OutputLink::Source::kArgument) {
        return {};
      }
      passing.push_back(
          {static_cast<std::uint32_t>(link.output), static_cast<std::uint32_t>(link.index)});
    }
    return passing;
  }

  /// Its caller may have read or written the argument since, even if it waits for the result now.
  void require_unchanged_arguments() const {
    SMP_REQUIRE_AS(
        UnsupportedError, told_.changes.empty(), who(), ": it has changed its argument ",
        told_.changes.front().argument,
        " in place, which it did not in earlier calls, so its caller may have gone on with "
        "the old values. Calls like it are awaited from now on; to have all awaited from "
        "the first step on, set promised_outputs to false");
  }

  /// Nobody knew of links when outputs were passed on. One that is an argument passes its gradient
  /// on to that; what shares memory otherwise would have needed it, and so would an argument that
  /// the caller has written meanwhile.
  void require_that_consumers_are_right(const std::vector<RemoteCall::Passing>& passing) const {
    if (std::none_of(to_.outputs.begin(), to_.outputs.end(),
                     [](const PromisedOutput& output) { return output.passed_on; })) {
      return;
    }
    SMP_REQUIRE_AS(UnsupportedError, !passing.empty(), who(),
                   ": its result shares memory with its arguments or with itself", kNotKnown);
    for (std::size_t i = 0; i < to_.arguments.tensors.size(); ++i) {
      const auto& argument = to_.arguments.tensors[i];
      const bool written = version_of(argument) != to_.arguments.versions[i];
      SMP_REQUIRE_AS(
          UnsupportedError, !written, who(), ": its result is its argument ", i, ", ",
          argument.scalar_type(), ' ', argument.sizes(),
          ", which was changed in place since, by the caller or, if that captured it, by "
          "another microbatch",
          kNotKnown);
    }
  }

  /// Hooks of a linked output saw what comes to the promise; in one process it is another tensor,
  /// and they see what comes to that. One with a gradient of its own keeps its place in the node.
  void require_no_hooks() const {
    for (const auto& link : told_.links) {
      const auto& promise = to_.outputs.at(link.output).promise;
      auto impl = promise && !link.passes_record() ? promise->lock() : nullptr;
      if (impl == nullptr) continue;
      const at::Tensor tensor(std::move(impl));
      SMP_REQUIRE_AS(
          UnsupportedError, !is_hooked(tensor), who(), ": tensor ", link.output,
          " of its result has a hook or retains its gradient, and shares memory with its "
          "arguments or with another tensor of its result, unlike in earlier calls. Call "
          "smp::wait() on it before (smp/wait.h), or set promised_outputs to false");
    }
  }

  void give_history_to_arguments(const std::vector<RemoteCall::Passing>& passing) {
    for (const auto& own : passing) outputs_[own.output] = to_.arguments.tensors[own.argument];
    for (std::uint32_t i = 0; i < outputs_.size(); ++i) {
      const bool is_argument = std::any_of(passing.begin(), passing.end(),
                                           [i](const auto& own) { return own.output == i; });
      if (is_argument && outputs_[i].defined()) {
        to_.node->add_input_metadata(fetched(outputs_[i]));
      } else if (requires_grad_[i]) {
        torch::autograd::set_history(outputs_[i], to_.node);
      } else {
        add_input_without_history(*to_.node, outputs_[i]);
      }
    }
  }

  bool is_linked() const noexcept { return !response_.links.empty(); }
  std::string who() const { return to_.call->facts().who(); }

  const PromisedResult& to_;
  ForwardResponse response_;
  TensorFlags requires_grad_;
  std::vector<at::Tensor> outputs_;
  OutputLinks told_;  // empty unless something is linked
};

}  // namespace

HeldArguments::HeldArguments(at::ArrayRef<at::Tensor> own) : tensors(own.begin(), own.end()) {
  for (const auto& tensor : tensors) versions.push_back(version_of(tensor));
}

Outcome use_answer(const PromisedResult& result, ForwardResponse&& response) {
  PromisedAnswer answer(result, std::move(response));
  if (!answer.is_as_expected()) result.expected.refused = true;
  answer.require_that_consumers_know_of_gradients();
  answer.give_history();
  if (answer.outcome() != Outcome::kWithheld) answer.take_values();
  return answer.outcome();
}

}  // namespace smp::server
