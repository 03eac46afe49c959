// api/replicas/replica_writes.h: parameters that code writes while it runs, where several replicas
// hold them: rows that max_norm shortens become alike again, and what else is written is refused.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "api/replicas/shortened_parts.h"
#include "server/modules/weight_watch.h"

namespace smp {

class DistributedModelBase;
class Rank;
class SessionState;

/// Watches the parameters of placed models on one rank. An embedding with max_norm shortens the
/// rows that it looks up, in place, so that each replica shortens those of its own samples. One
/// process shortens the rows of all samples; since that is done before every look-up, it does not
/// matter when. So it is enough that replicas agree at the end of a step: each says which rows it
/// has shortened, and all take these rows from the first that has. What evaluation shortens, of
/// which other replicas do not hear, is said before the next step with gradients.
///
/// Of a slice each rank has a part of every row, and all parts are shortened by one scale, that of
/// the whole row (tp/group/shorten_rows.h, shortened_parts.h).
///
/// Two uses cannot come out as in one process, and are refused: of such a table by other code than
/// look-ups, since it would see rows before other replicas have shortened them; and any other write
/// to a parameter in forward, since each replica would write what its own samples ask for, or as
/// often as it has microbatches. Threads: the rank's.
class ReplicaWrites {
 public:
  /// The rows of one table that a replica has shortened.
  struct Rows {
    std::uint32_t parameter = 0;  ///< its number on this stage, the same in all replicas
    std::int32_t slice = -1;      ///< the tp_rank that has this part of the rows; whole ones: -1
    double max_norm = 0;
    double norm_type = 0;
    at::Tensor rows;    ///< [n], of whole numbers, each once
    at::Tensor values;  ///< [n, D], on the CPU
  };
  using Report = std::vector<Rows>;

  /// Refers to its arguments.
  ReplicaWrites(Rank& rank, const SessionState& state);
  ~ReplicaWrites();
  ReplicaWrites(const ReplicaWrites&) = delete;
  ReplicaWrites& operator=(const ReplicaWrites&) = delete;

  /// Forgets the parameters, because models were placed or are gone, but not what was shortened.
  void forget() noexcept { parameters_.clear(); }
  /// A step begins on this rank, models are placed.
  /// @param learns  it has gradients: tables are for look-ups only until end_step()
  void begin_step(bool learns);
  void end_step() noexcept;
  /// @throws UsageError  a parameter was written since begin_step(), but for rows that max_norm
  ///                     shortened.
  void refuse_written() const;

  /// True if some replica has shortened a row in an earlier step, as all of them know.
  bool any_tables() const noexcept { return !known_.empty(); }
  /// Returns what this rank has shortened since replicas last agreed, but for tables of models
  /// under a NoSync, whose replicas go on apart.
  [[nodiscard]] Report report();
  /// Makes the tables of all replicas alike. @param reports  of all of them, in their order
  /// @throws UsageError  a table was shortened in two ways.
  void agree(const std::vector<Report>& reports);

  /// The step has ended well on all ranks that share its tables.
  void keep_shortened() noexcept { parts_.keep(); }
  /// The step has failed: parts of rows that it has shortened become what they were.
  void take_back() noexcept;

  /// Does what LibTorch's operator embedding_renorm_ does to `table`, and notes the rows.
  static at::Tensor& shorten(at::Tensor& table, const at::Tensor& indices, double max_norm,
                             double norm_type);
  /// Does what tp::row_lengths() does, for parts as they were before the step shortened them.
  static at::Tensor lengths_before(const at::Tensor& slice, const at::Tensor& rows,
                                   double norm_type);
  /// Does what tp::scale_rows() does, once in a step, and notes the rows.
  static void scale_once(at::Tensor& slice, const at::Tensor& rows, const at::Tensor& scales,
                         double max_norm, double norm_type);

 private:
  class ReadGuard;
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    const DistributedModelBase* model;
    bool slice;
  };
  /// What is noted of a table.
  struct Table {
    at::Tensor tensor;
    double max_norm;
    double norm_type;
    bool mixed = false;              // there are two ways
    std::vector<std::int64_t> rows;  // in any order; a row comes again once it has grown
  };
  static ReplicaWrites* of_running_code() noexcept;
  const std::vector<Parameter>& parameters();
  const Parameter* find(const at::Tensor& tensor);
  at::Tensor& shorten_own(const Parameter& parameter, at::Tensor& table, const at::Tensor& indices,
                          double max_norm, double norm_type);
  void before_shortening(const Parameter& parameter);
  void after_shortening(const Parameter& parameter, const at::Tensor& rows, double max_norm,
                        double norm_type);
  void note(const Parameter& parameter, const at::Tensor& rows, double max_norm, double norm_type);
  void watch_reads(const Parameter& table);
  void require_one_way(const Parameter& table, bool mixed) const;

  Rank& rank_;
  const SessionState& state_;
  std::vector<Parameter> parameters_;  // empty: not known yet
  std::vector<Table> tables_;          // that were shortened since replicas last agreed
  ShortenedParts parts_;               // of slices, while a step runs
  std::vector<at::Tensor> known_;      // tables, as all replicas know
  std::vector<at::Tensor> watched_;    // of these, while a step with gradients runs
  c10::intrusive_ptr<ReadGuard> guard_;
  server::WeightWatch weights_;
  std::string written_;  // the first parameter that was written before its rows were shortened
  bool in_step_ = false;
  bool learns_ = false;
};

}  // namespace smp
