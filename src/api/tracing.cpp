// api/tracing.cpp: one try with gradients, one as the caller wanted it, else none.
#include "api/tracing.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "api/runtime.h"
#include "base/log.h"
#include "deferred/delayed_tensors.h"
#include "partition/tracer.h"
#include "server/exception_text.h"
#include "server/step_engine.h"
#include "smp/step.h"

namespace smp {
namespace {

using Traces = std::vector<simulate::Trace>;

class Attempts final : public server::StepEngine {
 public:
  Attempts(Runtime& runtime, const std::vector<const ModelDescription*>& models,
           const StepPreview& preview)
      : runtime_(runtime),
        preview_(preview),
        meta_(std::any_of(models.begin(), models.end(),
                          [](auto* model) { return deferred::is_delayed(*model->modules[0]); })),
        tracer_(traced(models), runtime.config().seed) {
    runtime_.set_trial(this);
  }
  ~Attempts() override { runtime_.set_trial(nullptr); }
  Attempts(const Attempts&) = delete;
  Attempts& operator=(const Attempts&) = delete;

  // server::StepEngine
  int current_microbatch() const noexcept override { return 0; }
  /// Only the graph is kept, for a look at what it holds.
  void backward(const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>&,
                bool) override {
    tracer_.keep_graph(roots);
  }

  std::optional<Traces> run(bool grad) {
    try {
      const int repeats = meta_ ? 0 : runtime_.config().trace_repeats;
      return tracer_.run([&] { return preview_.run(grad, meta_); }, repeats);
    } catch (...) {
      fault_ = server::text_of(std::current_exception());
      return std::nullopt;
    }
  }

  void warn() const {
    const auto& path = tracer_.failed_module();
    base::log(
        base::LogLevel::kWarning,
        "the step could not be run in advance to see what its modules cost, so modules are "
        "counted instead: ",
        path.empty() ? std::string("the step's body") : "module '" + path + "'",
        " threw: ", first_sentence(fault_),
        meta_ ? "\n    (its initialisation is delayed, so the attempt has shapes but no values; "
                "item() and conditions on tensors need values)"
              : "",
        "\n    (skip_tracing = true avoids the attempt; code that cannot run in advance may "
        "ask smp::is_tracing())");
  }

 private:
  // LibTorch adds advice for other uses of tensors without values.
  std::string first_sentence(const std::string& text) const {
    return meta_ ? text.substr(0, text.find(". ")) : text;
  }

  static std::vector<partitioning::TracedModel> traced(
      const std::vector<const ModelDescription*>& models) {
    std::vector<partitioning::TracedModel> all;
    for (const auto* model : models) {
      all.push_back({&model->tree, &model->modules, &model->routed});
    }
    return all;
  }

  Runtime& runtime_;
  const StepPreview& preview_;
  bool meta_;  // there are no values to compute with
  partitioning::Tracer tracer_;
  std::string fault_;
};

}  // namespace

/// An evaluation is traced with gradients too: the plan is for training.
Traces trace_models(Runtime& runtime, const std::vector<const ModelDescription*>& models,
                    const StepPreview& preview) {
  Attempts attempts(runtime, models, preview);
  auto traces = attempts.run(true);
  if (!traces && !preview.grad) traces = attempts.run(false);
  if (traces) return *std::move(traces);
  attempts.warn();
  return Traces(models.size());
}

bool is_tracing() noexcept {
  auto* runtime = Runtime::find_current();
  return runtime != nullptr && runtime->is_tracing();
}

}  // namespace smp
