// api/session/neuron.cpp: what a program says of Neuron memory.
#include "smp/program/neuron.h"

#include "api/rank/rank.h"
#include "api/session/neuron_start.h"
#include "base/check.h"
#include "base/machine/home_device.h"
#include "smp/error.h"

namespace smp {
namespace {

/// The wires of a session are chosen when it starts.
void require_before_init() {
  SMP_REQUIRE(Rank::find_current() == nullptr,
              "smp::NeuronTensors while a session runs; make it before smp::init()");
}

}  // namespace

NeuronStorages::~NeuronStorages() = default;

void NeuronStorages::about_to_free(nrt_tensor* tensor) const {
  if (on_free_) on_free_(tensor);
}

NeuronTensors::NeuronTensors(const NeuronMemory& memory) {
  require_before_init();
  start_ = start_of(memory);
  ask_for_neuron(start_);
}

NeuronTensors::NeuronTensors(const NeuronStorages& storages, NeuronCore core) {
  require_before_init();
  start_ = start_of(storages, core);
  ask_for_neuron(start_);
}

NeuronTensors::~NeuronTensors() = default;

at::Device NeuronTensors::device() const {
  if (start_->has_started()) return base::home_of(c10::DeviceType::PrivateUse1);
  SMP_REQUIRE(Rank::find_current() != nullptr,
              "the device of smp::NeuronTensors before smp::init(), which claims its core");
  return c10::Device(c10::DeviceType::CPU);
}

}  // namespace smp
