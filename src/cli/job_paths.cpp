// cli/job_paths.cpp: see the header.
#include "cli/job_paths.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "api/rank/shared_warnings.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/shell.h"
#include "config/config.h"
#include "d2d/channel/channel.h"
#include "d2d/job/job_wires.h"
#include "d2d/job/mpi_session.h"
#include "smp/error.h"

namespace smp::cli {
namespace {

namespace fs = std::filesystem;

/// The first text that a job prints once MPI has started it. Libraries write to stdout before it
/// too.
constexpr const char* kFirstWords = "transport = ";
constexpr int kMostSeconds = 60;
constexpr int kStatusOfTimeout = 124;  // of the program timeout

/// An empty temporary file, which is removed at the end of the object's life.
class TemporaryFile {
 public:
  TemporaryFile() : path_((fs::temp_directory_path() / "smp-doctor-XXXXXX").string()) {
    const int descriptor = ::mkstemp(path_.data());
    SMP_REQUIRE(descriptor >= 0, "no file can be made in ", fs::temp_directory_path().string(),
                "; TMPDIR names another folder");
    ::close(descriptor);
  }
  ~TemporaryFile() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const noexcept { return path_; }
  /// Returns the lines of the file without repetitions, since all ranks of a job say the same.
  std::string lines_once() const {
    std::ifstream file(path_);
    std::set<std::string> known;
    std::string text;
    for (std::string line; std::getline(file, line);) {
      if (line.empty() || known.insert(line).second) text += line + '\n';
    }
    return text;
  }

 private:
  std::string path_;
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Returns a line for each path of this rank, as in "rank 0 to 1-3    over host_shm".
std::string rows_of(const d2d::Routes& routes) {
  std::string rows;
  for (const auto& [path, peers] : routes.paths()) {
    const auto names = names_of(peers);  // "ranks 1-3"
    rows += base::concat("        rank ", routes.rank(), " to ", names.substr(names.find(' ') + 1),
                         "    over ", path, '\n');
  }
  return rows;
}

/// Returns the settings of rank 0 for all ranks, since a rank of another machine may have another
/// environment. Collective.
d2d::RouteOptions common_options(const d2d::MpiSession& job) {
  const auto own = path_settings();
  const auto transport = job.all_gather(own.transport_of_job())[0];
  const auto lends = job.all_gather(own.lend_tensors ? "yes" : "no")[0] == "yes";
  if (job.rank() == GlobalRank(0)) {
    std::printf("        %s%s, lend_tensors = %s\n", kFirstWords, transport.c_str(),
                lends ? "true" : "false");
    std::fflush(stdout);  // whoever reads it knows that MPI has started
  }
  return d2d::route_options(transport, lends);
}

void warn_together(const d2d::MpiSession& job, const std::string& noted) {
  std::vector<std::vector<std::string>> texts;
  for (const auto& of_rank : job.all_gather(noted)) texts.push_back(lines_of(of_rank));
  if (job.rank() != GlobalRank(0)) return;
  const auto all = d2d::Members::all(job.size());
  for (const auto& line : merged_warnings(all.ranks(), texts)) {
    base::log(base::LogLevel::kWarning, line);
  }
}

}  // namespace

PathSettings path_settings() {
  PathSettings settings;
  try {
    base::ConfigInput input;
    input.environment = base::environment_settings();
    const auto config = base::resolve_config(input);
    settings.transport = config.values().transport;
    settings.lend_tensors = config.values().lend_tensors;
    settings.origin = config.origin("transport");
  } catch (const UsageError& error) {
    settings.problem = error.what();
  } catch (const UnsupportedError& error) {
    settings.problem = error.what();
  }
  return settings;
}

TriedJob try_job(int ranks) {
  const auto self = fs::read_symlink("/proc/self/exe").string();
  const char* const as_root =
      ::geteuid() == 0 ? "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " : "";
  const TemporaryFile errors;
  const base::SteadyClock clock;
  const auto start = clock.now();
  const auto output =
      run(base::concat(as_root, "timeout ", kMostSeconds, " mpirun --oversubscribe -n ", ranks,
                       " '", self, "' doctor --paths 2>'", errors.path(), "'"));
  TriedJob job;
  job.seconds = static_cast<double>(clock.now() - start) / base::kSecond;
  job.started = output.text.find(kFirstWords) != std::string::npos;
  job.worked = output.status == 0;
  job.paths = output.text;
  job.said = errors.lines_once();
  if (output.status == kStatusOfTimeout) {
    job.said += base::concat("error: it was not done after ", kMostSeconds, " s\n");
  }
  return job;
}

void show_paths() {
  const d2d::MpiSession session;
  base::set_log_rank(session.rank().value());
  auto options = common_options(session);
  std::string noted;
  options.warn = [&](const std::string& text) { noted += text + '\n'; };
  d2d::Channel channel(d2d::fastest_routes(session, options));
  warn_together(session, noted);
  std::string rows;
  for (const auto& of_rank : session.all_gather(rows_of(channel.routes()))) rows += of_rank;
  if (session.rank() == GlobalRank(0)) std::fputs(rows.c_str(), stdout);
  channel.close(60 * base::kSecond);
}

}  // namespace smp::cli
