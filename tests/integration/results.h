// What a job's ranks print of what they have computed, bit by bit; jobs_test.py reads it.
#pragma once

#include <smp/smp.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace smp {

/// Of all bits of the parameters that this rank holds, and of their gradients (FNV-1a).
inline std::uint64_t checksum(const DistributedModelBase& model) {
  std::uint64_t sum = 14695981039346656037U;
  const auto add = [&sum](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto values = tensor.detach().contiguous();
    const auto* const bytes = static_cast<const unsigned char*>(values.data_ptr());
    for (std::size_t i = 0; i < values.nbytes(); ++i) sum = (sum ^ bytes[i]) * 1099511628211U;
  };
  for (const auto& [name, parameter] : model.local_named_parameters()) {
    add(parameter);
    add(parameter.grad());
  }
  return sum;
}

/// "results of rank 1: sum 1c9ab…, losses 0x1.8p+1 0x1.6p+1"
inline std::string results(const std::vector<double>& losses, const DistributedModelBase& model) {
  char text[64];
  std::snprintf(text, sizeof text, "results of rank %d: sum %016llx, losses", smp::rank(),
                static_cast<unsigned long long>(checksum(model)));
  std::string line = text;
  for (const double loss : losses) {
    std::snprintf(text, sizeof text, " %a", loss);
    line += text;
  }
  return line;
}

}  // namespace smp
