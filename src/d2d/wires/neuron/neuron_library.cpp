// d2d/wires/neuron/neuron_library.cpp: see the header.
#include "d2d/wires/neuron/neuron_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/check.h"
#include "d2d/wires/neuron/neuron_status.h"
#include "smp/error.h"

namespace smp::d2d {
namespace {

constexpr const char* kName = "libnrt.so.1";
constexpr const char* kInstalled = "/opt/aws/neuron/lib/libnrt.so.1";
constexpr const char* kOfMostCalls = "NRT_2.0.0";
constexpr const char* kOfAsyncCalls = "NRT_3.0.0";  // from SDK 2.29 on

/// The releases whose declarations are known. The version macros of the headers never change, and
/// git has the asynchronous calls of 2.28 for all of them. Of 2.33 the release notes alone were
/// read: they tell of calls that were added, and of none that changed.
struct Release {
  int minor;  // of the runtime 2.x
  const char* sdk;
  NeuronInterface interface;
};
constexpr std::array<Release, 6> kReleases{{{30, "2.28", NeuronInterface::kErrorTracker},
                                            {31, "2.29", NeuronInterface::kResult},
                                            {32, "2.30", NeuronInterface::kResult},
                                            {33, "2.31", NeuronInterface::kResult},
                                            {34, "2.32", NeuronInterface::kResult},
                                            {35, "2.33", NeuronInterface::kResult}}};

std::string known_releases() {
  std::string text;
  for (const auto& release : kReleases) {
    text += base::concat(text.empty() ? "" : ", ", "2.", release.minor, " (SDK ", release.sdk, ')');
  }
  return text;
}

void* opened(const char* file) {
  void* const handle = ::dlopen(file, RTLD_NOW | RTLD_GLOBAL);
  SMP_REQUIRE_AS(PeerLostError, handle != nullptr,
                 "loading AWS Neuron's runtime failed: ", ::dlerror(),
                 "; install it (package aws-neuronx-runtime-lib), or use device = cpu");
  return handle;
}

class Functions {
 public:
  explicit Functions(void* handle) : handle_(handle) {}

  template <class Function>
  void load(const char* name, Function& function, const char* version = kOfMostCalls) const {
    void* const found = ::dlvsym(handle_, name, version);
    SMP_REQUIRE_AS(PeerLostError, found != nullptr, "this runtime of AWS Neuron has no ", name,
                   " of version ", version, "; install one of ", known_releases());
    function = reinterpret_cast<Function>(found);
  }
  bool has(const char* name, const char* version) const {
    return ::dlvsym(handle_, name, version) != nullptr;
  }

