// api/rank/rank_device.cpp: see the header.
#include "api/rank/rank_device.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "base/check.h"
#include "base/machine/home_device.h"
#include "base/random.h"
#include "d2d/tensors/tensor_bytes.h"
#include "d2d/wire/wire.h"

namespace smp {
namespace {

c10::Device parsed(const std::string& name) {
  try {
    return c10::Device(name);
  } catch (const c10::Error&) {
    throw UsageError(
        base::concat("device = ", name, ": LibTorch knows no such device; use cpu or cuda"));
  }
}

}  // namespace

c10::Device take_device(const std::string& name, int local_rank) {
  auto device = parsed(name);
  SMP_REQUIRE(!device.has_index(), "device = ", name,
              ": each rank of a machine takes one of its own, in turn; leave the number out");
  if (!device.is_cpu()) {
    SMP_REQUIRE(c10::impl::hasDeviceGuardImpl(device.type()), "device = ", name,
                ": this LibTorch was built without it; install one with it, and link it whole "
                "(for CUDA: libtorch_cuda.so, which a program does not name, is needed as well)");
    const c10::impl::VirtualGuardImpl devices(device.type());
    const auto count = devices.deviceCount();
    SMP_REQUIRE(count > 0, "device = ", name,
                ": this machine has none that LibTorch can use; look at the driver (nvidia-smi) "
                "and at CUDA_VISIBLE_DEVICES");
    device.set_index(static_cast<c10::DeviceIndex>(local_rank % count));
    devices.setDevice(device);
  }
  base::set_home_device(device);
  base::set_random_device(device);
  return device;
}

c10::Device memory_device(c10::Device device) {
  constexpr auto kBeside = c10::DeviceType::PrivateUse1;
  if (!device.is_cpu() || d2d::memory_kind(kBeside) != d2d::MemoryKind::kNeuron) return device;
  const c10::Device core(kBeside, 0);
  return d2d::tensor_bytes(core) ? core : device;  // its memory may have been given back
}

}  // namespace smp
