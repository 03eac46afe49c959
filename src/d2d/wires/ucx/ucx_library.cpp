// d2d/wires/ucx/ucx_library.cpp: see the header.
#include "d2d/wires/ucx/ucx_library.h"

#include <cstdlib>

#include "d2d/wires/loaded_library.h"

namespace smp::d2d {

UcxLibrary load_ucx(const char* ucp_file, const char* ucs_file) {
  ::setenv("UCX_ERROR_SIGNALS", "", /*overwrite=*/0);
  ::setenv("UCX_MEM_EVENTS", "n", /*overwrite=*/0);
  const LibraryOrigin origin{"UCX", "libucx0", "1.12"};
  const LoadedLibrary ucs(ucs_file, origin);
  const LoadedLibrary ucp(ucp_file, origin);
  UcxLibrary all{};
  ucp.load("ucp_config_read", all.config_read);
  ucp.load("ucp_get_version_string", all.version_string);
  ucp.load("ucp_config_release", all.config_release);
  ucp.load("ucp_init_version", all.init_version);
  ucp.load("ucp_cleanup", all.cleanup);
  ucp.load("ucp_worker_create", all.worker_create);
  ucp.load("ucp_worker_destroy", all.worker_destroy);
  ucp.load("ucp_worker_get_address", all.worker_get_address);
  ucp.load("ucp_worker_release_address", all.worker_release_address);
  ucp.load("ucp_worker_progress", all.worker_progress);
  ucp.load("ucp_ep_create", all.ep_create);
  ucp.load("ucp_ep_close_nbx", all.ep_close);
  ucp.load("ucp_ep_flush_nbx", all.ep_flush);
  ucp.load("ucp_tag_send_nbx", all.tag_send);
  ucp.load("ucp_tag_recv_nbx", all.tag_receive);
  ucp.load("ucp_tag_probe_nb", all.tag_probe);
  ucp.load("ucp_tag_msg_recv_nbx", all.tag_receive_message);
  ucp.load("ucp_request_check_status", all.request_status);
  ucp.load("ucp_request_free", all.request_free);
  ucs.load("ucs_status_string", all.status_string);
  return all;
}

const UcxLibrary& ucx() {
  static const UcxLibrary library = load_ucx("libucp.so.0", "libucs.so.0");
  return library;
}

}  // namespace smp::d2d
