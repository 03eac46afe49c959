// server/step/record.cpp: positions of passes.
#include "server/step/record.h"

#include "base/random.h"

namespace smp::server {

CallPosition Record::position_of_next_pass() {
  constexpr std::uint32_t kFirstPass = 1u << 31;
  const auto pass = kFirstPass + num_passes++;
  return {position.caller.child(position.ordinal).child(pass), 0,
          base::mix_key(base::mix_key(position.random_key, position.ordinal), pass)};
}

}  // namespace smp::server