 private:
  void* handle_;
};

const Release& release_of(const NeuronLibrary::Version& version, const Functions& functions) {
  const auto* const known =
      std::find_if(kReleases.begin(), kReleases.end(), [&](const Release& release) {
        return version.major == 2 && version.minor == static_cast<std::uint64_t>(release.minor);
      });
  SMP_REQUIRE_AS(PeerLostError, known != kReleases.end(), "the runtime of AWS Neuron here is ",
                 version.major, '.', version.minor, '.', version.patch,
                 ", whose calls are not known to this library: they changed between releases "
                 "without a change of name; install one of ",
                 known_releases());
  const bool is_new = functions.has("nrta_tensor_read", kOfAsyncCalls);
  SMP_REQUIRE_AS(PeerLostError, is_new == (known->interface == NeuronInterface::kResult),
                 "the runtime of AWS Neuron says that it is 2.", known->minor, " (SDK ", known->sdk,
                 "), and its asynchronous calls are ", is_new ? "" : "not ", "of version ",
                 kOfAsyncCalls, "; is libnrt.so.1 of another release than the package?");
  return *known;
}

void load_async(const Functions& functions, NeuronLibrary& all) {
  const bool is_new = all.interface == NeuronInterface::kResult;
  const auto* const version = is_new ? kOfAsyncCalls : kOfMostCalls;
  functions.load("nrta_is_completed", all.is_completed, version);
  functions.load("nrta_cc_prepare", all.collectives.prepare, version);
  if (is_new) {
    functions.load("nrta_tensor_read", all.told.read, version);
    functions.load("nrta_tensor_write", all.told.write, version);
    functions.load("nrta_tensor_copy", all.told.copy, version);
    functions.load("nrta_cc_schedule", all.told.schedule, version);
    return;
  }
  functions.load("nrta_tensor_read", all.tracked.read, version);
  functions.load("nrta_tensor_write", all.tracked.write, version);
  functions.load("nrta_tensor_copy", all.tracked.copy, version);
  functions.load("nrta_cc_schedule", all.tracked.schedule, version);
  functions.load("nrta_error_tracker_create", all.tracked.create, version);
  functions.load("nrta_error_tracker_destroy", all.tracked.destroy, version);
  functions.load("nrta_error_tracker_get_list", all.tracked.get_list, version);
}

void load_send_receive(const Functions& functions, NeuronLibrary::SendReceive& all) {
  functions.load("nrt_async_sendrecv_get_max_num_communicators_per_lnc", all.get_max_communicators);
  functions.load("nrt_async_sendrecv_get_max_num_pending_request", all.get_max_pending);
  functions.load("nrt_async_sendrecv_init", all.init);
  functions.load("nrt_async_sendrecv_close", all.close);
  functions.load("nrt_async_sendrecv_connect", all.connect);
  functions.load("nrt_async_sendrecv_accept", all.accept);
  functions.load("nrt_async_sendrecv_test_comm", all.test_comm);
  functions.load("nrt_async_sendrecv_send_tensor", all.send_tensor);
  functions.load("nrt_async_sendrecv_recv_tensor", all.recv_tensor);
  functions.load("nrt_async_sendrecv_test_request", all.test_request);
  functions.load("nrt_async_sendrecv_flush", all.flush);
}

}  // namespace

NeuronLibrary load_neuron(const char* file) {
  const Functions functions(opened(file));
  int (*get_version)(NeuronLibrary::Version*, std::size_t) = nullptr;
  functions.load("nrt_get_version", get_version);
  NeuronLibrary::Version version{};
  const int status = get_version(&version, sizeof version);
  SMP_REQUIRE_AS(PeerLostError, status == neuron_status::kSuccess,
                 "asking AWS Neuron's runtime for its version failed: nrt_get_version returned ",
                 text_of_status(status), "; ", remedy_of_status(status));
  const auto& release = release_of(version, functions);
  NeuronLibrary all{};
  all.minor = release.minor;
  all.interface = release.interface;
  all.version = base::concat("2.", version.minor, '.', version.patch, " (SDK ", release.sdk, ')');
  functions.load("nrt_init", all.init);
  functions.load("nrt_close", all.close);
  functions.load("nrt_get_total_vnc_count", all.get_total_vnc_count);
  functions.load("nrt_tensor_allocate", all.tensor_allocate);
  functions.load("nrt_tensor_free", all.tensor_free);
  functions.load("nrt_tensor_get_va", all.tensor_get_va);
  functions.load("nrt_tensor_get_size", all.tensor_get_size);
  functions.load("nrt_tensor_read", all.tensor_read);
  functions.load("nrt_tensor_write", all.tensor_write);
  functions.load("nrt_tensor_copy", all.tensor_copy);
  functions.load("nrt_tensor_allocate_slice", all.tensor_allocate_slice);
  functions.load("nrt_cc_global_comm_init", all.collectives.global_init);
  load_async(functions, all);
  load_send_receive(functions, all.send_receive);
  return all;
}

NeuronLibrary& neuron() {
  static NeuronLibrary library = [] {
    // A framework that has loaded it has told it the cores. The package's folder is not on the
    // loader's path.
    if (::dlopen(kName, RTLD_NOW | RTLD_NOLOAD) != nullptr) return load_neuron(kName);
    void* const installed = ::dlopen(kInstalled, RTLD_NOW | RTLD_GLOBAL);
    return load_neuron(installed != nullptr ? kInstalled : kName);
  }();
  return library;
}

}  // namespace smp::d2d
