// d2d/collectives/device_collectives.cpp: which devices have some.
#include "d2d/collectives/device_collectives.h"

#include <map>
#include <utility>

#include "d2d/collectives/nccl_collectives.h"

namespace smp::d2d {
namespace {

std::map<c10::DeviceType, MakeDeviceCollectives>& makers() {
  static std::map<c10::DeviceType, MakeDeviceCollectives> all{
      {c10::DeviceType::CUDA, make_nccl_collectives}};
  return all;
}

}  // namespace

MakeDeviceCollectives device_collectives_of(c10::DeviceType type) {
  const auto found = makers().find(type);
  return found == makers().end() ? nullptr : found->second;
}

void set_device_collectives(c10::DeviceType type, MakeDeviceCollectives make) {
  makers()[type] = std::move(make);
}

}  // namespace smp::d2d
