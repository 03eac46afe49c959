// perf/harness/ping_pong_tools.cpp: see the header.
#include "ping_pong_tools.h"

#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>
#include <sstream>

#include "base/check.h"

namespace smp::perf {
namespace {

/// Of this process's own: two runs of perf d2d do not talk to each other.
int next_port() {
  static int port = 20'000 + static_cast<int>(getpid()) % 20'000;
  return ++port;
}

/// `server` in the background, then `client`, tried until the server listens.
std::string both(const std::string& server, const std::string& client) {
  return base::concat("timeout 60 ", server, " >/dev/null 2>&1 & ",
                      "for i in 1 2 3 4 5 6 7 8 9; do sleep 0.1; timeout 60 ", client,
                      " 2>/dev/null && break; kill -0 $! 2>/dev/null || break; done; wait");
}

/// The number in field `index` of the last line that has so many, of fields between `separators`.
std::optional<double> last_field(const std::string& printed, std::size_t index,
                                 std::size_t num_fields, char separator) {
  std::optional<double> found;
  std::istringstream lines(printed);
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> fields;
    std::istringstream rest(line);
    for (std::string field; std::getline(rest, field, separator);) {
      if (!field.empty()) fields.push_back(field);
    }
    if (fields.size() != num_fields) continue;
    char* end = nullptr;
    const double value = strtod(fields[index].c_str(), &end);
    if (end != fields[index].c_str() && value > 0) found = value;
  }
  return found;
}

PingPongTool ucx_perftest() {
  return {"ucx_perftest", "tag_lat, median; the same bytes again and again", /*writes_anew=*/false,
          [](std::size_t bytes, int trips) {
            const auto port = base::concat("ucx_perftest -p ", next_port());
            return both(port, base::concat(port, " 127.0.0.1 -t tag_lat -s ", bytes, " -n ", trips,
                                           " -w ", trips / 10 + 1, " -f -v"));
          },
          [](const std::string& printed) { return last_field(printed, 1, 8, ','); }};
}

PingPongTool fi_pingpong() {
  return {"fi_pingpong", "provider shm, mean; the same bytes again and again",
          /*writes_anew=*/false,
          [](std::size_t bytes, int trips) {
            const auto port = next_port();
            const auto what = base::concat(" -p shm -e rdm -I ", trips, " -S ", bytes);
            return both(base::concat("fi_pingpong -B ", port, what),
                        base::concat("fi_pingpong -P ", port, what, " 127.0.0.1"));
          },
          [](const std::string& printed) { return last_field(printed, 6, 8, ' '); }};
}

PingPongTool mpi_without_single_copy(const std::string& plain_mpi) {
  return {"mpi_send_twice_copied", "btl_vader_single_copy_mechanism none", /*writes_anew=*/true,
          [plain_mpi](std::size_t bytes, int) {
            return base::concat(
                "timeout 60 mpirun -q --allow-run-as-root --oversubscribe --bind-to none --mca pml "
                "ob1 --mca btl vader,self --mca btl_vader_single_copy_mechanism none -n 2 ",
                plain_mpi, " ", bytes, " 2>/dev/null");
          },
          [](const std::string& printed) { return last_field(printed, 1, 2, ' '); }};
}

}  // namespace

std::vector<PingPongTool> ping_pong_tools(const std::string& plain_mpi) {
  return {ucx_perftest(), fi_pingpong(), mpi_without_single_copy(plain_mpi)};
}

std::optional<double> one_way_us(const PingPongTool& tool, std::size_t bytes, int trips) {
  // Nothing of the job that this process belongs to.
  const char* const path = getenv("PATH");
  const char* const home = getenv("HOME");
  const auto command =
      base::concat("env -i PATH='", path == nullptr ? "" : path, "' HOME='",
                   home == nullptr ? "" : home, "' sh -c '", tool.command(bytes, trips), "'");
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  SMP_REQUIRE(pipe != nullptr, "no process for ", tool.name);
  std::string printed;
  std::array<char, 4096> buffer{};
  while (const auto got = fread(buffer.data(), 1, buffer.size(), pipe.get())) {
    printed.append(buffer.data(), got);
  }
  return tool.read(printed);
}

}  // namespace smp::perf
