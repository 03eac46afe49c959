// api/replicas/replica_writes.cpp: an operator of LibTorch's is seen under a dispatch key of its
// own; all others pass that key by.
#include "api/replicas/replica_writes.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/library.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "api/rank/rank.h"
#include "api/rank/session_parts.h"
#include "api/replicas/replicas.h"
#include "api/state/session_state.h"
#include "base/check.h"
#include "base/log.h"
#include "server/running/row_writes.h"
#include "server/values/guarded_tensor.h"
#include "server/values/tensor_memory.h"
#include "smp/distributed_model.h"
#include "tp/group/shorten_rows.h"
#include "tp/slices/sliced_parameters.h"

namespace smp {
namespace {

/// Of table rows, by code that has to do with guards and notes itself.
class Unseen {
 private:
  const at::NoGradGuard no_grad_;
  const c10::impl::ExcludeDispatchKeyGuard exclude_{
      c10::DispatchKeySet({server::kRowWrites, server::kGuarded})};
};

at::Tensor distinct(const at::Tensor& indices) {
  return std::get<0>(at::_unique(indices.detach().reshape(-1).to(at::kLong)));
}

bool is_look_up(std::string_view op) {
  return op.starts_with("aten::embedding") || op.starts_with("aten::_embedding") ||
         op == "smp_tp::row_lengths" || op == "smp_tp::scale_rows_";
}

/// True if the operator gives no values, or the same tensor again, still guarded.
bool asks_for_form(std::string_view op) {
  return op.ends_with("_like") || op == "aten::detach" || op == "aten::alias" ||
         op.starts_with("aten::size") || op.starts_with("aten::stride") ||
         op.starts_with("aten::sym_") || op.starts_with("aten::is_");
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, library) {
  library.impl("embedding_renorm_", &ReplicaWrites::shorten);
}

TORCH_LIBRARY_IMPL(smp_tp, TESTING_ONLY_GenericMode, library) {
  library.impl("row_lengths", &ReplicaWrites::lengths_before);
  library.impl("scale_rows_", &ReplicaWrites::scale_once);
}

/// Of tables that max_norm shortens, while a step runs.
class ReplicaWrites::ReadGuard final : public server::TensorGuard {
 public:
  explicit ReadGuard(const ReplicaWrites& writes) : writes_(&writes) {}
  void before_use(const at::Tensor& tensor, const std::string& op, bool) override {
    if (writes_ == nullptr || !writes_->in_step_ || is_look_up(op) || asks_for_form(op)) return;
    const auto& all = writes_->parameters_;
    const auto found = std::find_if(all.begin(), all.end(), [&](const Parameter& parameter) {
      return server::memory_of(parameter.tensor) == server::memory_of(tensor);
    });
    SMP_REQUIRE(
        false, "rank ", writes_->rank_.topology().rank(), ": parameter '",
        found == all.end() ? std::string("?") : found->name, "' is used by ", op,
        ", and max_norm shortens the rows that a look-up names. There are ",
        writes_->rank_.groups().num_replicas(),
        " replicas, and which rows the others shorten in this step is known at its end, so "
        "other code than look-ups would not see what it sees in one process. Read the table "
        "through its embedding alone, or leave max_norm out and shorten rows between steps, "
        "alike in every replica (torch::NoGradGuard, weight.renorm_() after optimizer.step())");
  }
  bool looks_on() const noexcept override { return true; }
  void forget() noexcept { writes_ = nullptr; }

