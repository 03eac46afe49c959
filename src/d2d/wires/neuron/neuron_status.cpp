// d2d/wires/neuron/neuron_status.cpp: see the header.
#include "d2d/wires/neuron/neuron_status.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

struct Known {
  int status;
  const char* name;
  const char* remedy;
};

constexpr const char* kRestart = "restart from a checkpoint";
constexpr const char* kDevice =
    "the device failed: restart from a checkpoint, on another instance if it comes again "
    "(`neuron-monitor` and `dmesg` tell what the driver saw)";
constexpr const char* kReport = "please report it";

constexpr std::array<Known, 29> kKnown{{
    {1, "NRT_FAILURE", "the runtime's log has more (NEURON_RT_LOG_LEVEL=INFO)"},
    {2, "NRT_INVALID", kReport},
    {3, "NRT_INVALID_HANDLE", kReport},
    {4, "NRT_RESOURCE", "make room on the core: less at once, a smaller model, or more stages"},
    {5, "NRT_TIMEOUT",
     "look whether the other rank still runs and EFA's security group lets all "
     "traffic through; restart from a checkpoint"},
    {6, "NRT_HW_ERROR", kDevice},
    {7, "NRT_QUEUE_FULL", kReport},
    {9, "NRT_LOAD_NOT_ENOUGH_NC", "another process has the core: `neuron-ls` shows which"},
    {10, "NRT_UNSUPPORTED_NEFF_VERSION", kReport},
    {11, "NRT_FAIL_HOST_MEM_ALLOC", "make room in the host's memory"},
    {13, "NRT_UNINITIALIZED", kReport},
    {14, "NRT_CLOSED", kReport},
    {15, "NRT_QUEUE_EMPTY", kReport},
    {101, "NRT_EXEC_UNIT_UNRECOVERABLE",
     "nothing runs on this core any more: end the process and restart from a checkpoint"},
    {1002, "NRT_EXEC_BAD_INPUT", kReport},
    {1003, "NRT_EXEC_COMPLETED_WITH_NUM_ERR", "values are not numbers: look at the model"},
    {1004, "NRT_EXEC_COMPLETED_WITH_ERR", kRestart},
    {1005, "NRT_EXEC_NC_BUSY", "another process has the core: `neuron-ls` shows which"},
    {1006, "NRT_EXEC_OOB", kReport},
    {1100, "NRT_COLL_PENDING", kReport},
    {1200, "NRT_EXEC_HW_ERR_COLLECTIVES", kDevice},
    {1201, "NRT_EXEC_HW_ERR_HBM_UE", kDevice},
    {1202, "NRT_EXEC_HW_ERR_NC_UE", kDevice},
    {1203, "NRT_EXEC_HW_ERR_DMA_ABORT", kDevice},
    {1204, "NRT_EXEC_SW_NQ_OVERFLOW", kRestart},
    {1205, "NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE", kDevice},
    {1206, "NRT_NETWORK_PROXY_FAILURE", "look at EFA's driver; restart from a checkpoint"},
    {0, "NRT_SUCCESS", ""},
    {-1, "no status", "a request ended and nobody said how; restart from a checkpoint"},
}};

const Known* find(int status) {
  const auto* const found = std::find_if(
      kKnown.begin(), kKnown.end(), [status](const Known& each) { return each.status == status; });
  return found == kKnown.end() ? nullptr : found;
}

}  // namespace

std::string text_of_status(int status) {
  const auto* const known = find(status);
  return base::concat(known == nullptr ? "an unknown status" : known->name, " (", status, ')');
}

std::string remedy_of_status(int status) {
  const auto* const known = find(status);
  return known == nullptr ? kRestart : known->remedy;
}

void throw_neuron_error(int status, const std::string& doing, const char* call,
                        const NeuronCaller& caller) {
  const auto text = base::concat("rank ", caller.rank, ", Neuron core ", caller.core,
                                 " of its host: ", doing, ": ", call, " returned ",
                                 text_of_status(status), "; ", remedy_of_status(status));
  if (status == neuron_status::kResource) throw ResourceError(text);
  throw PeerLostError(text);
}

}  // namespace smp::d2d
