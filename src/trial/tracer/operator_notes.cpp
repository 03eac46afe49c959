// trial/tracer/operator_notes.cpp: an operator is heard of before it runs, when its operands can be
// read.
#include "trial/tracer/operator_notes.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "module/products.h"

namespace smp::partitioning {

namespace {

/// True for an operator of the forward whose result a call may keep.
bool is_product(const at::RecordFunction& op) {
  constexpr std::string_view kSpace = "aten::";
  const std::string_view name = op.name();
  if (!name.starts_with(kSpace) || OperatorWatch::inside_node()) return false;
  const auto own = name.substr(kSpace.size());
  return std::find(module::kProducts.begin(), module::kProducts.end(), own) !=
         module::kProducts.end();
}

}  // namespace

void OperatorNotes::note_costs(OperatorMeter& meter, ParameterReads& reads, LiveLog& live) {
  meter_ = &meter;
  reads_ = &reads;
  live_ = &live;
}

void OperatorNotes::before(const at::RecordFunction& op, const OperatorKind& kind) {
  if (meter_ != nullptr) {
    if (is_product(op)) product_began_ = meter_->times().front().forward;
    meter_->before(op, kind);
    note_reads(op, kind);
  }
  ++depth_;
  if (states_ != nullptr) note_writes(op, kind);
  if (states_ != nullptr && depth_ == 1) note_normalisation(op);
  guard_.before(op, kind);
}

void OperatorNotes::after(const at::RecordFunction& op) {
  --depth_;
  if (meter_ != nullptr) {
    meter_->after(op);
    if (is_product(op)) note_product(op);
  }
  if (states_ == nullptr) return;
  for (const auto& output : op.outputs()) {
    each_tensor(output, [&](const at::Tensor& tensor) { states_->note_result(tensor); });
  }
}

void OperatorNotes::note_product(const at::RecordFunction& op) {
  std::int64_t bytes = 0;
  for (const auto& output : op.outputs()) {
    each_tensor(output, [&](const at::Tensor& tensor) {
      bytes += static_cast<std::int64_t>(bytes_of(tensor));
      live_->note_product(tensor);
    });
  }
  calls_.note_product(meter_->times().front().forward - product_began_, bytes);
}

/// What a node reads its forward has saved, wherever that ran: a body that calls smp::grad() does
/// not read the weights of the modules between.
void OperatorNotes::note_reads(const at::RecordFunction& op, const OperatorKind& kind) {
  const int model = calls_.current().model;
  const int module = calls_.current_module();
  for (const auto& input : op.inputs()) {
    if (OperatorWatch::inside_node()) break;
    each_tensor(input, [&](const at::Tensor& tensor) { reads_->note(model, module, tensor); });
  }
  for (const int argument : kind.written) {
    each_tensor(op.inputs()[argument],
                [&](const at::Tensor& tensor) { reads_->note_write(tensor); });
  }
}

void OperatorNotes::note_writes(const at::RecordFunction& op, const OperatorKind& kind) {
  const int model = calls_.current().model;
  const int module = calls_.current_module();
  const auto& inputs = op.inputs();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool writes = std::find(kind.written.begin(), kind.written.end(), static_cast<int>(i)) !=
                        kind.written.end();
    each_tensor(inputs[i], [&](const at::Tensor& tensor) {
      if (!writes && OperatorWatch::inside_node()) return;
      states_->note_use(model, module, tensor, writes);
      // What operators do to what they made themselves is theirs.
      if (depth_ == 1) states_->note_kept(model, module, tensor, writes);
    });
    if (depth_ == 1 && inputs[i].isGenerator()) {
      states_->note_generator(model, module, inputs[i].toGenerator());
    }
  }
}

/// Notes the statistics of batch and instance normalisation, whose schemas in LibTorch do not say
/// that these operators write them.
void OperatorNotes::note_normalisation(const at::RecordFunction& op) {
  constexpr std::size_t kMean = 3, kTraining = 5;
  const std::string_view name = op.name();
  if (name != "aten::batch_norm" && name != "aten::instance_norm") return;
  const auto& inputs = op.inputs();
  if (inputs.size() <= kTraining || !inputs[kMean].isTensor()) return;
  states_->note_normalisation(calls_.current().model, calls_.current_module(),
                              inputs[kMean].toTensor(), inputs[kTraining].toBool());
}

}  // namespace smp::partitioning
