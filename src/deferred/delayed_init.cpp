// deferred/delayed_init.cpp: the scope in which constructors are recorded.
#include "smp/delayed_init.h"

#include "base/random.h"
#include "deferred/deferral.h"
#include "deferred/meta_kernels.h"
#include "deferred/recorder.h"

namespace smp {
namespace {

std::shared_ptr<deferred::Construction> new_construction(InitOrder order) {
  auto construction = std::make_shared<deferred::Construction>();
  construction->by_path = order == InitOrder::kByPath;
  const auto* around = dynamic_cast<deferred::Recorder*>(deferred::operator_hook().get());
  if (around != nullptr) construction->outer = around->construction();
  if (construction->by_path) {
    construction->key =
        static_cast<at::CPUGeneratorImpl*>(base::default_generator().unsafeGetGeneratorImpl())
            ->random64();
  }
  return construction;
}

}  // namespace

struct delay_param_initialization::State {
  explicit State(InitOrder order) : recorder(new_construction(order)), scope(recorder) {
    ++deferred::open_scopes();
  }
  ~State() {
    --deferred::open_scopes();
    recorder.close();
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  deferred::Recorder recorder;
  deferred::HookScope scope;
};

delay_param_initialization::delay_param_initialization(InitOrder order) {
  if (deferred::is_switched_off()) return;
  deferred::add_meta_kernels();
  state_ = std::make_unique<State>(order);
}

delay_param_initialization::~delay_param_initialization() = default;

}  // namespace smp
