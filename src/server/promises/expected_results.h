// server/promises/expected_results.h: what calls of a module have returned so far, so that the next
// one can be promised (docs/design.md, Promised outputs). Threads: the rank's.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/protocol/message.h"

namespace smp::server {

/// The expected result of a call: everything but values and sizes.
struct ExpectedResult {
  struct Output {
    at::ScalarType dtype;
    c10::DeviceType device;
    bool requires_grad;
    friend bool operator==(const Output&, const Output&) = default;
  };
  std::string bytes;  ///< Packet::bytes
  std::vector<Output> outputs;
  bool refused = false;    ///< results differ, or cannot be promised
  bool fetched = true;     ///< the last time the caller needed the values itself
  bool passed_on = false;  ///< some time the caller passed them on to other remote modules
  bool at_once = false;    ///< the last time it needed them before it had called anything else
  std::uint32_t num_awaited = 0;  ///< calls awaited because of `at_once`

  /// Returns true if the next such call is to return at once, with promises. Where the caller does
  /// nothing meanwhile, waiting costs less; every 64th such call is promised all the same, to see
  /// whether that is still so.
  bool promise_next() noexcept {
    constexpr std::uint32_t kTryAgain = 64;
    if (refused) return false;
    return passed_on || !at_once || ++num_awaited % kTryAgain == 0;
  }
};

/// Calls are alike if they run the same method of the same module in the same modes and settings,
/// with tensors of the same types and the same other arguments.
class ExpectedResults {
 public:
  /// Returns a hash that is the same for alike calls. Tensors of `request` are those of the caller.
  [[nodiscard]] static std::uint64_t key_of(const ForwardRequest& request);

  /// Returns the expected result of calls with this key, or nullptr if nothing is known. Valid as
  /// long as this object.
  [[nodiscard]] ExpectedResult* find(std::uint64_t key);
  /// Learns from an answer that was awaited; its outputs are the tensors as they came.
  /// @param grad  the caller's grad mode
  void learn(std::uint64_t key, const ForwardResponse& answer, bool grad);

 private:
  std::unordered_map<std::uint64_t, ExpectedResult> results_;
};

}  // namespace smp::server
