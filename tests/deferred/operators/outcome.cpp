// deferred/operators/outcome.cpp
#include "deferred/operators/outcome.h"

#include <malloc.h>
#include <torch/torch.h>

#include <functional>
#include <optional>
#include <sstream>
#include <string_view>
#include <unordered_map>

#include "base/check.h"
#include "deferred/delayed_tensors.h"
#include "deferred/meta_scope.h"
#include "deferred/operators/samples.h"
#include "smp/delayed_init.h"

namespace smp::deferred {
namespace {

using at::Tensor;
using c10::IValue;

constexpr const char* kShapeEnds = " | ";  // what follows depends on values and memory
constexpr const char* kAnything = " | anything";

std::string without_values(const std::string& line) {
  return line.substr(0, line.find(kShapeEnds));
}

std::string hash_of(const Tensor& tensor) {
  const auto plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
  const std::string_view bytes(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
  std::string text = base::concat(std::hex, std::hash<std::string_view>()(bytes));
  if (plain.numel() > 0 && !plain.is_complex()) {
    text += base::concat(" from ", plain.flatten()[0].item<double>());
  }
  return text;
}

/// Tells arguments and results, once all have the values that they will have.
class Description {
 public:
  explicit Description(bool values) : values_(values) {}

  void begin_results() { arguments_ = false; }

  void add(const std::string& name, const IValue& value) {
    if (value.isTensor()) {
      lines_.push_back(name + ": " + tensor(value.toTensor()));
    } else if (value.isList()) {
      int index = 0;
      for (const auto& element : value.toListRef()) {
        add(name + "[" + std::to_string(index++) + "]", element);
      }
    } else if (value.isGenerator()) {
      const auto generator = value.toGenerator();
      lines_.push_back(name + ": generator" + kShapeEnds + hash_of(generator.get_state()));
    } else if (value.isStorage()) {
      lines_.push_back(base::concat(name, ": storage of ", value.toStorage().nbytes()));
    } else {
      lines_.push_back(base::concat(name, ": ", value.tagKind(), kShapeEnds, value));
    }
  }
  std::vector<std::string> take() && { return std::move(lines_); }

 private:
  std::string tensor(const Tensor& tensor) {
    if (!tensor.defined()) return "undefined";
    std::string text = base::concat(tensor.scalar_type(), " ", tensor.sizes(), " of ",
                                    tensor.layout(), tensor.requires_grad() ? ", grad" : "");
    text += kShapeEnds;
    if (tensor.is_quantized()) return text + "quantized " + hash_of(tensor.dequantize());
    if (tensor.layout() == at::kSparse && values_) return text + hash_of(tensor.to_dense());
    if (tensor.layout() != at::kStrided || !tensor.has_storage()) return text + "opaque";
    text += base::concat("strides ", tensor.strides(), " from ", tensor.storage_offset(),
                         tensor.is_leaf() ? ", leaf" : "", tensor.is_conj() ? ", conjugate" : "",
                         tensor.is_neg() ? ", negative" : "");
    const auto seen = storages_.size();
    const auto memory = memory_of(tensor);
    text += base::concat(", on ", tensor.device(), ", memory ", memory);
    // That of a new tensor says nothing.
    if (memory < seen || arguments_) text += base::concat(", version ", tensor._version());
    return values_ ? text + ", values " + hash_of(tensor) : text;
  }
  std::size_t memory_of(const Tensor& tensor) {
    const auto* storage = tensor.storage().unsafeGetStorageImpl();
    return storages_.try_emplace(storage, storages_.size()).first->second;
  }

  bool values_;
  bool arguments_ = true;
  std::vector<std::string> lines_;
  std::unordered_map<const c10::StorageImpl*, std::size_t> storages_;
};

void each_tensor(const torch::jit::Stack& stack, const std::function<void(const Tensor&)>& visit) {
  for (const auto& value : stack) {
    value.visit([&](const IValue& part) {
      if (part.isTensor() && part.toTensor().defined()) visit(part.toTensor());
      return false;
    });
  }
}

/// What a constructor would do.
struct Run {
  torch::jit::Stack arguments, results;

  Run(const c10::OperatorHandle& op, std::uint64_t seed, const ArgumentKinds& kinds) {
    torch::manual_seed(seed);
    const at::AutoGradMode grad(kinds.requires_grad);
    arguments = arguments_for(op, seed, kinds);
    results = arguments;
    op.callBoxed(&results);
  }
};

std::vector<std::string> describe(const c10::OperatorHandle& op, const Run& run, bool values) {
  const at::NoGradGuard no_grad;
  Description description(values);
  description.add("default generator", IValue(at::detail::getDefaultCPUGenerator()));
  for (std::size_t i = 0; i < run.arguments.size(); ++i) {
    description.add("argument " + op.schema().arguments()[i].name(), run.arguments[i]);
  }
  description.begin_results();
  for (std::size_t i = 0; i < run.results.size(); ++i) {
    description.add("result " + std::to_string(i), run.results[i]);
  }
  return std::move(description).take();
}

/// Fills memory with another byte when it is taken, and when it is given back.
void spoil_memory(int byte) { mallopt(M_PERTURB, byte); }

}  // namespace

Outcome run_ordinarily(const c10::OperatorHandle& op, std::uint64_t seed,
                       const ArgumentKinds& kinds) {
  spoil_memory(0x55);
  Outcome outcome{describe(op, Run(op, seed, kinds), true), false};
  spoil_memory(0xaa);
  const auto again = describe(op, Run(op, seed, kinds), true);
  for (std::size_t i = 0; i < outcome.lines.size(); ++i) {
    if (outcome.lines[i] != again.at(i)) outcome.lines[i] = without_values(again[i]) + kAnything;
  }
  return outcome;
}

Outcome run_delayed(const c10::OperatorHandle& op, std::uint64_t seed, const ArgumentKinds& kinds) {
  std::optional<delay_param_initialization> scope(std::in_place);
  Run run(op, seed, kinds);
  scope.reset();
  Outcome outcome;
  each_tensor(run.results, [&](const Tensor& tensor) {
    outcome.put_off = outcome.put_off || is_delayed(tensor);
  });
  Materialiser materialiser;
  for (const auto* stack : {&run.arguments, &run.results}) {
    each_tensor(*stack, [&](const Tensor& tensor) { materialiser.fill(tensor); });
  }
  for (auto& value : run.arguments) {
    if (value.isStorage()) value = materialiser.values_of(value.toStorage());
  }
  outcome.lines = describe(op, run, true);
  return outcome;
}

Outcome run_on_shapes(const c10::OperatorHandle& op, std::uint64_t seed,
                      const ArgumentKinds& kinds) {
  std::optional<MetaScope> scope(std::in_place, [] { return 1.; });
  const Run run(op, seed, kinds);
  scope.reset();
  Outcome outcome;
  outcome.lines = describe(op, run, false);
  outcome.lines = shapes_of(outcome);
  return outcome;
}

std::vector<std::string> shapes_of(const Outcome& ordinary) {
  std::vector<std::string> shapes;
  for (const auto& line : ordinary.lines) shapes.push_back(without_values(line));
  return shapes;
}

std::string difference(const std::vector<std::string>& expected,
                       const std::vector<std::string>& seen) {
  for (std::size_t i = 0; i < std::max(expected.size(), seen.size()); ++i) {
    const std::string a = i < expected.size() ? expected[i] : "nothing";
    std::string b = i < seen.size() ? seen[i] : "nothing";
    if (a.ends_with(kAnything)) b = without_values(b) + kAnything;
    if (a != b) return a + " <> " + b;
  }
  return "";
}

}  // namespace smp::deferred
