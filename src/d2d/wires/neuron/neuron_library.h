// d2d/wires/neuron/neuron_library.h: the functions of AWS Neuron's runtime, libnrt, loaded when a
// job first asks for a Neuron core: this library is built without the runtime's headers.
// Threads: the rank's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct nrt_tensor;  // the runtime's, opaque

namespace smp::d2d {

/// The forms of the asynchronous calls, which kept their names when their arguments changed.
enum class NeuronInterface : std::uint8_t {
  kErrorTracker,  ///< SDK 2.28: failures are found in an object
  kResult,        ///< from SDK 2.29 on: they are written to where the caller says
};

/// The functions of libnrt, named as in its headers without their beginnings; all `int` results are
/// an NRT_STATUS (d2d/wires/neuron/neuron_status.h). A core is a RelativeCore's number but in
/// SendReceive, whose cores are AbsoluteCores'.
struct NeuronLibrary {
  using Tensor = ::nrt_tensor;
  using Sequence = std::uint64_t;  // nrta_seq_t
  struct Version {                 // nrt_version_t
    std::uint64_t major, minor, patch, maintenance;
    char detail[128], hash[64];
  };
  struct Error {  // nrta_error_t
    Sequence sequence;
    std::uint64_t status;
  };
  struct Group {  // nrt_cc_comm_t: cores that do a collective together
    std::uint32_t* members;
    std::uint32_t own, size;  // this one's place among them
    std::uint32_t own_of_all, all;
    std::uint32_t core;
  };
  struct TensorList {  // nrt_tensor_list_t
    Tensor** tensors;
    std::size_t count;
  };

  static constexpr int kOnDevice = 0;  // NRT_TENSOR_PLACEMENT_DEVICE

  int (*init)(int framework, const char* framework_version, const char* other_version);
  void (*close)();  // whether it returns something is not agreed on
  int (*get_total_vnc_count)(std::uint32_t* cores);
  int (*tensor_allocate)(int placement, int core, std::size_t size, const char* name,
                         Tensor** tensor);
  void (*tensor_free)(Tensor** tensor);
  void* (*tensor_get_va)(const Tensor* tensor);  // nullptr: the runtime tells none
  std::size_t (*tensor_get_size)(const Tensor* tensor);
  int (*tensor_read)(const Tensor* from, void* to, std::size_t offset, std::size_t size);
  int (*tensor_write)(Tensor* to, const void* from, std::size_t offset, std::size_t size);
  int (*tensor_copy)(const Tensor* from, std::size_t from_offset, Tensor* to, std::size_t to_offset,
                     std::size_t size);
  int (*tensor_allocate_slice)(const Tensor* of, std::size_t offset, std::size_t size,
                               const char* name, Tensor** slice);

  NeuronInterface interface;
  int (*is_completed)(Sequence sequence, bool* done);
  struct {  // NeuronInterface::kErrorTracker
    int (*create)(std::uint32_t core, void** tracker);
    void (*destroy)(void* tracker);
    int (*get_list)(void* tracker, const Error** errors, std::size_t* count);
    int (*read)(void* to, Tensor* from, std::uint64_t offset, std::uint64_t size, int queue,
                void* tracker, Sequence* sequence);
    int (*write)(Tensor* to, const void* from, std::uint64_t offset, std::uint64_t size, int queue,
                 void* tracker, Sequence* sequence);
    int (*copy)(Tensor* from, std::uint64_t from_offset, Tensor* to, std::uint64_t to_offset,
                std::uint64_t size, int queue, void* tracker, Sequence* sequence);
    int (*schedule)(void** prepared, int queue, void* tracker, Sequence* sequence);
  } tracked;
  struct {  // NeuronInterface::kResult
    int (*read)(void* to, Tensor* from, std::uint64_t offset, std::uint64_t size,
                std::uint32_t core, int queue, int* result, Sequence* sequence);
    int (*write)(Tensor* to, const void* from, std::uint64_t offset, std::uint64_t size,
                 std::uint32_t core, int queue, int* result, Sequence* sequence);
    int (*copy)(Tensor* from, std::uint64_t from_offset, Tensor* to, std::uint64_t to_offset,
                std::uint64_t size, std::uint32_t core, int queue, int* result, Sequence* sequence);
    int (*schedule)(void** prepared, int queue, int* result, Sequence* sequence);
  } told;

  struct Collectives {  // nrt.h and nrt_async.h
    int (*global_init)(std::uint32_t core, std::uint32_t own_of_all, std::uint32_t all);
    int (*prepare)(Group* group, TensorList* inputs, TensorList* outputs, int type, int operation,
                   int collective, void** prepared);
  } collectives;

  struct SendReceive {  // nrt_async_sendrecv.h
    int (*get_max_communicators)(int* number);
    int (*get_max_pending)(int* number);
    int (*init)(int core);
    int (*close)(int core);
    int (*connect)(const char* peer_ip, int peer_core, int core, void** communicator);
    int (*accept)(const char* peer_ip, int peer_core, int core, void** communicator);
    int (*test_comm)(void* communicator, bool* done);
    int (*send_tensor)(Tensor* tensor, std::size_t offset, std::size_t size, void* communicator,
                       void** request);
    int (*recv_tensor)(Tensor* tensor, std::size_t offset, std::size_t size, void* communicator,
                       void** request);
    int (*test_request)(void* request, bool* done, std::size_t* size);
    int (*flush)(int core);
  } send_receive;

  int minor;            ///< of the runtime 2.x
  std::string version;  ///< as in "2.34.10 (SDK 2.32)"
  bool was_closed;      ///< by this process
};

/// Returns the functions: those that this process has loaded already. Else the first call loads
/// them, for the whole process, so that libfabric, which looks for the bare name, finds the same.
/// @throws PeerLostError  there is no runtime, it lacks one of them, or it is none of the releases
/// whose interface is known; says which those are.
NeuronLibrary& neuron();
/// Loads the functions from this file. Throws as neuron().
NeuronLibrary load_neuron(const char* file);

}  // namespace smp::d2d
