// d2d/wires/ucx_library.cpp: see the header.
#include "d2d/wires/ucx_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "base/check.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

void* open_library(const char* name) {
  void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  SMP_REQUIRE_AS(PeerLostError, library != nullptr, "loading UCX failed: ", ::dlerror(),
                 "; install it (Debian: libucx0), or use transport = auto");
  return library;
}

template <class Function>
void load(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  SMP_REQUIRE_AS(PeerLostError, function != nullptr, "this UCX has no ", name,
                 "; version 1.12 or newer is needed, or use transport = auto");
}

UcxLibrary load_all() {
  ::setenv("UCX_ERROR_SIGNALS", "", /*overwrite=*/0);
  ::setenv("UCX_MEM_EVENTS", "n", /*overwrite=*/0);
  void* const ucs = open_library("libucs.so.0");
  void* const ucp = open_library("libucp.so.0");
  UcxLibrary all{};
  load(ucp, "ucp_config_read", all.config_read);
  load(ucp, "ucp_config_release", all.config_release);
  load(ucp, "ucp_init_version", all.init_version);
  load(ucp, "ucp_cleanup", all.cleanup);
  load(ucp, "ucp_worker_create", all.worker_create);
  load(ucp, "ucp_worker_destroy", all.worker_destroy);
  load(ucp, "ucp_worker_get_address", all.worker_get_address);
  load(ucp, "ucp_worker_release_address", all.worker_release_address);
  load(ucp, "ucp_worker_progress", all.worker_progress);
  load(ucp, "ucp_ep_create", all.ep_create);
  load(ucp, "ucp_ep_close_nbx", all.ep_close);
  load(ucp, "ucp_ep_flush_nbx", all.ep_flush);
  load(ucp, "ucp_tag_send_nbx", all.tag_send);
  load(ucp, "ucp_tag_recv_nbx", all.tag_receive);
  load(ucp, "ucp_tag_probe_nb", all.tag_probe);
  load(ucp, "ucp_tag_msg_recv_nbx", all.tag_receive_message);
  load(ucp, "ucp_request_check_status", all.request_status);
  load(ucp, "ucp_request_free", all.request_free);
  load(ucs, "ucs_status_string", all.status_string);
  return all;
}

}  // namespace

const UcxLibrary& ucx() {
  static const UcxLibrary library = load_all();
  return library;
}

}  // namespace smp::d2d
