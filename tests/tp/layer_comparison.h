// tp/layer_comparison.h: a distributed layer on a group of ranks with different samples, or with
// the same, against the layer of LibTorch that it stands for: values, gradients of inputs, of
// slices and of whole parameters.
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tp/group/slice_part.h"
#include "tp/slices/sliced_parameters.h"
#include "tp/tp_group.h"

namespace smp::tp {

inline void expect_near(const at::Tensor& ours, const at::Tensor& expected, double tolerance,
                        const std::string& what) {
  ASSERT_EQ(ours.defined(), expected.defined()) << what;
  if (!ours.defined()) return;
  ASSERT_EQ(ours.sizes(), expected.sizes()) << what;
  EXPECT_EQ(ours.scalar_type(), expected.scalar_type()) << what;
  if (ours.numel() == 0) return;
  const double scale = std::max(1e-3, expected.abs().max().item<double>());
  EXPECT_LE((ours - expected).abs().max().item<double>(), tolerance * scale) << what;
}

/// By what the loss of a rank weighs the elements of `output`.
inline at::Tensor weights_like(const at::Tensor& output, int rank) {
  const auto n = at::arange(output.numel(), at::kDouble);
  return at::sin(n * 0.9 + rank).view(output.sizes()).to(output.scalar_type());
}

/// What the plain layer gives for the samples of each rank.
struct PlainResults {
  std::vector<at::Tensor> outputs, inputs;               ///< inputs with gradients
  std::map<std::string, std::vector<at::Tensor>> parts;  ///< of gradients, by rank
};

template <class Layer>
PlainResults run_plain(Layer& layer, const std::vector<at::Tensor>& samples) {
  PlainResults results;
  for (std::size_t rank = 0; rank < samples.size(); ++rank) {
    auto input = samples[rank].clone();
    if (input.is_floating_point()) input.requires_grad_();
    layer->zero_grad();
    const auto output = layer->forward(input);
    (output * weights_like(output, static_cast<int>(rank))).sum().backward();
    results.outputs.push_back(output.detach());
    results.inputs.push_back(input);
    for (const auto& item : layer->named_parameters()) {
      if (item.value().grad().defined()) {
        results.parts[item.key()].push_back(item.value().grad().to_dense().clone());
      }
    }
  }
  return results;
}

inline at::Tensor sum_of(const std::vector<at::Tensor>& parts) {
  auto sum = parts[0].clone();
  for (std::size_t i = 1; i < parts.size(); ++i) sum += parts[i];
  return sum;
}

/// What a slice has beyond the whole stays zero.
inline void expect_zero_padding(const at::Tensor& slice, const ParameterSlice& of, int rank,
                                const std::string& what) {
  const auto size = slice.size(of.dim);
  const auto real = std::clamp<std::int64_t>(of.whole - rank * size, 0, size);
  const auto padding = slice.narrow(of.dim, real, size - real);
  EXPECT_EQ(padding.count_nonzero().item<std::int64_t>(), 0) << what;
}

/// Gradients of parameters that are whole, and yet of the samples of all ranks: each rank has a
/// part of a sum.
class SummedGradients {
 public:
  void add(const std::string& name, const at::Tensor& part) { parts_[name].push_back(part); }
  void expect_equal(const PlainResults& expected, std::size_t ranks, double tolerance) const {
    for (const auto& [name, parts] : parts_) {
      EXPECT_EQ(parts.size(), ranks);
      expect_near(sum_of(parts), sum_of(expected.parts.at(name)), tolerance, "sum for " + name);
    }
  }

