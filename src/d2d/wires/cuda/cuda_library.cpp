// d2d/wires/cuda/cuda_library.cpp: see the header.
#include "d2d/wires/cuda/cuda_library.h"

#include "d2d/wires/loaded_library.h"

namespace smp::d2d {

CudaLibrary load_cuda(const char* file) {
  const LoadedLibrary driver(file, {"CUDA's driver", "libcuda1", "450"});
  CudaLibrary all{};
  driver.load("cuInit", all.init);
  driver.load("cuGetErrorName", all.error_name);
  driver.load("cuGetErrorString", all.error_string);
  driver.load("cuDeviceGet", all.device_get);
  driver.load("cuDeviceGetUuid", all.device_get_uuid);
  driver.load("cuDevicePrimaryCtxRetain", all.primary_context_retain);
  driver.load("cuDevicePrimaryCtxRelease_v2", all.primary_context_release);
  driver.load("cuCtxGetCurrent", all.context_get_current);
  driver.load("cuCtxSetCurrent", all.context_set_current);
  driver.load("cuMemAlloc_v2", all.memory_allocate);
  driver.load("cuMemFree_v2", all.memory_free);
  driver.load("cuIpcGetMemHandle", all.memory_export);
  driver.load("cuIpcOpenMemHandle_v2", all.memory_open);
  driver.load("cuIpcCloseMemHandle", all.memory_close);
  driver.load("cuMemcpyAsync", all.copy);
  driver.load("cuMemcpyHtoD_v2", all.copy_to_device);
  driver.load("cuMemcpyDtoH_v2", all.copy_to_host);
  driver.load("cuStreamCreate", all.stream_create);
  driver.load("cuStreamDestroy_v2", all.stream_destroy);
  driver.load("cuStreamWaitEvent", all.stream_wait_event);
  driver.load("cuEventCreate", all.event_create);
  driver.load("cuEventDestroy_v2", all.event_destroy);
  driver.load("cuEventRecord", all.event_record);
  driver.load("cuEventQuery", all.event_query);
  driver.load("cuIpcGetEventHandle", all.event_export);
  driver.load("cuIpcOpenEventHandle", all.event_open);
  return all;
}

const CudaLibrary& cuda() {
  static const CudaLibrary library = load_cuda("libcuda.so.1");
  return library;
}

}  // namespace smp::d2d
