// d2d/wires/ofi/ofi_endpoint.cpp: see the header.
#include "d2d/wires/ofi/ofi_endpoint.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "d2d/wires/ofi/ofi_library.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

static_assert(OfiEndpoint::kLater == -FI_EAGAIN);
static_assert(sizeof(OfiOperation) == sizeof(fi_context2));

/// The version of the interface that this is written for; newer libraries keep to it.
constexpr std::uint32_t kVersion = FI_VERSION(1, 11);
/// The modes that FI_MR_BASIC, an older name, stands for.
constexpr int kBasicModes = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
constexpr int kKnownModes = kBasicModes | FI_MR_LOCAL;
constexpr std::size_t kCompletionsPerRead = 64;

void check_ofi(int status, const char* what) {
  SMP_REQUIRE_AS(PeerLostError, status == 0, "libfabric: ", what,
                 " failed: ", OfiEndpoint::error_text(status),
                 "; `fi_info -t FI_EP_RDM` lists what it can use here; transport = auto does "
                 "without it");
}

/// Returns the hints for a provider. They ask for no order, neither of messages nor of completions.
OfiHandle<fi_info> make_hints(const char* provider, const OfiEndpointOptions& options) {
  OfiHandle<fi_info> hints(ofi().dupinfo(nullptr));
  SMP_REQUIRE_AS(PeerLostError, hints != nullptr, "libfabric: there is no memory");
  hints->caps = FI_MSG | FI_RMA | (options.device_memory ? FI_HMEM : 0);
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  const int modes = options.memory_modes == 0 ? kKnownModes : options.memory_modes;
  hints->domain_attr->mr_mode = modes | (options.device_memory ? FI_MR_HMEM : 0);
  hints->domain_attr->cq_data_size = sizeof(std::uint32_t);
  // Freed with the hints.
  if (provider != nullptr) hints->fabric_attr->prov_name = ::strdup(provider);
  return hints;
}

/// Returns the interfaces of the provider, of which the best comes first.
OfiHandle<fi_info> ask_for(const char* provider, const OfiEndpointOptions& options, int& status) {
  const auto hints = make_hints(provider, options);
  fi_info* found = nullptr;
  status = ofi().getinfo(kVersion, nullptr, nullptr, 0, hints.get(), &found);
  return OfiHandle<fi_info>(status == 0 ? found : nullptr);
}

/// Chooses the provider. It is not libfabric's own choice, whose provider for shared memory leaves
/// files behind when ranks are killed; ranks of one machine have a wire of their own.
OfiHandle<fi_info> choose_provider(const OfiEndpointOptions& options) {
  int status = 0;
  if (std::getenv("FI_PROVIDER") != nullptr) {
    auto info = ask_for(nullptr, options, status);
    check_ofi(status, options.device_memory
                          ? "asking for memory of devices (FI_HMEM) of what FI_PROVIDER names"
                          : "asking for what FI_PROVIDER names");
    return info;
  }
  for (const char* const provider : {"efa", "tcp;ofi_rxm"}) {
    if (auto info = ask_for(provider, options, status)) return info;
  }
  check_ofi(status, options.device_memory ? "asking EFA and TCP for memory of devices (FI_HMEM)"
                                          : "asking for EFA or TCP");
  return nullptr;
}

}  // namespace

OfiEndpoint::OfiEndpoint(const OfiEndpointOptions& options) : info_(choose_provider(options)) {
  memory_modes_ = info_->domain_attr->mr_mode;
  if (memory_modes_ == FI_MR_BASIC) memory_modes_ = kBasicModes;
  if (options.register_local) memory_modes_ |= FI_MR_LOCAL;
  open();
  std::array<char, 256> name{};
  std::size_t length = name.size();
  check_ofi(::fi_getname(&endpoint_->fid, name.data(), &length), "asking for an address");
  address_ = info_->fabric_attr->prov_name;
  address_ += '\0';
  address_.append(name.data(), length);
}

OfiEndpoint::~OfiEndpoint() = default;

