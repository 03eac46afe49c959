// d2d/job/gpu_wires.cpp: see the header.
#include "d2d/job/gpu_wires.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "d2d/job/joint_step.h"
#include "d2d/job/machine_wires.h"
#include "d2d/wire/wire_probe.h"
#include "d2d/wires/cuda/cuda_driver.h"
#include "d2d/wires/cuda/cuda_ipc_wire.h"

namespace smp::d2d {
namespace {

/// Makes another stream LibTorch's current one while it lives: work that is put there and never
/// done stands in nobody's way.
class OtherStream {
 public:
  explicit OtherStream(c10::Device device)
      : guard_(device.type()),
        outer_(guard_.exchangeStream(guard_.getStreamFromGlobalPool(device))) {}
  ~OtherStream() { guard_.exchangeStream(outer_); }
  OtherStream(const OtherStream&) = delete;
  OtherStream& operator=(const OtherStream&) = delete;

 private:
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream outer_;
};

void require_carried(CudaIpcWire& wire, c10::Device device) {
  const OtherStream stream(device);
  const auto wrong = probe(wire, kProbePatience, wire.probe_memory());
  SMP_REQUIRE_AS(PeerLostError, wrong.empty(), wrong);
}

/// Returns `own` of each of `members`, in their order. All ranks call it.
std::vector<std::string> gather_from(const MpiSession& job, const Members& members,
                                     const std::string& own) {
  const auto all = job.all_gather(own);
  std::vector<std::string> texts;
  for (const GlobalRank member : members) texts.push_back(all[member.index()]);
  return texts;
}

/// Connects and tries the wire. Collective over all ranks of the job.
/// @param problem  set to that of some rank if nullptr is returned
std::unique_ptr<Wire> try_cuda_ipc(const MpiSession& job, c10::Device device,
                                   const HostShmWire& beside, bool shared_events,
                                   std::string& problem) {
  base::MemoryRefusal refusal;
  auto messages = share_rings(job, {.blocks = 1}, &beside, refusal);
  if (!messages) {
    problem = refusal.reason.empty() ? "the machine refuses shared memory" : refusal.reason;
    return nullptr;
  }
  const Members members = messages->members();
  const auto all_did = [&](const std::function<void()>& step) {
    const JointStep taken(job, step);
    problem = taken.problem();
    return problem.empty();
  };
  std::unique_ptr<CudaDriver> driver;
  std::string gpu;
  const auto find_gpu = [&] {
    driver = std::make_unique<CudaDriver>(device);
    gpu = driver->identity();
  };
  if (!all_did(find_gpu)) return nullptr;
  const auto gpus = gather_from(job, members, gpu);
  std::unique_ptr<CudaIpcWire> wire;
  std::string offer;
  const auto set_aside = [&] {
    wire = std::make_unique<CudaIpcWire>(std::move(messages), std::move(driver), gpus,
                                         CudaIpcOptions{.shared_events = shared_events});
    offer = wire->offer();
  };
  if (!all_did(set_aside)) return nullptr;
  const auto offers = gather_from(job, members, offer);
  if (!all_did([&] { wire->connect(offers); })) {
    wire->disconnect();
    job.barrier();  // nobody frees what another has open
    return nullptr;
  }
  // If not, it frees nothing: its copies may never be done.
  if (!all_did([&] { require_carried(*wire, device); })) return nullptr;
  return wire;
}

}  // namespace

std::unique_ptr<Wire> connect_cuda_ipc(const MpiSession& job, c10::Device device,
                                       const HostShmWire& beside) {
  std::string with_events, without;
  auto wire = try_cuda_ipc(job, device, beside, /*shared_events=*/true, with_events);
  if (!wire) wire = try_cuda_ipc(job, device, beside, /*shared_events=*/false, without);
  if (!with_events.empty() && job.rank().value() == 0) {
    base::log(base::LogLevel::kWarning,
              wire ? "GPUs of a machine cannot wait for each other here, each piece of a tensor is "
                     "announced when it is there: "
                   : "GPUs of a machine cannot reach each other's memory here, tensors go through "
                     "host memory: ",
              with_events, without == with_events || without.empty() ? "" : "; " + without);
  }
  return wire;
}

}  // namespace smp::d2d
