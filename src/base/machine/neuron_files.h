// base/machine/neuron_files.h: what the files of a machine tell of its AWS Neuron devices, without
// the runtime library.
#pragma once

#include <string>
#include <vector>

namespace smp::base {

/// A process that has Neuron devices open.
struct NeuronHolder {
  int process = 0;
  std::string name;          ///< of its program; empty: not known
  std::vector<int> devices;  ///< ascending
  /// The cores that its environment claims: "NEURON_RT_VISIBLE_CORES=0-7"; empty: none are named,
  /// so all.
  std::string claim;
  bool readable = true;  ///< its environment may be read; else `claim` is not known
};

/// The Neuron devices of a machine and the software for them. Versions are as the files have them;
/// empty: there is none.
struct NeuronFacts {
  std::string kind;                   ///< "Trainium2", of the devices on the bus; empty: not known
  int on_bus = 0;                     ///< PCI devices of that kind
  std::vector<int> devices;           ///< N of each /dev/neuronN that the driver made, ascending
  std::string driver;                 ///< version of the loaded kernel module: "2.31.24.0"
  std::string runtime;                ///< version of libnrt.so: "2.34.10.0"
  bool collectives = false;           ///< libnccom.so is beside it
  std::string kernel;                 ///< release: "5.15.0-1053-aws"
  std::vector<std::string> adapters;  ///< EFA devices by name, sorted
  std::vector<NeuronHolder> holders;  ///< ascending by process

  /// True if the machine has Neuron devices, with or without a driver.
  bool any() const { return on_bus > 0 || !devices.empty(); }
};

/// Looks at the files of a machine. What cannot be read counts as not there.
/// @param root  "/", or a folder that stands for it
[[nodiscard]] NeuronFacts look_at_neuron(const std::string& root);

}  // namespace smp::base
