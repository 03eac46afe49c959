// d2d/wires/ofi/ofi_endpoint.h: libfabric as one object: a reliable datagram endpoint, which sends
// messages to all others and writes into their memory, with all that it needs.
// Threads: one at a time (FI_THREAD_DOMAIN); no call waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "d2d/wires/ofi/ofi_handle.h"
#include "d2d/wires/ofi/ofi_memory.h"

namespace smp::d2d {

/// An operation that libfabric was given to do. It stays where it is until its completion is read;
/// its first bytes are libfabric's until then (FI_CONTEXT2).
struct OfiOperation {
  void* of_libfabric[8];
};

/// The end of an operation, or of another rank's write.
struct OfiCompletion {
  OfiOperation* operation = nullptr;  ///< nullptr: another rank's write is there
  std::size_t bytes = 0;              ///< of a received message
  std::uint32_t immediate = 0;        ///< what the writer of another rank said
  std::string error;                  ///< why it failed; empty: it did not
  bool is_too_long = false;           ///< it failed: a message that is longer than any of ours
};

struct OfiEndpointOptions {
  /// The ways of registering memory that providers may ask for (FI_MR_...); 0: all known here.
  int memory_modes = 0;
  /// True if what is sent is registered as well, as if the provider asked for it.
  bool register_local = false;
  /// True if memory of a device is registered as well (FI_HMEM).
  bool device_memory = false;
};

/// An endpoint of the provider that FI_PROVIDER names, else of EFA, else of TCP. libfabric's other
/// environment variables hold as well (FI_TCP_IFACE). Progress is made by read(), and by nothing
/// else, so whoever waits reads.
class OfiEndpoint {
 public:
  /// @throws PeerLostError  libfabric does not start; says why.
  explicit OfiEndpoint(const OfiEndpointOptions& options = {});
  virtual ~OfiEndpoint();
  OfiEndpoint(const OfiEndpoint&) = delete;
  OfiEndpoint& operator=(const OfiEndpoint&) = delete;

  /// Returns the bytes that others need to reach it, the provider's name among them.
  const std::string& address() const noexcept { return address_; }
  /// Returns the name by which the calls below know the endpoint at `address`. Nothing is sent yet.
  /// @throws PeerLostError  it has another provider.
  std::uint64_t peer(const std::string& address);

  /// The most bytes of a message, and of a write.
  std::size_t longest() const noexcept;
  /// The number of operations to send, or of messages to receive, that it takes at least at a time.
  std::size_t sends() const noexcept;
  std::size_t receives() const noexcept;

  /// Registers memory for writes of other ranks.
  /// @throws PeerLostError  the provider refuses it.
  virtual OfiMemory register_target(std::span<std::byte> bytes);
  /// Registers memory for messages, and for writes of this rank.
  virtual OfiMemory register_source(std::span<const std::byte> bytes);

  // Each starts an operation on registered bytes, which stay until its completion is read. Returns
  // 0, kLater: nothing was started, read() and try again; or another error, negative.

  static constexpr int kLater = -11;  // -FI_EAGAIN
  virtual int send(std::span<const std::byte> bytes, void* descriptor, std::uint64_t peer,
                   OfiOperation& operation);
  int receive(std::span<std::byte> bytes, void* descriptor, OfiOperation& operation);
  struct Remote {
    std::uint64_t peer;
    std::uint64_t address;
    std::uint64_t key;
  };
  /// Writes to memory of a peer, which reads a completion with `immediate` once all bytes are
  /// there.
  int write(std::span<const std::byte> bytes, void* descriptor, const Remote& to,
            std::uint32_t immediate, OfiOperation& operation);
  static std::string error_text(int status);

  /// Moves what can be moved, and appends some of the completions, in any order.
  /// @throws PeerLostError  there is no reading any more.
  virtual void read(std::vector<OfiCompletion>& completions);
  /// Ends all operations: no memory of this rank is used from then on.
  void shut() noexcept { endpoint_.reset(); }

 protected:
  /// Registers memory of a Neuron core, for writes of this rank and of others.
  /// @throws PeerLostError  libfabric or the provider has no way to.
  OfiMemory register_neuron(std::span<std::byte> bytes);

 private:
  void open();
  OfiMemory register_memory(const void* bytes, std::size_t size, std::uint64_t access);
  std::uint64_t next_key() noexcept;
  OfiMemory registered(fid_mr* region, const void* bytes) const;
  void read_error(std::vector<OfiCompletion>& completions);

  OfiHandle<fi_info> info_;
  int memory_modes_ = 0;
  std::uint64_t next_key_ = 0;
  std::string address_;
  OfiHandle<fid_fabric> fabric_;
  OfiHandle<fid_domain> domain_;
  OfiHandle<fid_av> addresses_;
  OfiHandle<fid_cq> completions_;
  OfiHandle<fid_ep> endpoint_;
};

}  // namespace smp::d2d