 private:
  const ReplicaWrites* writes_;  // shallow copies of a table may outlive it
};

ReplicaWrites::ReplicaWrites(Rank& rank, const SessionState& state)
    : rank_(rank), state_(state), guard_(c10::make_intrusive<ReadGuard>(*this)) {}

ReplicaWrites::~ReplicaWrites() {
  end_step();
  guard_->forget();
}

const std::vector<ReplicaWrites::Parameter>& ReplicaWrites::parameters() {
  if (!parameters_.empty()) return parameters_;
  std::unordered_set<const void*> seen;
  for (const auto* model : state_.models()) {
    if (!model->partitioned()) continue;
    const tp::SlicedParameters slices(model->base_module());
    for (const auto& [name, tensor] : model->local_named_parameters()) {
      if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      parameters_.push_back({name, tensor, model, slices.contain(tensor)});
    }
  }
  const auto gone = [&](const at::Tensor& table) {
    return seen.count(table.unsafeGetTensorImpl()) == 0;
  };
  std::erase_if(known_, gone);
  std::erase_if(tables_, [&](const Table& noted) { return gone(noted.tensor); });
  return parameters_;
}

/// nullptr: it shares no memory with a parameter of a placed model on this rank.
const ReplicaWrites::Parameter* ReplicaWrites::find(const at::Tensor& tensor) {
  const auto* const memory = server::memory_of(tensor);
  if (memory == nullptr) return nullptr;
  for (const auto& parameter : parameters()) {
    if (server::memory_of(parameter.tensor) == memory) return &parameter;
  }
  return nullptr;
}

// ---- steps -------------------------------------------------------------------------------------

void ReplicaWrites::begin_step(bool learns) {
  weights_ = {};
  written_.clear();
  for (const auto& parameter : parameters()) weights_.add(parameter.name, parameter.tensor);
  weights_.begin_step();
  in_step_ = true;
  learns_ = learns;
  if (!learns) return;
  for (const auto& table : known_) {
    if (const auto* parameter = find(table)) watch_reads(*parameter);
  }
}

void ReplicaWrites::end_step() noexcept {
  in_step_ = learns_ = false;
  weights_ = {};
  for (const auto& table : std::exchange(watched_, {})) server::unwatch_uses(table);
}

void ReplicaWrites::watch_reads(const Parameter& table) {
  if (server::guard_of(table.tensor) != nullptr) return;
  server::watch_uses(table.tensor, guard_);
  watched_.push_back(table.tensor);
}

void ReplicaWrites::refuse_written() const {
  const auto name = written_.empty() ? weights_.written() : written_;
  SMP_REQUIRE(
      name.empty(), "rank ", rank_.topology().rank(), ": parameter '", name,
      "' was written while a step ran. There are ", rank_.groups().num_replicas(),
      " replicas, and each has written its own copy, for its own samples and as often as it has "
      "microbatches: none has what one process would have. Let forward compute with a changed copy "
      "(weight * mask) instead of writing, or write between steps, alike in every replica. Rows "
      "that max_norm of an embedding shortens are kept alike");
}

// ---- rows --------------------------------------------------------------------------------------

/// nullptr: one replica, or none; and a trial run leaves no notes.
ReplicaWrites* ReplicaWrites::of_running_code() noexcept {
  const auto* session = SessionParts::find_current();
  if (session == nullptr || session->rank.is_tracing()) return nullptr;
  return session->rank.groups().num_replicas() == 1 ? nullptr : &session->replicas.writes();
}

at::Tensor& ReplicaWrites::shorten(at::Tensor& table, const at::Tensor& indices, double max_norm,
                                   double norm_type) {
  auto* const writes = of_running_code();
  const auto* const parameter = writes == nullptr ? nullptr : writes->find(table);
  if (parameter == nullptr) {
    const c10::impl::ExcludeDispatchKeyGuard once(server::kRowWrites);
    return at::embedding_renorm_(table, indices, max_norm, norm_type);
  }
  return writes->shorten_own(*parameter, table, indices, max_norm, norm_type);
}

/// Which rows are too long, LibTorch's operator decides: they are those that it changes.
at::Tensor& ReplicaWrites::shorten_own(const Parameter& parameter, at::Tensor& table,
                                       const at::Tensor& indices, double max_norm,
                                       double norm_type) {
  const auto& topology = rank_.topology();
  SMP_REQUIRE_AS(
      UnsupportedError, !parameter.slice || topology.tp_size() == 1, "rank ", topology.rank(),
      ": max_norm of parameter '", parameter.name, "', of which each of ", topology.tp_size(),
      " tensor-parallel ranks holds a slice, would shorten parts of rows by the norms of "
      "the parts; let smp::nn::DistributedEmbedding do it, which knows those of whole rows");
  SMP_REQUIRE_AS(UnsupportedError, norm_type != 0, "rank ", topology.rank(),
                 ": max_norm of parameter '", parameter.name,
                 "' with norm_type 0 shortens a row again at each look-up, and how often the other "
                 "replicas look it up is known in one process only; choose another norm_type, or "
                 "run without replicas");
  before_shortening(parameter);
  const auto rows = distinct(indices);
  const auto rows_of = [&] {
    const Unseen unseen;
    return table.detach().index_select(0, rows);
  };
  const auto before = rows_of();
  {
    const c10::impl::ExcludeDispatchKeyGuard once(server::kRowWrites);
    at::embedding_renorm_(table, indices, max_norm, norm_type);
  }
  const auto changed = before.ne(rows_of()).flatten(1).any(1);
  after_shortening(parameter, rows.masked_select(changed).cpu(), max_norm, norm_type);
  return table;
}

void ReplicaWrites::before_shortening(const Parameter& parameter) {
  if (in_step_ && written_.empty() && weights_.has_written(parameter.tensor)) {
    written_ = parameter.name;
  }
}

void ReplicaWrites::after_shortening(const Parameter& parameter, const at::Tensor& rows,
                                     double max_norm, double norm_type) {
  note(parameter, rows, max_norm, norm_type);
  weights_.look_again(parameter.tensor);
  if (learns_) watch_reads(parameter);
}

// ---- parts of rows -----------------------------------------------------------------------------

at::Tensor ReplicaWrites::lengths_before(const at::Tensor& slice, const at::Tensor& rows,
                                         double norm_type) {
  auto* const writes = of_running_code();
  const auto* const parameter = writes == nullptr ? nullptr : writes->find(slice);
  const Unseen unseen;
  const bool in_step = parameter != nullptr && writes->in_step_;
  const auto parts =
      in_step ? writes->parts_.before(slice, rows) : slice.detach().index_select(0, rows);
  return tp::lengths_of_parts(parts, norm_type);
}

/// Outside of steps all ranks come in one order.
void ReplicaWrites::scale_once(at::Tensor& slice, const at::Tensor& rows, const at::Tensor& scales,
                               double max_norm, double norm_type) {
  auto* const writes = of_running_code();
  const auto* const parameter = writes == nullptr ? nullptr : writes->find(slice);
  if (parameter != nullptr) writes->before_shortening(*parameter);
  at::Tensor written;
  {
    const Unseen unseen;
    ShortenedParts once;
    auto& parts = parameter != nullptr && writes->in_step_ ? writes->parts_ : once;
    written = parts.scale(slice, rows, scales);
  }
  if (parameter != nullptr) writes->after_shortening(*parameter, written, max_norm, norm_type);
}

void ReplicaWrites::take_back() noexcept try {
  const Unseen unseen;
  parts_.take_back();
} catch (const std::exception& error) {  // what ended the step is thrown
  base::log(
      base::LogLevel::kWarning, "rank ", rank_.topology().rank(),
      ": rows of a table that a failed step has shortened could not be set back: ", error.what());
}

// ---- what replicas tell each other -------------------------------------------------------------

void ReplicaWrites::note(const Parameter& parameter, const at::Tensor& rows, double max_norm,
                         double norm_type) {
  auto table = std::find_if(tables_.begin(), tables_.end(), [&](const Table& known) {
    return known.tensor.is_same(parameter.tensor);
  });
  if (table == tables_.end()) {
    table = tables_.insert(table, {parameter.tensor, max_norm, norm_type, false, {}});
  }
  table->mixed |= table->max_norm != max_norm || table->norm_type != norm_type;
  const auto* const numbers = rows.const_data_ptr<std::int64_t>();
  table->rows.insert(table->rows.end(), numbers, numbers + rows.numel());
}

void ReplicaWrites::require_one_way(const Parameter& table, bool mixed) const {
  SMP_REQUIRE(!mixed, "rank ", rank_.topology().rank(), ": rows of parameter '", table.name,
              "' are shortened in two ways, by embeddings with another max_norm or norm_type. In "
              "which order they are is known in one process only; give both the same, or run "
              "without replicas");
}

ReplicaWrites::Report ReplicaWrites::report() {
  Report report;
  const auto& all = parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& parameter = all[i];
    const auto table = std::find_if(tables_.begin(), tables_.end(), [&](const Table& noted) {
      return noted.tensor.is_same(parameter.tensor);
    });
    if (table == tables_.end() || !parameter.model->syncs_gradients()) continue;
    std::sort(table->rows.begin(), table->rows.end());
    table->rows.erase(std::unique(table->rows.begin(), table->rows.end()), table->rows.end());
    const Unseen unseen;
    const auto rows = at::tensor(table->rows, at::kLong);
    const auto values = table->tensor.detach().index_select(0, rows.to(table->tensor.device()));
    // Rows that are shortened in two ways are told all the same: every replica refuses them.
    const bool in_part = parameter.slice && rank_.topology().tp_size() > 1;
    report.push_back({static_cast<std::uint32_t>(i), in_part ? rank_.topology().tp_rank() : -1,
                      table->max_norm, table->mixed ? -1 : table->norm_type, rows, values.cpu()});
  }
  return report;
}

void ReplicaWrites::agree(const std::vector<Report>& reports) {
  const auto& all = parameters();
  std::vector<const Rows*> first(all.size(), nullptr);
  for (const auto& report : reports) {
    for (const auto& rows : report) {
      const auto& parameter = all.at(rows.parameter);
      auto& way = first[rows.parameter];
      if (way == nullptr) way = &rows;
      require_one_way(parameter, rows.norm_type < 0 || rows.max_norm != way->max_norm ||
                                     rows.norm_type != way->norm_type);
    }
  }
  const Unseen unseen;
  for (auto report = reports.rbegin(); report != reports.rend(); ++report) {  // the first wins
    for (const auto& rows : *report) {
      if (rows.slice >= 0 && rows.slice != rank_.topology().tp_rank()) continue;
      const auto& table = all[rows.parameter].tensor;
      table.detach().index_copy_(0, rows.rows.to(table.device()), rows.values.to(table.device()));
    }
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (first[i] == nullptr) continue;
    const auto is_it = [&](const at::Tensor& known) { return known.is_same(all[i].tensor); };
    if (std::none_of(known_.begin(), known_.end(), is_it)) known_.push_back(all[i].tensor);
    std::erase_if(tables_, [&](const Table& noted) { return is_it(noted.tensor); });
  }
}

}  // namespace smp
