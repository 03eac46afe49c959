// d2d/collectives/nccl_library.h: NCCL's functions, loaded when a job first asks for them: this
// library is built without NCCL's headers. Threads: the rank's thread only.
#pragma once

#include <array>
#include <cstddef>

namespace smp::d2d {

/// NCCL's functions, named as in nccl.h, whose binary interface is kept from 2.14 on. `int` is an
/// ncclResult_t, an ncclDataType_t or an ncclRedOp_t, `void*` an ncclComm_t or a cudaStream_t.
struct NcclLibrary {
  using Id = std::array<char, 128>;  // ncclUniqueId, by value

  /// ncclConfig_t as it began; NCCL looks at `size` for how much of it there is.
  struct Config {
    std::size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef;
    unsigned version = 21400;
    int blocking = 1;
  };

  // ncclResult_t
  static constexpr int kSuccess = 0;
  static constexpr int kInProgress = 7;
  // ncclDataType_t
  static constexpr int kInt8 = 0;
  static constexpr int kUint8 = 1;
  static constexpr int kInt32 = 2;
  static constexpr int kInt64 = 4;
  static constexpr int kFloat16 = 6;
  static constexpr int kFloat32 = 7;
  static constexpr int kFloat64 = 8;
  static constexpr int kBfloat16 = 9;
  // ncclRedOp_t
  static constexpr int kSum = 0;

  int (*get_version)(int* version);
  const char* (*error_string)(int result);
  const char* (*last_error)(void* communicator);
  int (*get_unique_id)(Id* id);
  int (*init_rank)(void** communicator, int size, Id id, int rank, Config* config);
  int (*get_async_error)(void* communicator, int* result);
  int (*finalize)(void* communicator);
  int (*destroy)(void* communicator);
  int (*abort)(void* communicator);
  int (*all_reduce)(const void* from, void* to, std::size_t count, int type, int operation,
                    void* communicator, void* stream);
  int (*reduce_scatter)(const void* from, void* to, std::size_t part_count, int type, int operation,
                        void* communicator, void* stream);
  int (*all_gather)(const void* from, void* to, std::size_t part_count, int type,
                    void* communicator, void* stream);
  int (*send)(const void* from, std::size_t count, int type, int peer, void* communicator,
              void* stream);
  int (*receive)(void* to, std::size_t count, int type, int peer, void* communicator, void* stream);
  int (*group_start)();
  int (*group_end)();
};

/// Returns the functions. The first call loads them.
/// @throws PeerLostError  there is no NCCL, or it lacks one of them.
const NcclLibrary& nccl();
/// Loads the functions from this file. Throws as nccl().
NcclLibrary load_nccl(const char* file);

}  // namespace smp::d2d
