// Files as memory.
#include "data/files/mapped_input.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "data/files/scratch_folder.h"
#include "support/refusal.h"

namespace smp::data {
namespace {

using testing::HasSubstr;

TEST(MappedInput, ShowsTheFile) {
  const ScratchFolder folder;
  EXPECT_EQ(MappedInput(folder.write("text", "some text")).bytes(), "some text");
  EXPECT_EQ(MappedInput(folder.write("empty", "")).bytes(), "");
}

TEST(MappedInput, RefusesWhatIsNoFile) {
  const ScratchFolder folder;
  const auto missing = folder.path("missing");
  EXPECT_THAT(refusal([&] { MappedInput{missing}; }), HasSubstr("missing: No such file"));
  EXPECT_THAT(refusal([&] { MappedInput{folder.path("")}; }), HasSubstr("no regular file"));
  const auto pipe = folder.path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(refusal([&] { MappedInput{pipe}; }), HasSubstr("no regular file"));  // and no wait
}

}  // namespace
}  // namespace smp::data
