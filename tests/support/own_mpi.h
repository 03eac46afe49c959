// support/own_mpi.h: MPI that a test program starts and ends itself, so that several sessions of
// the library may follow each other. Sources of one program share it.
#pragma once

#include <gtest/gtest.h>
#include <mpi.h>

namespace smp::support {

class OwnMpi : public testing::Environment {
  void SetUp() override { MPI_Init(nullptr, nullptr); }
  void TearDown() override { MPI_Finalize(); }
};
inline const auto* const own_mpi = testing::AddGlobalTestEnvironment(new OwnMpi);

}  // namespace smp::support
