// Where stages are taken to be.
#include "api/job_machine.h"

#include <gmock/gmock.h>

namespace smp {
namespace job_machine_test {

using testing::ElementsAre;
using testing::IsEmpty;
using Place = simulate::Machine::Place;

TEST(JobMachine, DealsTheAdaptersOfANodeToItsStages) {
  EXPECT_THAT(places_of({0, 0, 1, 1}, {-1, -1, -1, -1}, 1),
              ElementsAre(Place{0, 0, 0}, Place{0, 0, 0}, Place{1, 0, 0}, Place{1, 0, 0}));
  EXPECT_THAT(places_of({0, 0, 0, 1}, {-1, -1, -1, -1}, 2),
              ElementsAre(Place{0, 0, 0}, Place{0, 0, 1}, Place{0, 0, 0}, Place{1, 0, 0}));
  EXPECT_THAT(places_of({0, 1, 0, 1}, {-1, -1, -1, -1}, 8),
              ElementsAre(Place{0, 0, 0}, Place{1, 0, 0}, Place{0, 0, 1}, Place{1, 0, 1}));
}

TEST(JobMachine, TellsSocketsOfANodeApart) {
  EXPECT_THAT(places_of({0, 0, 0}, {0, 1, -1}, 1),
              ElementsAre(Place{0, 0, 0}, Place{0, 1, 0}, Place{0, 0, 0}));
}

TEST(JobMachine, StagesOfOneSocketNeedNoPlaces) {
  EXPECT_THAT(places_of({0, 0, 0}, {-1, -1, -1}, 2), IsEmpty());
  EXPECT_THAT(places_of({0, 0, 0}, {1, 1, 1}, 2), IsEmpty());
  EXPECT_THAT(places_of({3}, {0}, 1), IsEmpty());
}

}  // namespace job_machine_test
}  // namespace smp
