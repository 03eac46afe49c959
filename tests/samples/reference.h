// Reference values of tests/data/, and comparing a sample with them.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "smp/checkpoint.h"
#include "smp/hf.h"

namespace smp::reference {

using torch::Tensor;

inline StateDict read(const std::string& file) {
  return load_safetensors(std::string(SMP_TEST_DATA) + "/" + file + ".safetensors");
}

inline std::string weights_file(const std::string& model) {
  return std::string(SMP_TEST_DATA) + "/" + model + "_weights.safetensors";
}

/// Published values, which need not be weights, as a model has them.
inline StateDict as_own(const StateDict& published, const hf::NameMap& names) {
  const auto file = testing::TempDir() + "published." + std::to_string(getpid()) + ".safetensors";
  save_safetensors(published, file);
  auto own = hf::read(file, names);
  std::filesystem::remove(file);
  return own;
}

/// The largest difference over the largest value of `expected`.
inline double difference(const Tensor& ours, const Tensor& expected) {
  if (!ours.defined() || ours.sizes() != expected.sizes()) return 1;
  const double scale = std::max(1e-6, expected.abs().max().item<double>());
  return (ours - expected).abs().max().item<double>() / scale;
}

inline void expect_close(const Tensor& ours, const Tensor& expected, const std::string& what,
                         double tolerance = 1e-10) {
  EXPECT_LE(difference(ours, expected), tolerance) << what;
}

/// Gradients of `module`, under the names of its parameters.
inline StateDict gradients_of(const torch::nn::Module& module) {
  StateDict gradients;
  for (const auto& item : module.named_parameters()) {
    if (item.value().grad().defined()) gradients.insert(item.key(), item.value().grad());
  }
  return gradients;
}

/// The gradients that the reference holds, under published names.
inline StateDict expected_gradients(const StateDict& reference) {
  StateDict gradients;
  for (const auto& [name, tensor] : reference) {
    if (name.starts_with("grad.")) gradients.insert(name.substr(5), tensor);
  }
  return gradients;
}

inline void expect_same_gradients(const StateDict& ours, const StateDict& expected,
                                  double tolerance = 1e-10) {
  EXPECT_EQ(ours.size(), expected.size());
  for (const auto& [name, gradient] : expected) {
    if (ours.contains(name)) {
      expect_close(ours.at(name), gradient, "gradient of " + name, tolerance);
    } else {
      ADD_FAILURE() << "no gradient of " << name;
    }
  }
}

}  // namespace smp::reference