 private:
  std::map<std::string, std::vector<at::Tensor>> parts_;
};

/// See expect_as_plain(). @param samples  of each rank; if the batch is prescaled, of all
template <class Plain, class Sliced>
void expect_as_plain_with(Batches batches, int size, const Plain& make_plain,
                          const Sliced& make_sliced, const std::vector<at::Tensor>& samples,
                          double tolerance, at::ScalarType dtype,
                          const std::vector<std::string>& summed, double of_values = 0) {
  torch::manual_seed(5);
  auto plain = make_plain();
  plain->to(dtype);
  const auto expected = run_plain(plain, samples);
  d2d::SimulatedJob job(size, 4);
  SummedGradients sums;
  on_group(
      job, size,
      [&](int rank) {
        SCOPED_TRACE(testing::Message()
                     << "rank " << rank << " of " << size
                     << (batches == Batches::kOwn ? ", own samples" : ", prescaled batch"));
        const int batch = batches == Batches::kOwn ? rank : 0;
        const auto place = static_cast<std::size_t>(batch);
        torch::manual_seed(5);
        auto layer = make_sliced();
        layer->to(dtype);
        auto input = samples[place].clone();
        if (input.is_floating_point()) input.requires_grad_();
        const auto output = layer->forward(input);
        expect_near(output.detach(), expected.outputs[place], tolerance, "output");
        backward(output, weights_like(output, batch));
        expect_near(input.grad(), expected.inputs[place].grad(), tolerance,
                    "gradient of the input");
        const SlicedParameters slices(*layer);
        const auto values = plain->named_parameters();
        EXPECT_EQ(layer->named_parameters().size(), values.size());
        for (const auto& item : layer->named_parameters()) {
          const auto slice = slices.find(item.value());
          const auto& parameter = item.value();
          const auto own = [&](const at::Tensor& whole) {
            return slice ? part_of(whole, slice->dim, parameter.size(slice->dim), rank) : whole;
          };
          expect_near(parameter.detach(), own(values[item.key()].detach()), of_values, item.key());
          const auto gradient = parameter.grad().to_dense();
          const bool is_summed = std::any_of(summed.begin(), summed.end(), [&](const auto& part) {
            return item.key().find(part) != std::string::npos;
          });
          if (is_summed && !slice) {
            // of a prescaled batch the average is taken, of own samples it would be one of their
            // losses
            sums.add(item.key(), batches == Batches::kOwn ? gradient : gradient / size);
            continue;
          }
          const auto& parts = expected.parts.at(item.key());
          expect_near(gradient, own(slice ? sum_of(parts) : parts[place]), tolerance,
                      "gradient of " + item.key());
          if (slice) expect_zero_padding(gradient, *slice, rank, item.key());
        }
      },
      batches);
  sums.expect_equal(expected, static_cast<std::size_t>(size), tolerance);
}

/// With samples of each rank's own, and with those of the first on all ranks. Both layers are made
/// after the same seed, and cast to the dtype of the samples.
/// @param summed     parts of names of parameters for SummedGradients
/// @param of_values  tolerance of parameters, where forward writes them
template <class Plain, class Sliced>
void expect_as_plain(const Plain& make_plain, const Sliced& make_sliced,
                     const std::vector<at::Tensor>& samples, double tolerance,
                     at::ScalarType dtype = at::kDouble,
                     const std::vector<std::string>& summed = {}, double of_values = 0) {
  const auto size = static_cast<int>(samples.size());
  expect_as_plain_with(Batches::kOwn, size, make_plain, make_sliced, samples, tolerance, dtype,
                       summed, of_values);
  if (size == 1) return;
  expect_as_plain_with(Batches::kPrescaled, size, make_plain, make_sliced, {samples[0]}, tolerance,
                       dtype, summed, of_values);
}

/// Different whole numbers below `bound` for every rank.
inline std::vector<at::Tensor> whole_numbers(int size, at::IntArrayRef sizes, std::int64_t bound) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < size; ++rank) {
    const auto n = at::arange(c10::multiply_integers(sizes), at::kLong);
    all.push_back(at::remainder(n * n + 5 * n + rank, bound).view(sizes));
  }
  return all;
}

/// Different numbers for every rank.
inline std::vector<at::Tensor> numbers(int size, at::IntArrayRef sizes) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < size; ++rank) {
    const auto n = at::arange(c10::multiply_integers(sizes), at::kDouble);
    all.push_back(at::sin(n * 0.7 + 1.3 * rank).view(sizes));
  }
  return all;
}

}  // namespace smp::tp
