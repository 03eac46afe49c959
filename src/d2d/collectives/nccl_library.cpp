// d2d/collectives/nccl_library.cpp: see the header.
#include "d2d/collectives/nccl_library.h"

#include "d2d/wires/loaded_library.h"

namespace smp::d2d {

NcclLibrary load_nccl(const char* file) {
  const LoadedLibrary library(file, {"NCCL", "libnccl2", "2.14", "device_collectives = messages"});
  NcclLibrary all{};
  library.load("ncclGetVersion", all.get_version);
  library.load("ncclGetErrorString", all.error_string);
  library.load("ncclGetLastError", all.last_error);
  library.load("ncclGetUniqueId", all.get_unique_id);
  library.load("ncclCommInitRankConfig", all.init_rank);
  library.load("ncclCommGetAsyncError", all.get_async_error);
  library.load("ncclCommFinalize", all.finalize);
  library.load("ncclCommDestroy", all.destroy);
  library.load("ncclCommAbort", all.abort);
  library.load("ncclAllReduce", all.all_reduce);
  library.load("ncclReduceScatter", all.reduce_scatter);
  library.load("ncclAllGather", all.all_gather);
  library.load("ncclSend", all.send);
  library.load("ncclRecv", all.receive);
  library.load("ncclGroupStart", all.group_start);
  library.load("ncclGroupEnd", all.group_end);
  return all;
}

const NcclLibrary& nccl() {
  static const NcclLibrary library = load_nccl("libnccl.so.2");
  return library;
}

}  // namespace smp::d2d
