// base/cluster/node_type.cpp: the table. Adding a kind is one entry; where sources disagree is said
// in docs/trainium_plans.md.
#include "base/cluster/node_type.h"

#include <algorithm>

namespace smp::base {
namespace {

constexpr double kGigabyte = 1e9;
constexpr double kGibibyte = 1073741824;
constexpr double kGigabit = kGigabyte / 8;

/// One way of a bandwidth that is given for both ways together.
constexpr double kOneWay = 0.5;
/// What a copy within one memory leaves of its bandwidth: it is read and written.
constexpr double kCopy = 0.5;
/// The neighbours of a device in a torus of two dimensions share its bandwidth.
constexpr double kNeighbours = 4;

/// One machine with a 4 x 4 torus of chips.
/// @param chip  bytes/s of NeuronLink of a chip, both ways together
NodeType torus_of_16(const char* name, const char* about, double chip) {
  NodeType type;
  type.name = name;
  type.about = about;
  type.devices = 16;
  const double link = kOneWay * chip / kNeighbours;
  type.torus = {{4, link}, {4, link}};
  return type;
}

/// "Trn1/Trn1n Architecture" of the AWS Neuron documentation: 2 cores a chip, 820 GiB/s of memory
/// that they share, and NeuronLink per chip, taken to be both ways together.
NodeType trn1(const char* name, const char* about, double chip, int adapters) {
  auto type = torus_of_16(name, about, chip);
  type.device = "neuroncore-v2";
  type.ranks_of_device = 2;
  type.within_device = kCopy * 820 * kGibibyte;
  type.adapters = adapters;
  type.adapter = 100 * kGigabit;
  return type;
}

/// A chip without a neighbour.
NodeType trn1_of_one() {
  auto type = trn1("trn1.2xlarge", "1 Trainium", 0, 1);
  type.devices = 1;
  type.torus.clear();
  type.adapter = 25 * kGigabit;  // at most
  return type;
}

/// "Trn2 Architecture": 4 logical cores a chip (two physical ones each, the default), 2.9 TB/s, 16
/// adapters.
NodeType trn2(const char* name, const char* about) {
  auto type = torus_of_16(name, about, 1024 * kGigabyte);
  type.device = "neuroncore-v3x2";
  type.ranks_of_device = 4;
  type.within_device = kCopy * 2900 * kGigabyte;
  type.adapters = 16;
  type.adapter = 200 * kGigabit;
  return type;
}

/// Its network is said nowhere; one adapter is assumed.
NodeType trn2_of_one() {
  auto type = trn2("trn2.3xlarge", "1 Trainium2");
  type.devices = type.adapters = 1;
  type.torus.clear();
  return type;
}

/// Four trn2u machines, whose chips at the same place form a ring of 256 GB/s a chip, both ways and
/// to both neighbours together.
NodeType trn2_ultraserver() {
  auto type = trn2("trn2-ultraserver", "64 Trainium2 of 4 machines, 4 x 4 x 4 torus");
  type.instances = 4;
  type.devices *= type.instances;
  type.adapters *= type.instances;
  type.torus.insert(type.torus.begin(), {4, kOneWay * 256 * kGigabyte / 2});
  return type;
}

/// "Trn3 Architecture": 2,048 GiB/s of NeuronLink a chip at switches that reach all of an
/// UltraServer, taken to be both ways together; a chip has 200 Gbit/s of the network. Logical cores
/// of two, as on Trn2.
NodeType trn3(const char* name, const char* about, int instances, int devices) {
  NodeType type;
  type.name = name;
  type.about = about;
  type.device = "neuroncore-v4x2";
  type.instances = instances;
  type.devices = type.adapters = devices;
  type.ranks_of_device = 4;
  type.within_device = kCopy * 4900 * kGigabyte;
  type.switch_port = kOneWay * 2048 * kGibibyte;
  type.adapter = 200 * kGigabit;
  return type;
}

/// Accelerators at a switch, or linked each with each as fast.
NodeType switched(const char* name, const char* about, const char* device, int devices,
                  double port) {
  NodeType type;
  type.name = name;
  type.about = about;
  type.device = device;
  type.devices = devices;
  type.switch_port = port * kGigabyte;
  return type;
}

/// "Distributed Training of Large Language Models on AWS Trainium", table 1: 600 GB/s of NVLink,
/// both ways together; 400 Gbit/s of 4 adapters.
NodeType p4d() {
  auto type = switched("p4d.24xlarge", "8 NVIDIA A100 40 GB, NVSwitch", "a100-40gb", 8, 300);
  type.adapters = 4;
  type.adapter = 100 * kGigabit;
  return type;
}

/// Nodes of the AxoNN paper (section VI): 4 adapters of Slingshot 11, 25 GB/s each way.
NodeType with_slingshot(NodeType type) {
  type.adapters = 4;
  type.adapter = 25 * kGigabyte;
  return type;
}

/// The two dies of an MI250X reach each other with 200 GB/s (OLCF, Frontier User Guide). From a die
/// to another package it is 50 to 100; taken as 50, so as 100 of a package.
NodeType frontier() {
  auto type = switched("frontier", "4 AMD MI250X of 2 dies", "mi250x-gcd", 4, 100);
  type.ranks_of_device = 2;
  type.within_device = 200 * kGigabyte;
  return with_slingshot(type);
}

}  // namespace

const std::vector<NodeType>& node_types() {
  static const std::vector<NodeType> all{
      trn1_of_one(),
      trn1("trn1.32xlarge", "16 Trainium, 4 x 4 torus", 384 * kGibibyte, 8),
      trn1("trn1n.32xlarge", "16 Trainium, 4 x 4 torus", 768 * kGibibyte, 16),
      trn2_of_one(),
      trn2("trn2.48xlarge", "16 Trainium2, 4 x 4 torus"),
      trn2_ultraserver(),
      trn3("trn3-gen1-ultraserver", "64 Trainium3 of 4 machines, switched", 4, 64),
      trn3("trn3-gen2-ultraserver", "144 Trainium3 of 36 machines, switched", 36, 144),
      p4d(),
      with_slingshot(switched("perlmutter", "4 NVIDIA A100 40 GB", "a100-40gb", 4, 300)),
      frontier(),
      with_slingshot(switched("alps", "4 NVIDIA GH200", "gh200", 4, 450))};
  return all;
}

const NodeType* find_node_type(std::string_view name) {
  const auto found = std::find_if(node_types().begin(), node_types().end(),
                                  [&](const NodeType& type) { return type.name == name; });
  return found == node_types().end() ? nullptr : &*found;
}

std::vector<std::string> node_type_names() {
  std::vector<std::string> names;
  for (const NodeType& type : node_types()) names.push_back(type.name);
  return names;
}

}  // namespace smp::base
