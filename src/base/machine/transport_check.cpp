// base/machine/transport_check.cpp: one function a finding.
#include "base/machine/transport_check.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/check.h"
#include "base/text/excerpt.h"

namespace smp::base {
namespace {

using Grade = MachineFinding::Grade;
using Findings = std::vector<MachineFinding>;

constexpr const char* kUcx = "UCX";
constexpr const char* kOfi = "libfabric";
constexpr const char* kMpi = "MPI settings";

/// Returns the value of an environment variable; empty if it is not set.
std::string value_of(const TransportFacts& facts, const std::string& name) {
  const auto found = facts.environment.find(name);
  return found == facts.environment.end() ? std::string() : found->second;
}

/// Splits a list such as "tcp, self" into its parts, without spaces.
std::vector<std::string> parts_of(const std::string& list) {
  std::vector<std::string> parts(1);
  for (const char each : list) {
    if (each == ',') {
      parts.emplace_back();
    } else if (each != ' ') {
      parts.back() += each;
    }
  }
  return parts;
}

template <class Names>
bool contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Returns the variables whose names start with `beginning`, as "UCX_TLS = tcp, UCX_LOG_LEVEL =
/// warn".
std::string variables(const TransportFacts& facts, const std::string& beginning) {
  std::string text;
  for (const auto& [name, value] : facts.environment) {
    if (!name.starts_with(beginning)) continue;
    text += concat(text.empty() ? "" : ", ", name, " = ", excerpt(value));
  }
  return text.empty() ? concat("no ", beginning, "* variable is set") : text;
}

/// Judges a network library. @param setting  the transport that needs it
MachineFinding library(const TransportFacts& facts, const NetworkLibrary& found, const char* name,
                       const char* setting, const char* beginning) {
  const auto set = variables(facts, beginning);
  const bool wanted = facts.transport == setting;
  if (found.version.empty()) {
    const auto end = found.problem.find("; ");
    const auto problem = concat(found.problem.substr(0, end), "; ", set);
    if (!wanted) {
      return {Grade::kGood, name, concat("only transport = ", setting, " needs it: ", problem), {}};
    }
    const auto remedy = end == std::string::npos ? "transport = auto does without it"
                                                 : found.problem.substr(end + 2);
    return {Grade::kBroken, name, concat("transport = ", setting, " needs it: ", problem), remedy};
  }
  return {Grade::kGood,
          name,
          concat(found.version, found.uses.empty() ? "" : " over ", found.uses,
                 wanted ? "" : concat(", for transport = ", setting), "; ", set),
          {}};
}

/// Adds a finding if the list in `variable` names interfaces that this machine does not have.
/// Patterns are left alone.
void add_unknown_interfaces(const TransportFacts& facts, const char* name, const char* setting,
                            const std::string& variable, Findings& findings) {
  const auto value = value_of(facts, variable);
  if (value.empty() || facts.interfaces.empty() ||
      value.find_first_of("*[^") != std::string::npos) {
    return;
  }
  std::string unknown, known;
  for (const auto& part : parts_of(value)) {
    const auto device = part.substr(0, part.find(':'));  // of an adapter, the port follows
    if (device.empty() || device == "all" || contains(facts.interfaces, device)) continue;
    unknown += concat(unknown.empty() ? "" : ", ", excerpt(device));
  }
  if (unknown.empty()) return;
  for (const auto& each : facts.interfaces) known += concat(known.empty() ? "" : ", ", each);
  findings.push_back({facts.transport == setting ? Grade::kBroken : Grade::kNote, name,
                      concat(variable, " names ", unknown, ", which this machine does not have"),
                      concat("choose among ", known, ", or unset ", variable)});
}

// ---- UCX ----

/// The transports of UCX that reach no other machine. Those that do are not listed, since new ones
/// are added.
constexpr std::array kUcxWithinMachines = {
    "self",  "sm",   "shm",       "mm",       "posix",    "sysv", "cma",       "knem",
    "xpmem", "cuda", "cuda_copy", "cuda_ipc", "gdr_copy", "rocm", "rocm_copy", "rocm_ipc"};

void add_ucx(const TransportFacts& facts, Findings& findings) {
  findings.push_back(library(facts, facts.ucx, kUcx, "ucx", "UCX_"));
  const auto tls = value_of(facts, "UCX_TLS");
  const auto parts = parts_of(tls);
  const bool within = !tls.empty() && std::all_of(parts.begin(), parts.end(), [](const auto& each) {
    return contains(kUcxWithinMachines, each);
  });
  if (within) {
    findings.push_back({Grade::kNote, kUcx,
                        concat("UCX_TLS = ", excerpt(tls), " reaches no other machine"),
                        "add a network that `ucx_info -d` lists (tcp, rc, ud), or unset UCX_TLS"});
  }
  add_unknown_interfaces(facts, kUcx, "ucx", "UCX_NET_DEVICES", findings);
}

// ---- libfabric ----

void add_ofi(const TransportFacts& facts, Findings& findings) {
  findings.push_back(library(facts, facts.ofi, kOfi, "ofi", "FI_"));
  if (facts.ofi.uses.starts_with("shm")) {
    findings.push_back({Grade::kNote, kOfi, "shm reaches no other machine",
                        "FI_PROVIDER=efa or FI_PROVIDER=tcp, or unset FI_PROVIDER"});
  }
  const bool slow = facts.fast_network && facts.ofi.uses.find("tcp") != std::string::npos;
  if (slow && facts.transport == "ofi") {
    findings.push_back({Grade::kNote, kOfi, "TCP is used, and there is a faster adapter",
                        "EFA's libfabric, FI_PROVIDER (`fi_info -t FI_EP_RDM` lists what there "
                        "is), or transport = ucx for InfiniBand and RoCE"});
  }
  add_unknown_interfaces(facts, kOfi, "ofi", "FI_TCP_IFACE", findings);
}

// ---- MPI ----

bool is_on(const std::string& value) {
  constexpr std::array kOn = {"1", "true", "t", "yes", "y", "enabled"};
  return contains(kOn, value);
}

void add_turns(const TransportFacts& facts, Findings& findings) {
  const std::string name = "OMPI_MCA_mpi_yield_when_idle";
  if (facts.ranks <= facts.cores || is_on(value_of(facts, name))) return;
  findings.push_back({Grade::kNote, kMpi,
                      concat(facts.ranks, " ranks take turns on ", facts.cores,
                             facts.cores == 1 ? " core" : " cores",
                             ", and one that waits in MPI may keep its core"),
                      "mpirun --mca mpi_yield_when_idle 1, or " + name + "=1"});
}

/// Adds findings about how MPI copies large messages within a machine, which it only does for
/// transport = mpi.
void add_copies(const TransportFacts& facts, Findings& findings) {
  const std::string name = "OMPI_MCA_btl_vader_single_copy_mechanism";
  const auto value = value_of(facts, name);
  if (!facts.reads_other_processes && (value.empty() || value == "cma")) {
    findings.push_back({Grade::kNote, kMpi,
                        "MPI tries to read the memory of other processes, which is forbidden here: "
                        "it may complain, or fail with large messages",
                        name + "=none, or allow it as said of large tensors"});
  }
  if (facts.reads_other_processes && value == "none" && facts.transport == "mpi") {
    findings.push_back({Grade::kNote, kMpi,
                        name + " = none: MPI copies large messages twice, and need not",
                        "unset " + name});
  }
}

/// Adds findings about the components of MPI that its settings choose; "^" before a list excludes
/// the components in it.
void add_components(const TransportFacts& facts, Findings& findings) {
  const auto pml = value_of(facts, "OMPI_MCA_pml");
  if (contains(parts_of(pml), "ucx") && facts.ucx.version.empty()) {
    findings.push_back({Grade::kBroken, kMpi,
                        concat("OMPI_MCA_pml = ", excerpt(pml), ", and UCX is not there"),
                        "OMPI_MCA_pml=ob1, or install UCX (Debian: libucx0)"});
  }
  const auto btl = value_of(facts, "OMPI_MCA_btl");
  const bool only_ob1_has_them = pml.empty() || contains(parts_of(pml), "ob1");
  if (btl.empty() || !only_ob1_has_them) return;
  const bool without = btl.starts_with('^');
  const auto names = parts_of(without ? btl.substr(1) : btl);
  const auto found = concat("OMPI_MCA_btl = ", excerpt(btl));
  if (!without && !contains(names, "self")) {
    findings.push_back({Grade::kBroken, kMpi, found + ": without self a rank cannot reach itself",
                        "add self, or unset OMPI_MCA_btl"});
  }
  const bool named = contains(names, "vader") || contains(names, "sm");
  if (named == without && facts.transport == "mpi") {
    findings.push_back({Grade::kNote, kMpi,
                        found + ": ranks of a machine reach each other over the network",
                        "add vader (Open MPI 5: sm), or unset OMPI_MCA_btl"});
  }
}

void add_mpi(const TransportFacts& facts, Findings& findings) {
  findings.push_back({Grade::kGood, kMpi, variables(facts, "OMPI_MCA_"), {}});
  add_turns(facts, findings);
  add_copies(facts, findings);
  add_components(facts, findings);
}

}  // namespace

std::vector<MachineFinding> check_transports(const TransportFacts& facts) {
  Findings findings;
  add_ucx(facts, findings);
  add_ofi(facts, findings);
  add_mpi(facts, findings);
  return findings;
}

}  // namespace smp::base
