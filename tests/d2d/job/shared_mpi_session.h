// MPI can be started once in a process: all tests of a program share the session.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "d2d/job/mpi_session.h"

namespace smp::d2d {

class SessionOfAllTests : public testing::Environment {
 public:
  void SetUp() override { session = std::make_unique<MpiSession>(); }
  void TearDown() override { session.reset(); }
  static inline std::unique_ptr<MpiSession> session;
};
inline const auto* const kSessionOfAllTests =
    testing::AddGlobalTestEnvironment(new SessionOfAllTests);

inline MpiSession& shared_mpi_session() { return *SessionOfAllTests::session; }

}  // namespace smp::d2d
