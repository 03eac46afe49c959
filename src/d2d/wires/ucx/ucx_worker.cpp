// d2d/wires/ucx/ucx_worker.cpp: see the header.
#include "d2d/wires/ucx/ucx_worker.h"

#include "base/check.h"
#include "d2d/wires/ucx/ucx_library.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

void check(ucs_status_t status, const char* what) {
  SMP_REQUIRE_AS(PeerLostError, status == UCS_OK, "UCX: ", what,
                 " failed: ", ucx().status_string(status),
                 "; `ucx_info -d` lists what it can use here; transport = auto does without it");
}

ucp_context_h make_context() {
  ucp_config_t* config = nullptr;
  check(ucx().config_read(nullptr, nullptr, &config), "reading its settings");
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_TAG;
  ucp_context_h context = nullptr;
  const auto status = ucx().init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
  ucx().config_release(config);
  check(status, "starting");
  return context;
}

}  // namespace

UcxWorker::UcxWorker() : context_(make_context()) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  auto status = ucx().worker_create(context_, &params, &worker_);
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  if (status == UCS_OK) status = ucx().worker_get_address(worker_, &address, &length);
  if (status == UCS_OK) {
    address_.assign(reinterpret_cast<const char*>(address), length);
    ucx().worker_release_address(worker_, address);
    return;
  }
  if (worker_ != nullptr) ucx().worker_destroy(worker_);
  ucx().cleanup(context_);
  check(status, "making a worker");
}

UcxWorker::~UcxWorker() {
  ucx().worker_destroy(worker_);
  ucx().cleanup(context_);
}

bool UcxWorker::progress() noexcept { return ucx().worker_progress(worker_) != 0; }

}  // namespace smp::d2d