void OfiEndpoint::open() {
  fid_fabric* fabric = nullptr;
  check_ofi(ofi().fabric(info_->fabric_attr, &fabric, nullptr), "opening a fabric");
  fabric_.reset(fabric);

  fid_domain* domain = nullptr;
  check_ofi(::fi_domain(fabric, info_.get(), &domain, nullptr), "opening a domain");
  domain_.reset(domain);

  fi_av_attr for_addresses{};
  for_addresses.type = FI_AV_TABLE;
  fid_av* addresses = nullptr;
  check_ofi(::fi_av_open(domain, &for_addresses, &addresses, nullptr), "making an address vector");
  addresses_.reset(addresses);

  fi_cq_attr for_completions{};
  for_completions.format = FI_CQ_FORMAT_DATA;
  for_completions.wait_obj = FI_WAIT_NONE;
  for_completions.size = sends() + receives();
  fid_cq* completions = nullptr;
  check_ofi(::fi_cq_open(domain, &for_completions, &completions, nullptr),
            "making a completion queue");
  completions_.reset(completions);

  fid_ep* endpoint = nullptr;
  check_ofi(::fi_endpoint(domain, info_.get(), &endpoint, nullptr), "making an endpoint");
  endpoint_.reset(endpoint);
  check_ofi(::fi_ep_bind(endpoint, &addresses->fid, 0), "binding an address vector");
  check_ofi(::fi_ep_bind(endpoint, &completions->fid, FI_TRANSMIT | FI_RECV),
            "binding a completion queue");
  check_ofi(::fi_enable(endpoint), "enabling an endpoint");
}

std::uint64_t OfiEndpoint::peer(const std::string& address) {
  const std::string own = info_->fabric_attr->prov_name;
  const auto end = address.find('\0');
  SMP_REQUIRE_AS(PeerLostError, end != std::string::npos && address.compare(0, end, own) == 0,
                 "libfabric uses ", own, " here and ", address.substr(0, end),
                 " there; set FI_PROVIDER on all machines alike");
  fi_addr_t peer = FI_ADDR_UNSPEC;
  const int added =
      ::fi_av_insert(addresses_.get(), address.data() + end + 1, 1, &peer, 0, nullptr);
  check_ofi(added == 1 ? 0 : added < 0 ? added : -FI_EADDRNOTAVAIL, "taking an address");
  return peer;
}

std::size_t OfiEndpoint::longest() const noexcept { return info_->ep_attr->max_msg_size; }
std::size_t OfiEndpoint::sends() const noexcept { return info_->tx_attr->size; }
std::size_t OfiEndpoint::receives() const noexcept { return info_->rx_attr->size; }

// ---- memory ------------------------------------------------------------------------------------

OfiMemory OfiEndpoint::register_target(std::span<std::byte> bytes) {
  return register_memory(bytes.data(), bytes.size(), FI_REMOTE_WRITE);
}

OfiMemory OfiEndpoint::register_source(std::span<const std::byte> bytes) {
  if ((memory_modes_ & FI_MR_LOCAL) == 0) return {};
  return register_memory(bytes.data(), bytes.size(), FI_SEND | FI_RECV | FI_WRITE);
}

OfiMemory OfiEndpoint::register_memory(const void* bytes, std::size_t size, std::uint64_t access) {
  fid_mr* region = nullptr;
  check_ofi(::fi_mr_reg(domain_.get(), bytes, size, access, 0, next_key(), 0, &region, nullptr),
            "registering memory");
  return registered(region, bytes);
}

OfiMemory OfiEndpoint::register_neuron(std::span<std::byte> bytes) {
  const iovec memory{bytes.data(), bytes.size()};
  fi_mr_attr attributes{};
  attributes.mr_iov = &memory;
  attributes.iov_count = 1;
  attributes.access = FI_WRITE | FI_REMOTE_WRITE;
  attributes.requested_key = next_key();
  attributes.iface = FI_HMEM_NEURON;
  attributes.device.neuron = -1;  // EFA does not look at it
  fid_mr* region = nullptr;
  check_ofi(::fi_mr_regattr(domain_.get(), &attributes, 0, &region),
            "registering memory of a Neuron core (FI_HMEM_NEURON)");
  return registered(region, bytes.data());
}

