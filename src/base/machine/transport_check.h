// base/machine/transport_check.h: whether the libraries that carry bytes between ranks are there,
// and what the environment tells them, with what to do where that stands in the way.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/machine/machine_check.h"

namespace smp::base {

/// A network library, as it was found on this machine.
struct NetworkLibrary {
  std::string version;  ///< "1.13.1"; empty: it is not there, or does not start
  std::string uses;     ///< the parts of it that a job would use, "tcp;ofi_rxm"; empty: unknown
  std::string problem;  ///< why it does not start, then after "; " what to do
};

struct TransportFacts {
  std::string transport = "auto";  ///< the setting
  int ranks = 1;                   ///< ranks that are to run on this machine
  double cores = 1;                ///< cores that may run at once
  bool reads_other_processes = true;
  bool fast_network = false;  ///< an adapter for EFA, InfiniBand or RoCE is there
  NetworkLibrary ucx, ofi;
  std::map<std::string, std::string> environment;  ///< variables UCX_*, FI_* and OMPI_MCA_*
  std::vector<std::string> interfaces;  ///< "eth0", "mlx5_0"; empty: it is not known which
};

/// Judges UCX, libfabric and MPI's settings, in this order on all machines; for each, the findings
/// tell first what there is, then what is wrong. A pure function.
std::vector<MachineFinding> check_transports(const TransportFacts& facts);

}  // namespace smp::base
