// d2d/wires/cuda/cuda_driver.cpp: each call in the context of its device, whatever is current.
#include "d2d/wires/cuda/cuda_driver.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>

#include "base/check.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

// Of cuda.h.
constexpr int kNotReady = 600;                   // CUDA_ERROR_NOT_READY
constexpr unsigned kWithoutTiming = 2;           // CU_EVENT_DISABLE_TIMING
constexpr unsigned kBetweenProcesses = 4;        // CU_EVENT_INTERPROCESS
constexpr unsigned kLazyPeerAccess = 1;          // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
constexpr unsigned kBesideTheDefaultStream = 1;  // CU_STREAM_NON_BLOCKING

CudaLibrary::Address address_of(const std::byte* memory) noexcept {
  return reinterpret_cast<CudaLibrary::Address>(memory);
}
std::byte* pointer_to(CudaLibrary::Address memory) noexcept {
  return reinterpret_cast<std::byte*>(memory);  // NOLINT: as CUDA's runtime does
}

}  // namespace

/// Makes the device's context that of the thread while it lives.
class CudaDriver::InContext {
 public:
  explicit InContext(const CudaDriver& driver) noexcept : cuda_(driver.cuda_) {
    cuda_.context_get_current(&outer_);
    changed_ = outer_ != driver.context_;
    if (changed_) cuda_.context_set_current(driver.context_);
  }
  ~InContext() {
    if (changed_) cuda_.context_set_current(outer_);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

 private:
  const CudaLibrary& cuda_;
  void* outer_ = nullptr;
  bool changed_ = false;
};

void CudaDriver::require(int result, const char* what) const {
  if (result == 0) return;
  const char* name = "an unknown error";
  const char* text = "";
  cuda_.error_name(result, &name);
  cuda_.error_string(result, &text);
  throw PeerLostError(
      base::concat(what, " on ", device_, " failed: ", name, " (", result, "), ", text,
                   "; restart from a checkpoint. `dmesg` tells what the GPU's driver saw (Xid)"));
}

CudaDriver::CudaDriver(c10::Device device) : cuda_(cuda()), device_(device) {
  require(cuda_.init(0), "starting CUDA");
  require(cuda_.device_get(&number_, device.index()), "finding the GPU");
  require(cuda_.primary_context_retain(&context_, number_), "cuDevicePrimaryCtxRetain");
}

CudaDriver::~CudaDriver() { cuda_.primary_context_release(number_); }

std::string CudaDriver::identity() {
  std::array<std::byte, 16> uuid{};
  require(cuda_.device_get_uuid(&uuid, number_), "cuDeviceGetUuid");
  return {reinterpret_cast<const char*>(uuid.data()), uuid.size()};
}

// ---- memory ----

std::byte* CudaDriver::allocate(std::size_t bytes) {
  const InContext scope(*this);
  CudaLibrary::Address memory = 0;
  require(cuda_.memory_allocate(&memory, bytes), "setting memory aside for messages");
  return pointer_to(memory);
}

void CudaDriver::free(std::byte* memory) noexcept {
  const InContext scope(*this);
  cuda_.memory_free(address_of(memory));
}

CudaDevice::Handle CudaDriver::export_memory(std::byte* memory) {
  const InContext scope(*this);
  Handle handle{};
  require(cuda_.memory_export(&handle, address_of(memory)), "cuIpcGetMemHandle");
  return handle;
}

std::byte* CudaDriver::open_memory(const Handle& handle) {
  const InContext scope(*this);
  CudaLibrary::Address memory = 0;
  require(cuda_.memory_open(&memory, handle, kLazyPeerAccess), "cuIpcOpenMemHandle");
  return pointer_to(memory);
}

void CudaDriver::close_memory(std::byte* memory) noexcept {
  const InContext scope(*this);
  cuda_.memory_close(address_of(memory));
}

void CudaDriver::write(std::byte* to, const std::byte* from, std::size_t bytes) {
  const InContext scope(*this);
  require(cuda_.copy_to_device(address_of(to), from, bytes), "cuMemcpyHtoD");
}

void CudaDriver::read(std::byte* to, const std::byte* from, std::size_t bytes) {
  const InContext scope(*this);
  require(cuda_.copy_to_host(to, address_of(from), bytes), "cuMemcpyDtoH");
}

// ---- streams ----

CudaDevice::Stream CudaDriver::make_stream() {
  const InContext scope(*this);
  Stream stream = nullptr;
  require(cuda_.stream_create(&stream, kBesideTheDefaultStream), "cuStreamCreate");
  return stream;
}

void CudaDriver::free_stream(Stream stream) noexcept {
  const InContext scope(*this);
  cuda_.stream_destroy(stream);
}

CudaDevice::Stream CudaDriver::current_stream() {
  const c10::impl::VirtualGuardImpl guard(device_.type());
  return guard.getStream(device_).native_handle();
}

void CudaDriver::copy(std::byte* to, const std::byte* from, std::size_t bytes, Stream stream) {
  const InContext scope(*this);
  require(cuda_.copy(address_of(to), address_of(from), bytes, stream), "cuMemcpyAsync");
}

// ---- events ----

CudaDevice::Event CudaDriver::make_event(bool shared) {
  const InContext scope(*this);
  Event event = nullptr;
  const unsigned flags = kWithoutTiming | (shared ? kBetweenProcesses : 0);
  require(cuda_.event_create(&event, flags), "cuEventCreate");
  return event;
}

void CudaDriver::free_event(Event event) noexcept {
  const InContext scope(*this);
  cuda_.event_destroy(event);
}

CudaDevice::Handle CudaDriver::export_event(Event event) {
  const InContext scope(*this);
  Handle handle{};
  require(cuda_.event_export(&handle, event), "cuIpcGetEventHandle");
  return handle;
}

CudaDevice::Event CudaDriver::open_event(const Handle& handle) {
  const InContext scope(*this);
  Event event = nullptr;
  require(cuda_.event_open(&event, handle), "cuIpcOpenEventHandle");
  return event;
}

void CudaDriver::record(Event event, Stream stream) {
  const InContext scope(*this);
  require(cuda_.event_record(event, stream), "cuEventRecord");
}

void CudaDriver::wait(Stream stream, Event event) {
  const InContext scope(*this);
  require(cuda_.stream_wait_event(stream, event, 0), "cuStreamWaitEvent");
}

bool CudaDriver::done(Event event) {
  const InContext scope(*this);
  const int result = cuda_.event_query(event);
  if (result == kNotReady) return false;
  require(result, "waiting for the GPU");
  return true;
}

std::string identity_of(c10::Device device) try {
  return device.is_cuda() ? CudaDriver(device).identity() : device.str();
} catch (const std::exception&) {  // a driver that cannot be asked
  return device.str();
}

}  // namespace smp::d2d