std::uint64_t OfiEndpoint::next_key() noexcept {
  const auto key_size = info_->domain_attr->mr_key_size;
  std::uint64_t key = next_key_++;  // ignored where the provider chooses (FI_MR_PROV_KEY)
  if (key_size < sizeof key) key &= (std::uint64_t{1} << 8 * key_size) - 1;
  return key;
}

OfiMemory OfiEndpoint::registered(fid_mr* region, const void* bytes) const {
  const bool by_address = (memory_modes_ & FI_MR_VIRT_ADDR) != 0;  // else by offset
  return {OfiHandle<fid_mr>(region), by_address ? reinterpret_cast<std::uint64_t>(bytes) : 0};
}

// ---- operations --------------------------------------------------------------------------------

// Nothing is injected (fi_inject): it would have no completion, so nobody would know when all has
// left and the endpoint may be closed.
int OfiEndpoint::send(std::span<const std::byte> bytes, void* descriptor, std::uint64_t peer,
                      OfiOperation& operation) {
  return static_cast<int>(
      ::fi_send(endpoint_.get(), bytes.data(), bytes.size(), descriptor, peer, &operation));
}

int OfiEndpoint::receive(std::span<std::byte> bytes, void* descriptor, OfiOperation& operation) {
  return static_cast<int>(::fi_recv(endpoint_.get(), bytes.data(), bytes.size(), descriptor,
                                    FI_ADDR_UNSPEC, &operation));
}

int OfiEndpoint::write(std::span<const std::byte> bytes, void* descriptor, const Remote& to,
                       std::uint32_t immediate, OfiOperation& operation) {
  return static_cast<int>(::fi_writedata(endpoint_.get(), bytes.data(), bytes.size(), descriptor,
                                         immediate, to.peer, to.address, to.key, &operation));
}

std::string OfiEndpoint::error_text(int status) { return ofi().strerror(std::abs(status)); }

void OfiEndpoint::read(std::vector<OfiCompletion>& completions) {
  std::array<fi_cq_data_entry, kCompletionsPerRead> entries;
  const auto count = ::fi_cq_read(completions_.get(), entries.data(), entries.size());
  if (count == -FI_EAVAIL) return read_error(completions);
  if (count == -FI_EAGAIN || count == -FI_EINTR) return;
  check_ofi(count < 0 ? static_cast<int>(count) : 0, "reading completions");
  for (const auto& entry : std::span(entries).first(static_cast<std::size_t>(count))) {
    auto& completion = completions.emplace_back();
    // The context of a write of another rank means nothing.
    if (entry.flags & FI_REMOTE_CQ_DATA) {
      completion.immediate = static_cast<std::uint32_t>(entry.data);
    } else {
      completion.operation = static_cast<OfiOperation*>(entry.op_context);
      completion.bytes = entry.len;
    }
  }
}

void OfiEndpoint::read_error(std::vector<OfiCompletion>& completions) {
  std::array<char, 256> text{};
  fi_cq_err_entry entry{};
  const auto count = ::fi_cq_readerr(completions_.get(), &entry, 0);
  if (count == -FI_EAGAIN) return;
  check_ofi(count < 0 ? static_cast<int>(count) : 0, "reading an error");
  auto& completion = completions.emplace_back();
  completion.operation = static_cast<OfiOperation*>(entry.op_context);
  completion.error = error_text(entry.err);
  completion.is_too_long = entry.err == FI_ETRUNC;
  const char* const more = ::fi_cq_strerror(completions_.get(), entry.prov_errno, entry.err_data,
                                            text.data(), text.size());
  if (more != nullptr && *more != '\0' && completion.error != more) {
    completion.error += base::concat(", ", more);
  }
}

}  // namespace smp::d2d
