// perf/harness/harness.h: what all performance programs share: timing, percentiles, alternation of
// two variants, and a report that is printed and written to perf/results/NAME.json.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace smp::perf {

/// One measured number.
struct Row {
  std::string metric;  ///< for example "ratio_to_stock.median"
  double value = 0;
  std::string unit;  ///< for example "us", "GB/s", "1" for a ratio
  std::string note;  ///< what else one must know to read the number
};

/// Middle value, or the mean of the two in the middle. `values` must not be empty.
double median(std::vector<double> values);
/// The value below which `fraction` (0 to 1) of `values` lie, interpolated.
double percentile(std::vector<double> values, double fraction);

/// Whether SMP_PERF_BRIEF=1 asks only for a proof that the program works, as the tests do: few
/// rounds, any BLAS will do, and no result file is read or written.
bool brief();
/// How often to measure what is usually measured `usual` times: once if brief().
int rounds(int usual);

/// Duration of one call of `body`, in microseconds.
double microseconds(const std::function<void()>& body);
/// Mean duration of one of `repetitions` calls of `body`, in microseconds.
double microseconds_each(int repetitions, const std::function<void()>& body);

/// Samples of two variants that were measured in turn, so that both met the same weather.
struct Alternated {
  std::vector<double> a, b;
  /// Median of a[i] / b[i].
  double ratio() const;
};
/// Calls `a` and `b` by turns, `times` times each after one unrecorded round. Each returns its own
/// measurement, so that preparation stays outside.
Alternated alternate(int times, const std::function<double()>& a, const std::function<double()>& b);

/// Best of some float32 multiplications of 1024 x 1024 matrices, in GFLOP/s, with LibTorch's
/// current number of threads. Counted by CPU time, so that other processes hardly matter.
double matrix_multiplication_gflops();

/// Rows of one program. Make it first: it refuses to measure on a slow BLAS, on which every ratio
/// to a kernel's time would flatter us.
class Report {
 public:
  /// What becomes of rows of the result file that this run does not measure.
  enum class Earlier {
    kDropped,
    kKept,  ///< for programs that run once per setting
  };

  /// `name` is that of the program and of the result file. @throws UnsupportedError  slow BLAS.
  explicit Report(std::string name, Earlier earlier = Earlier::kDropped);

  void add(std::string metric, double value, std::string unit, std::string note = "");
  /// Median, 10th and 90th percentile as NAME.median, NAME.p10, NAME.p90.
  void add_samples(const std::string& name, const std::vector<double>& samples,
                   const std::string& unit, const std::string& note = "");
  /// Another component whose version matters, for example "MPI" and "Open MPI 4.1.4".
  void add_version(const std::string& component, const std::string& version);

  /// Values of the metrics that begin with `prefix`: of this run, and of earlier ones if kept.
  std::vector<double> values(const std::string& prefix) const;

  /// Writes perf/results/NAME.json, unless brief(): a long program keeps what it has so far.
  void save() const;
  /// Prints the table and saves.
  void finish() const;

 private:
  std::string table() const;
  std::string json() const;
  std::string path() const;
  bool measured(const std::string& metric) const;
  std::vector<Row> kept_rows() const;

  std::string name_;
  Earlier earlier_;
  double gflops_;
  std::map<std::string, std::string> versions_;
  std::vector<Row> rows_;
};

/// The report of a program for several ranks, with the version of MPI: rank 0 has it, no other
/// rank.
std::optional<Report> report_of_ranks(int rank, const std::string& name,
                                      Report::Earlier earlier = Report::Earlier::kDropped);

/// False if only the help was wanted: it is printed then. Flags of the library remain in `argv`.
bool parse_options(CLI::App& app, int argc, char** argv);

/// Runs `program`; an exception is printed and becomes the exit status 1.
int run_program(const std::function<void()>& program);

}  // namespace smp::perf
