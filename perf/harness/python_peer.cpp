// perf/harness/python_peer.cpp: two pipes and a child.
#include "python_peer.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <utility>

#include "base/check.h"

namespace smp::perf {
namespace {

[[noreturn]] void become(const std::string& python, std::vector<std::string> words,
                         const std::array<int, 2>& to, const std::array<int, 2>& from) {
  dup2(to[0], 0);
  dup2(from[1], 1);
  for (const int end : {to[0], to[1], from[0], from[1]}) close(end);
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(python.c_str(), arguments.data());
  std::perror(python.c_str());
  std::_Exit(1);
}

}  // namespace

PythonPeer::PythonPeer(const std::string& python, std::vector<std::string> script) {
  std::array<int, 2> to{}, from{};
  SMP_REQUIRE(pipe(to.data()) == 0 && pipe(from.data()) == 0, "no pipe to ", python);
  script.insert(script.begin(), python);
  child_ = fork();
  SMP_REQUIRE(child_ >= 0, "no process for ", python);
  if (child_ == 0) become(python, std::move(script), to, from);
  close(to[0]);
  close(from[1]);
  to_ = fdopen(to[1], "w");
  from_ = fdopen(from[0], "r");
  std::array<char, 16> word{};
  ready_ = std::fscanf(from_, "%15s", word.data()) == 1 && std::string(word.data()) == "ready";
}

PythonPeer::~PythonPeer() {
  std::fclose(to_);
  std::fclose(from_);
  waitpid(child_, nullptr, 0);
}

double PythonPeer::ask(const std::string& line) {
  std::fprintf(to_, "%s\n", line.c_str());
  std::fflush(to_);
  return answer();
}

double PythonPeer::answer() {
  double first = 0;
  SMP_REQUIRE(std::fscanf(from_, "%lf%*[^\n]", &first) >= 1, "Python has ended early");
  return first;
}

std::unique_ptr<PythonPeer> start_python_peer(const std::string& python,
                                              std::vector<std::string> script) {
  std::unique_ptr<PythonPeer> peer;
  if (!python.empty()) peer = std::make_unique<PythonPeer>(python, std::move(script));
  if (peer != nullptr && !peer->ready()) peer.reset();
  if (peer == nullptr) {
    std::fprintf(stderr, "no Python with what the peer needs: its rows are left out\n");
  }
  return peer;
}

std::string offered_python() {
  const char* const given = std::getenv("SMP_PEERS_PYTHON");
  return given == nullptr ? "" : given;
}

}  // namespace smp::perf
