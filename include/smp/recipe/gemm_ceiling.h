// smp/recipe/gemm_ceiling.h: what this rank's processor reaches in matrix products.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

#include "smp/detail/export.h"

namespace smp {

/// How measured_gemm_flops() measures.
struct GemmCeilingOptions {
  std::int64_t size = 1024;  ///< rows and columns of both factors
  double seconds = 0.2;      ///< for which products are timed, after one that is not
  c10::ScalarType dtype = c10::kFloat;
  c10::Device device = c10::Device(c10::kCPU);
};

/// Returns the floating-point operations per second of LibTorch's product of square matrices, with
/// the threads that it has now: those of the fastest product. It is the ceiling that a model's
/// operations are compared with, where the numbers of a data sheet are not reached by anything.
/// All ranks that share a machine call it at once, as they compute at once:
///
///     double peak = 0;
///     for (double one : smp::all_gather(smp::measured_gemm_flops())) peak += one;
///
/// Any thread.
/// @throws UsageError  the size or the time is not positive.
SMP_API double measured_gemm_flops(const GemmCeilingOptions& options = {});

}  // namespace smp
