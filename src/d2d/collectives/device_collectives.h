// d2d/collectives/device_collectives.h: collectives that the devices of a group do themselves, as
// one of its ranks sees them. NCCL's are one kind, tests play another. Threads: the rank's thread
// only; nothing here suspends the fiber.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>

#include "d2d/collectives/collective_inbox.h"

namespace smp::d2d {

/// This rank's part in one collective, which begins when its fiber comes to it. Keeps its tensors
/// alive.
class DeviceCall {
 public:
  DeviceCall() = default;
  virtual ~DeviceCall() = default;
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;

  /// Hands the call to the device, which does it after what was on the caller's stream when the
  /// fiber came, and after all calls of the group launched before. Returns false if the device has
  /// not taken it yet: call this again; until then no other call of the group is launched.
  /// @throws PeerLostError  the device refuses; with its own words.
  virtual bool launch() = 0;
  /// Lets all that comes on the caller's stream, and on the current one, from now on wait for a
  /// call that is launched. The host does not wait.
  virtual void join() = 0;
};

/// A rank's end of the connection between the devices of a group. Every member launches the same
/// calls in the same order; whoever owns this sees to that (d2d/collectives/launch_order.h).
class DeviceCollectives {
 public:
  DeviceCollectives() = default;
  virtual ~DeviceCollectives() = default;
  DeviceCollectives(const DeviceCollectives&) = delete;
  DeviceCollectives& operator=(const DeviceCollectives&) = delete;

  /// Returns the name for messages, as in "NCCL".
  virtual const char* name() const noexcept = 0;
  /// Returns the device that the tensors are on.
  virtual c10::Device device() const noexcept = 0;

  // ---- connecting ----

  /// Returns a text that differs between ranks that may be connected, since each device serves one
  /// rank.
  virtual std::string identity() = 0;
  /// Makes the id of a new group, which its leader gives to all members.
  virtual std::string make_id() = 0;
  /// Begins to connect; all members do. @throws PeerLostError  as connected()
  virtual void connect(const std::string& id, int position, int size) = 0;
  /// Returns true once the devices are connected.
  /// @throws PeerLostError  it did not work; with the device's own words.
  virtual bool connected() = 0;

  // ---- collectives ----

  /// True if the devices do such collectives. The same on all members for the same arguments.
  virtual bool takes(CollectiveKind kind, c10::ScalarType dtype) const noexcept = 0;
  /// Makes the call that the running fiber comes to now.
  /// @param input, result  contiguous, on the device; `result` is new
  virtual std::unique_ptr<DeviceCall> prepare(CollectiveKind kind, at::Tensor input,
                                              at::Tensor result) = 0;

  // ---- the end ----

  /// Ends in good order: all members do, and have launched the same calls. May block for seconds.
  virtual void close() noexcept = 0;
  /// Frees streams from calls that will never end; may block for seconds. Only close() may follow.
  virtual void abort() noexcept = 0;
};

/// Makes a rank's end on its device. Throws if that is not possible.
using MakeDeviceCollectives = std::function<std::unique_ptr<DeviceCollectives>(c10::Device)>;

/// Returns the maker for devices of `type`; empty: there is none. That of CUDA makes NCCL's.
MakeDeviceCollectives device_collectives_of(c10::DeviceType type);
/// Sets the maker for devices of `type` from now on; empty: none. Threads: while no other reads.
void set_device_collectives(c10::DeviceType type, MakeDeviceCollectives make);

}  // namespace smp::d2d
