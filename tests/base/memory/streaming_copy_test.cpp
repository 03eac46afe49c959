// Copies past the caches: every beginning and end beside a line's.
#include "base/memory/streaming_copy.h"

#include <gtest/gtest.h>

#include <string>

namespace smp::base {
namespace {

TEST(StreamingCopies, CopyWhateverTheirAlignment) {
  constexpr std::size_t kBytes = 40'000;
  std::string source(kBytes, '\0');
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i % 251 + 1);
  for (const std::size_t size :
       {0u, 1u, 15u, 63u, 64u, 65u, 127u, 128u, 500u, 16'383u, 16'384u, 36'000u}) {
    for (std::size_t to = 0; to < 70; to += to < 3 || to > 60 ? 1 : 13) {
      for (const std::size_t from : {0u, 1u, 8u, 63u}) {
        std::string target(kBytes, '\0');
        streaming_copy(target.data() + to, source.data() + from, size);
        std::string expected(kBytes, '\0');
        expected.replace(to, size, source, from, size);
        ASSERT_TRUE(target == expected) << size << " bytes from " << from << " to " << to;
      }
    }
  }
}

}  // namespace
}  // namespace smp::base
