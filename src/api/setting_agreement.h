// api/setting_agreement.h: every rank has the same settings, where they must be equal.
#pragma once

namespace smp {

namespace base {
class ResolvedConfig;
}
namespace d2d {
class Communicator;
}

/// Which settings differ is found out only where their hashes do. Collective.
/// @throws UsageError  on every rank, with each key that differs, both values and their origins.
void require_same_settings(const d2d::Communicator& ranks, const base::ResolvedConfig& config);

}  // namespace smp
