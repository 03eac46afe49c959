// d2d/wires/ucx/ucx_library.h: UCX's functions, loaded when they are first asked for: a job that
// does not use UCX has none of it in its process. Threads: one at a time.
#pragma once

#include <ucp/api/ucp.h>

namespace smp::d2d {

/// UCX's functions, named as in ucp.h.
struct UcxLibrary {
  decltype(&::ucp_get_version_string) version_string;
  decltype(&::ucp_config_read) config_read;
  decltype(&::ucp_config_release) config_release;
  decltype(&::ucp_init_version) init_version;
  decltype(&::ucp_cleanup) cleanup;
  decltype(&::ucp_worker_create) worker_create;
  decltype(&::ucp_worker_destroy) worker_destroy;
  decltype(&::ucp_worker_get_address) worker_get_address;
  decltype(&::ucp_worker_release_address) worker_release_address;
  decltype(&::ucp_worker_progress) worker_progress;
  decltype(&::ucp_ep_create) ep_create;
  decltype(&::ucp_ep_close_nbx) ep_close;
  decltype(&::ucp_ep_flush_nbx) ep_flush;
  decltype(&::ucp_tag_send_nbx) tag_send;
  decltype(&::ucp_tag_recv_nbx) tag_receive;
  decltype(&::ucp_tag_probe_nb) tag_probe;
  decltype(&::ucp_tag_msg_recv_nbx) tag_receive_message;
  decltype(&::ucp_request_check_status) request_status;
  decltype(&::ucp_request_free) request_free;
  decltype(&::ucs_status_string) status_string;
};

/// Returns the functions. The first call loads them, without signal handlers and without a watch
/// over the allocator, unless the environment says otherwise (UCX_ERROR_SIGNALS, UCX_MEM_EVENTS).
/// @throws PeerLostError  UCX is not installed, or lacks one of them.
const UcxLibrary& ucx();
/// Loads the functions from these files. Throws as ucx().
UcxLibrary load_ucx(const char* ucp_file, const char* ucs_file);

}  // namespace smp::d2d
