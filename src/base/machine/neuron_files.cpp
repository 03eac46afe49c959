// base/machine/neuron_files.cpp: /sys, /dev, /proc and the folder of AWS's packages.
#include "base/machine/neuron_files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/text/dotted_version.h"

namespace smp::base {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAmazon = "0x1d0f";  // vendor, of EFA too

/// The devices that AWS's driver takes, by PCI number.
constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
    {"0x7164", "Trainium"},  {"0x7264", "Inferentia2"}, {"0x7364", "Trainium2"},
    {"0x7564", "Trainium3"}, {"0x7565", "Trainium3"},
};

std::string first_line_of(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator each(folder, error), end; !error && each != end;
       each.increment(error)) {
    paths.push_back(each->path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// Returns the number that `text` is after `prefix`, if it is that and nothing else.
std::optional<int> number_after(std::string_view prefix, std::string_view text) {
  if (!text.starts_with(prefix)) return std::nullopt;
  text.remove_prefix(prefix.size());
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

void look_at_bus(const fs::path& root, NeuronFacts& facts) {
  for (const auto& device : entries_of(root / "sys/bus/pci/devices")) {
    if (first_line_of(device / "vendor") != kAmazon) continue;
    const auto number = first_line_of(device / "device");
    for (const auto& [known, kind] : kKinds) {
      if (number != known) continue;
      facts.kind = kind;
      ++facts.on_bus;
    }
  }
}

void look_at_adapters(const fs::path& root, NeuronFacts& facts) {
  for (const auto& adapter : entries_of(root / "sys/class/infiniband")) {
    if (first_line_of(adapter / "device/vendor") != kAmazon) continue;
    facts.adapters.push_back(adapter.filename().string());
  }
}

/// The library's file is named by its version; links to it are shorter.
void look_at_libraries(const fs::path& root, NeuronFacts& facts) {
  for (const auto& file : entries_of(root / "opt/aws/neuron/lib")) {
    const auto name = file.filename().string();
    facts.collectives |= name.starts_with("libnccom.so");
    const std::string prefix = "libnrt.so.";
    if (!name.starts_with(prefix)) continue;
    const auto version = name.substr(prefix.size());
    if (parsed_version(version).size() < 2) continue;
    if (facts.runtime.empty() || parsed_version(facts.runtime) < parsed_version(version)) {
      facts.runtime = version;
    }
  }
}

std::vector<int> open_devices(const fs::path& process) {
  std::vector<int> devices;
  for (const auto& file : entries_of(process / "fd")) {
    std::error_code error;
    const auto target = fs::read_symlink(file, error).string();
    if (const auto device = number_after("/dev/neuron", target)) devices.push_back(*device);
  }
  std::sort(devices.begin(), devices.end());
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  return devices;
}

/// The list of cores beats their number, as for the runtime.
void read_claim(const fs::path& process, NeuronHolder& holder) {
  std::ifstream stream(process / "environ", std::ios::binary);
  holder.readable = stream.good();
  const std::string all{std::istreambuf_iterator<char>(stream), {}};
  for (const std::string name : {"NEURON_RT_VISIBLE_CORES=", "NEURON_RT_NUM_CORES="}) {
    for (std::size_t start = 0; start < all.size();) {
      const auto end = std::min(all.find('\0', start), all.size());
      const auto variable = all.substr(start, end - start);
      if (variable.starts_with(name) && holder.claim.empty()) holder.claim = variable;
      start = end + 1;
    }
  }
}

void look_at_processes(const fs::path& root, NeuronFacts& facts) {
  for (const auto& process : entries_of(root / "proc")) {
    const auto number = number_after("", process.filename().string());
    if (!number) continue;
    NeuronHolder holder;
    holder.process = *number;
    holder.devices = open_devices(process);
    if (holder.devices.empty()) continue;
    holder.name = first_line_of(process / "comm");
    read_claim(process, holder);
    facts.holders.push_back(std::move(holder));
  }
  std::sort(facts.holders.begin(), facts.holders.end(),
            [](const auto& a, const auto& b) { return a.process < b.process; });
}

}  // namespace

NeuronFacts look_at_neuron(const std::string& root) {
  const fs::path top(root);
  NeuronFacts facts;
  look_at_bus(top, facts);
  for (const auto& file : entries_of(top / "dev")) {
    if (const auto number = number_after("neuron", file.filename().string())) {
      facts.devices.push_back(*number);
    }
  }
  std::sort(facts.devices.begin(), facts.devices.end());
  if (!facts.any()) return facts;
  facts.driver = first_line_of(top / "sys/module/neuron/version");
  look_at_libraries(top, facts);
  facts.kernel = first_line_of(top / "proc/sys/kernel/osrelease");
  look_at_adapters(top, facts);
  look_at_processes(top, facts);
  return facts;
}

}  // namespace smp::base
