// d2d/collectives/device_agreement.cpp: steps that every member takes; nobody takes the next where
// one failed.
#include "d2d/collectives/device_agreement.h"

#include <exception>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "fiber/scheduler.h"

namespace smp::d2d {
namespace {

constexpr const char* kWhat = "collectives of devices";
constexpr base::Nanoseconds kPause = base::kMillisecond;
/// The time that connecting may take. The first use of GPUs takes seconds, of many machines more.
constexpr base::Nanoseconds kPatience = 120 * base::kSecond;

std::string error_of(const std::function<void()>& step) {
  try {
    step();
  } catch (const std::exception& error) {
    return *error.what() != '\0' ? error.what() : "an error without a text";
  }
  return {};
}

std::vector<std::string> gather(const Communicator& ranks, const std::string& own) {
  std::vector<std::string> texts;
  for (auto& payload : ranks.all_gather(Payload{own, {}}, kWhat)) {
    texts.push_back(std::move(payload.bytes));
  }
  return texts;
}

/// Takes a step with all members. @return the members on which it failed, and how, or nothing
std::string problems(const Communicator& ranks, const std::function<void()>& step) {
  const auto all = gather(ranks, error_of(step));
  std::string text;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].empty()) continue;
    text += base::concat(text.empty() ? "" : "; ", "rank ", ranks.members()[static_cast<int>(i)],
                         ": ", all[i]);
  }
  return text;
}

std::string shared_device(const Communicator& ranks, const std::string& own, const char* name) {
  std::map<std::string, GlobalRank> seen;
  const auto all = gather(ranks, own);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto rank = ranks.members()[static_cast<int>(i)];
    const auto [first, is_new] = seen.emplace(all[i], rank);
    if (is_new) continue;
    return base::concat("ranks ", first->second, " and ", rank, " are on one device, and ", name,
                        " wants one for each");
  }
  return {};
}

void wait_until_connected(DeviceCollectives& devices) {
  auto& scheduler = fiber::Scheduler::instance();
  const auto end = scheduler.clock().now() + kPatience;
  const fiber::WaitReason reason{"the devices of other ranks", "", -1, -1};
  while (!devices.connected()) {
    SMP_REQUIRE_AS(PeerLostError, scheduler.clock().now() < end, "connecting over ", devices.name(),
                   " took more than ", kPatience / base::kSecond, " s");
    scheduler.sleep_for(kPause, reason);
  }
}

/// Connects all devices with an id that the leader makes. @return as problems()
std::string connect_all(const Communicator& ranks, DeviceCollectives& devices) {
  std::string id;
  auto problem = problems(ranks, [&] {
    if (ranks.rank() == 0) id = devices.make_id();
  });
  if (!problem.empty()) return problem;
  id = ranks.broadcast({std::move(id), {}}, ranks.members()[0]).bytes;
  problem = problems(ranks, [&] { devices.connect(id, ranks.rank(), ranks.size()); });
  // Nobody waits for one that could not even begin.
  if (problem.empty()) problem = problems(ranks, [&] { wait_until_connected(devices); });
  if (!problem.empty()) devices.abort();
  return problem;
}

}  // namespace

ConnectedDevices connect_devices(const Communicator& ranks, const MakeDeviceCollectives& make,
                                 c10::Device device) {
  std::unique_ptr<DeviceCollectives> devices;
  std::string own;
  auto problem = problems(ranks, [&] {
    SMP_REQUIRE_AS(UnsupportedError, make != nullptr, "it computes on ", device,
                   ", which has no collectives of its own (NCCL is CUDA's)");
    devices = make(device);
    own = devices->identity();
  });
  if (problem.empty()) problem = shared_device(ranks, own, devices->name());
  if (problem.empty()) problem = connect_all(ranks, *devices);
  if (!problem.empty()) devices.reset();
  return {std::move(devices), std::move(problem)};
}

}  // namespace smp::d2d
