// d2d/wires/cuda/cuda_library.h: the functions of CUDA's driver, loaded when a job first asks for a
// GPU: this library is built without CUDA's headers, and a job without GPUs has none of it in its
// process. Threads: the rank's thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "d2d/wires/cuda/cuda_device.h"

namespace smp::d2d {

/// The functions of CUDA's driver, named as in cuda.h, whose binary interface is kept from driver
/// to driver. `int` is a CUresult (0: success) or a CUdevice, `void*` a CUcontext, CUstream or
/// CUevent.
struct CudaLibrary {
  using Address = std::uint64_t;      // CUdeviceptr
  using Handle = CudaDevice::Handle;  // CUipcMemHandle, CUipcEventHandle: 64 bytes by value

  int (*init)(unsigned flags);
  int (*error_name)(int result, const char** name);
  int (*error_string)(int result, const char** text);
  int (*device_get)(int* device, int ordinal);
  int (*device_get_uuid)(std::array<std::byte, 16>* uuid, int device);
  int (*primary_context_retain)(void** context, int device);
  int (*primary_context_release)(int device);
  int (*context_get_current)(void** context);
  int (*context_set_current)(void* context);
  int (*memory_allocate)(Address* memory, std::size_t bytes);
  int (*memory_free)(Address memory);
  int (*memory_export)(Handle* handle, Address memory);
  int (*memory_open)(Address* memory, Handle handle, unsigned flags);
  int (*memory_close)(Address memory);
  int (*copy)(Address to, Address from, std::size_t bytes, void* stream);
  int (*copy_to_device)(Address to, const void* from, std::size_t bytes);
  int (*copy_to_host)(void* to, Address from, std::size_t bytes);
  int (*stream_create)(void** stream, unsigned flags);
  int (*stream_destroy)(void* stream);
  int (*stream_wait_event)(void* stream, void* event, unsigned flags);
  int (*event_create)(void** event, unsigned flags);
  int (*event_destroy)(void* event);
  int (*event_record)(void* event, void* stream);
  int (*event_query)(void* event);
  int (*event_export)(Handle* handle, void* event);
  int (*event_open)(void** event, Handle handle);
};

/// Returns the functions. The first call loads them.
/// @throws PeerLostError  there is no driver, or it lacks one of them.
const CudaLibrary& cuda();
/// Loads the functions from this file. Throws as cuda().
CudaLibrary load_cuda(const char* file);

}  // namespace smp::d2d
