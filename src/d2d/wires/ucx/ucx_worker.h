// d2d/wires/ucx/ucx_worker.h: UCX as one object: a context, one worker of it, and its address.
// Threads: any, one at a time (UCS_THREAD_MODE_SERIALIZED).
#pragma once

#include <memory>
#include <string>

struct ucp_context;
struct ucp_worker;

namespace smp::d2d {

/// Sends and receives for one rank, matched by tags of 64 bits. UCX's variables of the environment
/// hold (UCX_TLS, UCX_NET_DEVICES).
class UcxWorker {
 public:
  /// @throws PeerLostError  UCX does not start; says why.
  UcxWorker();
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker* get() const noexcept { return worker_; }
  /// Returns the bytes that others need to connect.
  const std::string& address() const noexcept { return address_; }
  /// Moves what can be moved. Returns true if anything was.
  bool progress() noexcept;

 private:
  ucp_context* context_ = nullptr;
  ucp_worker* worker_ = nullptr;
  std::string address_;
};

}  // namespace smp::d2d
