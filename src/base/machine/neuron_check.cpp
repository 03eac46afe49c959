// base/machine/neuron_check.cpp: one function a finding. Which versions go together is from the
// release notes of AWS's runtime and driver.
#include "base/machine/neuron_check.h"

#include <cstdint>
#include <utility>

#include "base/check.h"
#include "base/text/dotted_version.h"
#include "base/text/excerpt.h"

namespace smp::base {
namespace {

using Grade = MachineFinding::Grade;
using Version = std::vector<std::int64_t>;

constexpr const char* kInstallDriver =
    "apt-get install aws-neuronx-dkms, then modprobe neuron (docs/trainium_plans.md)";
constexpr const char* kInstallRuntime =
    "apt-get install aws-neuronx-runtime-lib aws-neuronx-collectives";

/// The SDK that each runtime came with.
constexpr std::pair<int, const char*> kSdks[] = {
    {29, "2.27"}, {30, "2.28"}, {31, "2.29"}, {32, "2.30"},
    {33, "2.31"}, {34, "2.32"}, {35, "2.33"},
};

bool is_before(const std::string& version, const Version& other) {
  return parsed_version(version) < other;
}

/// Returns ascending numbers with runs as "0-3, 8".
std::string ranges_of(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0, end = 0; i < numbers.size(); i = end) {
    for (end = i + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;) ++end;
    text += concat(text.empty() ? "" : ", ", numbers[i]);
    if (end - i > 1) text += concat('-', numbers[end - 1]);
  }
  return text;
}

int cores_of_device(const std::string& kind) {
  return kind == "Trainium2" || kind == "Trainium3" ? 8 : 2;
}

MachineFinding neuron_devices(const NeuronFacts& facts) {
  const auto count = static_cast<int>(facts.devices.size());
  if (facts.driver.empty() && count == 0) {
    return {Grade::kNote, "Neuron",
            concat(facts.on_bus, ' ', facts.kind, " that no driver has taken"), kInstallDriver};
  }
  auto found = concat(count, ' ',
                      !facts.kind.empty() ? facts.kind.c_str()
                      : count == 1        ? "device"
                                          : "devices");
  if (!facts.kind.empty()) {
    found += concat(", ", count * cores_of_device(facts.kind), " physical cores");
  }
  if (facts.on_bus > count) {
    return {Grade::kNote, "Neuron",
            concat(found, ", of ", facts.on_bus, " on the bus: the driver has not taken all"),
            "see what `dmesg | grep -i neuron` says"};
  }
  return {Grade::kGood, "Neuron", found, {}};
}

MachineFinding neuron_driver(const NeuronFacts& facts) {
  if (facts.driver.empty()) {
    return {Grade::kNote, "Neuron driver", "its version is not known: /sys/module/neuron/version",
            "modinfo neuron; in a container its host has the driver"};
  }
  const bool both = !facts.runtime.empty();
  if (both && !is_before(facts.driver, {2, 29}) && is_before(facts.runtime, {2, 33})) {
    return {Grade::kNote, "Neuron driver",
            concat(facts.driver, " needs runtime 2.33 or later, and here is ", facts.runtime),
            kInstallRuntime};
  }
  if (both && is_before(facts.driver, {2, 27}) && !is_before(facts.runtime, {2, 32})) {
    return {Grade::kNote, "Neuron driver",
            concat(facts.driver, " is refused by runtime ", facts.runtime, ", which wants 2.27"),
            kInstallDriver};
  }
  return {Grade::kGood, "Neuron driver", facts.driver, {}};
}

std::string with_sdk(const std::string& runtime) {
  const auto version = parsed_version(runtime);
  for (const auto& [minor, sdk] : kSdks) {
    if (version[0] == 2 && version[1] == minor) return concat(runtime, ", of SDK ", sdk);
  }
  return runtime;
}

MachineFinding neuron_runtime(const NeuronFacts& facts) {
  if (facts.runtime.empty()) {
    return {Grade::kNote, "Neuron runtime", "there is no libnrt.so in /opt/aws/neuron/lib",
            kInstallRuntime};
  }
  if (!facts.collectives) {
    return {Grade::kNote, "Neuron runtime",
            with_sdk(facts.runtime) + ", without libnccom.so: cores cannot reach each other",
            "apt-get install aws-neuronx-collectives"};
  }
  return {Grade::kGood, "Neuron runtime", with_sdk(facts.runtime), {}};
}

std::string holder_text(const NeuronHolder& holder) {
  const auto name = holder.name.empty() ? "" : concat(" (", excerpt(holder.name), ')');
  const auto claim = !holder.readable       ? std::string("cores not known")
                     : holder.claim.empty() ? std::string("all cores")
                                            : excerpt(holder.claim);
  return concat("process ", holder.process, name, " has devices ", ranges_of(holder.devices),
                " open, ", claim);
}

MachineFinding neuron_cores(const NeuronFacts& facts) {
  if (facts.holders.empty()) {
    return {Grade::kGood, "Neuron cores", "no process that is seen has a device open", {}};
  }
  std::string found;
  for (const auto& holder : facts.holders) {
    found += (found.empty() ? "" : "; ") + holder_text(holder);
  }
  return {Grade::kNote, "Neuron cores", found,
          "cores are exclusive, and without NEURON_RT_VISIBLE_CORES a process takes all: give each "
          "job a list of its own, or end the process"};
}

/// Fewer than a machine of that many devices can have: they are chosen when it is launched.
int most_adapters(const NeuronFacts& facts) {
  if (facts.devices.size() < 16) return 0;
  return facts.kind == "Trainium" ? 8 : facts.kind == "Trainium2" ? 16 : 0;
}

MachineFinding neuron_adapters(const NeuronFacts& facts) {
  const auto count = static_cast<int>(facts.adapters.size());
  const auto found = count == 0   ? std::string("no adapter")
                     : count == 1 ? "1 adapter: " + facts.adapters.front()
                                  : concat(count, " adapters: ", facts.adapters.front(), " to ",
                                           facts.adapters.back());
  const int most = most_adapters(facts);
  if (count >= most && count > 0) return {Grade::kGood, "EFA", found, {}};
  if (count == 0) {
    return {Grade::kNote, "EFA", found + ": ranks of several machines reach each other by TCP only",
            "launch the machine with EFA network interfaces, and install its driver"};
  }
  return {Grade::kNote, "EFA", concat(found, ", of ", most, " that it may have"),
          "launch the machine with all of them: each device has one near by"};
}

MachineFinding neuron_kernel(const NeuronFacts& facts) {
  if (facts.kernel.empty()) return {Grade::kGood, "Linux", "release not known", {}};
  if (!is_before(facts.kernel, {5, 15})) return {Grade::kGood, "Linux", facts.kernel, {}};
  return {Grade::kNote, "Linux",
          facts.kernel + ": EFA cannot be given device memory (dmabuf) before 5.15",
          "a newer kernel; until then FI_EFA_FORK_SAFE=1"};
}

}  // namespace

std::vector<MachineFinding> check_neuron(const NeuronFacts& facts) {
  if (!facts.any()) return {};
  if (facts.driver.empty() && facts.devices.empty()) return {neuron_devices(facts)};
  return {neuron_devices(facts), neuron_driver(facts),   neuron_runtime(facts),
          neuron_cores(facts),   neuron_adapters(facts), neuron_kernel(facts)};
}

}  // namespace smp::base
