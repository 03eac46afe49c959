// api/session/neuron_start.h: the Neuron memory that a program has asked for, and its start with
// the job. Threads: the rank's.
#pragma once

#include <memory>

#include "d2d/job/mpi_session.h"
#include "d2d/job/neuron_wires.h"
#include "smp/program/neuron.h"

namespace smp {

/// What an object of NeuronTensors stands for. A session shares it, since its wires use the memory.
class NeuronStart {
 public:
  virtual ~NeuronStart() = default;
  /// For the comparison of ranks.
  virtual const char* name() const noexcept = 0;
  /// Takes what it takes of the machine; does nothing the second time.
  /// @throws  as smp::init() with NeuronTensors
  virtual void start(const d2d::MpiSession& job, c10::Device computing) = 0;
  /// This rank's core. After start().
  virtual const d2d::NeuronEnd& end() const noexcept = 0;
  virtual bool has_started() const noexcept = 0;
};

/// Returns what this process has asked for; nullptr: nothing.
std::shared_ptr<NeuronStart> asked_neuron();
/// Asks for it. @throws UsageError  something else was asked for.
void ask_for_neuron(const std::shared_ptr<NeuronStart>& start);

std::shared_ptr<NeuronStart> start_of(const NeuronMemory& memory);
std::shared_ptr<NeuronStart> start_of(const NeuronStorages& storages, NeuronCore core);

}  // namespace smp
