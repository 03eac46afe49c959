// tp/losses/chunked_cross_entropy.cpp: an operator of its own makes the scores of some rows at a
// time; what ranks exchange is two numbers a row, as without it.
#include "smp/tp/chunked_cross_entropy.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "tp/group/tensor_parallel.h"
#include "tp/losses/class_parts.h"

namespace smp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kChunked = "chunked_cross_entropy_for_tp";

/// The log-sum-exp of this rank's classes and the score of the label, of rows [n, H] -> [n, 2].
struct PartsOfProducts : torch::autograd::Function<PartsOfProducts> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const at::Tensor& table, const at::Tensor& own_label, std::int64_t real,
                            std::int64_t rows_at_once) {
    std::vector<at::Tensor> parts;
    const auto labels = own_label.split(rows_at_once);
    const auto chunks = rows.split(rows_at_once);
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      parts.push_back(tp::parts_of_scores(at::linear(chunks[i], table), labels[i], real));
    }
    auto all = at::cat(parts);
    context->save_for_backward({rows, table, own_label, all.select(-1, 0).clone()});
    context->saved_data["real"] = real;
    context->saved_data["rows_at_once"] = rows_at_once;
    return all;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    SMP_REQUIRE_AS(UnsupportedError, !at::GradMode::is_enabled(), "rank ",
                   tp::TensorParallel::current().rank(), " of its TP_GROUP: ", kChunked,
                   ": create_graph, but scores that are made again have no second derivatives; "
                   "call split_cross_entropy_for_tp(at::linear(hidden, table), labels) instead");
    const auto saved = context->get_saved_variables();
    const auto &rows = saved[0], &table = saved[1];
    const auto at_once = context->saved_data["rows_at_once"].toInt();
    const auto real = table.narrow(0, 0, context->saved_data["real"].toInt());
    const bool for_rows = context->needs_input_grad(0), for_table = context->needs_input_grad(1);
    const auto of_rows = for_rows ? at::empty_like(rows) : at::Tensor();
    const auto of_table =
        for_table ? at::zeros(table.sizes(), table.options().dtype(gradients[0].scalar_type()))
                  : at::Tensor();
    const auto of_real = for_table ? of_table.narrow(0, 0, real.size(0)) : at::Tensor();
    for (std::int64_t first = 0; first < rows.size(0); first += at_once) {
      const auto count = std::min(at_once, rows.size(0) - first);
      const auto part = [&](const at::Tensor& tensor) { return tensor.narrow(0, first, count); };
      const auto given = of_scores(at::linear(part(rows), real), part(saved[2]), part(saved[3]),
                                   part(gradients[0]));
      const auto in_type = given.to(rows.scalar_type());
      if (for_rows) part(of_rows).copy_(in_type.matmul(real));
      if (for_table) of_real.add_(in_type.t().matmul(part(rows)));
    }
    return {of_rows, for_table ? of_table.to(table.scalar_type()) : at::Tensor(), {}, {}, {}};
  }

  /// Returns the gradient of scores [n, c]: their softmax over the own classes, and the label's.
  static at::Tensor of_scores(const at::Tensor& scores, const at::Tensor& own_label,
                              const at::Tensor& log_sums, const at::Tensor& of_parts) {
    const auto sums = log_sums.masked_fill(at::isneginf(log_sums), 0).unsqueeze(-1);
    auto given = (scores.to(sums.scalar_type()) - sums).exp_().mul_(of_parts.narrow(-1, 0, 1));
    if (scores.size(-1) == 0) return given;
    const auto elsewhere = (own_label < 0) | (own_label >= scores.size(-1));
    return given.scatter_add_(-1, own_label.masked_fill(elsewhere, 0).unsqueeze(-1),
                              of_parts.narrow(-1, 1, 1).masked_fill(elsewhere.unsqueeze(-1), 0));
  }
};

/// Returns the tensor in the type in which at::linear would multiply it: autocast leaves doubles.
at::Tensor as_multiplied(const at::Tensor& tensor) {
  const auto device = tensor.device().type();
  return at::autocast::is_autocast_enabled(device) && tensor.scalar_type() != at::kDouble
             ? tensor.to(at::autocast::get_autocast_dtype(device))
             : tensor;
}

}  // namespace

at::Tensor chunked_cross_entropy_for_tp(const at::Tensor& hidden, const at::Tensor& table,
                                        const at::Tensor& given_labels,
                                        const ChunkedCrossEntropyOptions& options) {
  SMP_REQUIRE(hidden.dim() > 1 && table.dim() == 2 && hidden.size(-1) == table.size(1), kChunked,
              ": hidden is ", hidden.sizes(), " and the table ", table.sizes(),
              "; expected [T*B, .., H] and [V/T, H]");
  SMP_REQUIRE(options.most_scores > 0, kChunked, ": most_scores is ", options.most_scores,
              "; choose at least 1");
  const tp::OwnClasses classes(table.size(0), options.num_classes, kChunked);
  const auto sizes = hidden.sizes().slice(0, hidden.dim() - 1);
  const auto labels =
      tp::checked_labels(given_labels, sizes, classes, options.ignore_index, kChunked);
  const auto rows_at_once = std::max<std::int64_t>(1, options.most_scores / table.size(0));
  const auto rows = as_multiplied(hidden).reshape({-1, hidden.size(-1)});
  const auto parts = PartsOfProducts::apply(
      rows, as_multiplied(table), (labels - classes.first).flatten(), classes.real, rows_at_once);
  auto shape = sizes.vec();
  shape.push_back(2);
  return tp::losses_of_parts(parts.view(shape), labels, options.ignore_index, rows.scalar_type());
}

}  // namespace smp
