// Which files among the maps of a process are MPI's.
#include "d2d/wires/mpi/mpi_segments.h"

#include <gmock/gmock.h>

namespace smp::d2d {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(MpiSegments, AreFoundOnceEachAmongMaps) {
  EXPECT_THAT(
      MpiSegments::find(
          "7f0-7f1 rw-s 00000000 00:19 12   /dev/shm/vader_segment.host.0.70650001.3\n"
          "7f1-7f2 rw-s 00001000 00:19 12   /dev/shm/vader_segment.host.0.70650001.3\n"
          "7f2-7f3 rw-s 00000000 00:19 13   /dev/shm/sm_segment.host.0.1.0\n"
          "7f3-7f4 rw-s 00000000 00:19 14   /dev/shm/sem.other\n"
          "7f4-7f5 r-xp 00000000 08:01 15   /usr/lib/libc.so.6\n"),
      ElementsAre("/dev/shm/vader_segment.host.0.70650001.3", "/dev/shm/sm_segment.host.0.1.0"));
}

TEST(MpiSegments, ThatHaveNoNameAnyMoreAreLeftAlone) {
  EXPECT_THAT(MpiSegments::find(
                  "7f0-7f1 rw-s 0 00:19 12 /dev/shm/vader_segment.host.0.70650001.3 (deleted)\n"),
              IsEmpty());
}

}  // namespace
}  // namespace smp::d2d
