// perf/harness/python_peer.h: what others would take, in a Python process of its own that works
// when it is asked to, and else waits in a pipe.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace smp::perf {

/// A Python that runs a script: it prints "ready", then answers each line that it reads by a line
/// of numbers.
class PythonPeer {
 public:
  /// Starts `python` with the script perf/... and its arguments.
  PythonPeer(const std::string& python, std::vector<std::string> script);
  ~PythonPeer();
  PythonPeer(const PythonPeer&) = delete;
  PythonPeer& operator=(const PythonPeer&) = delete;

  /// False if it has ended instead: it has said why.
  bool ready() const { return ready_; }
  /// Returns the first number of the answer. @throws UsageError  it has ended
  double ask(const std::string& line);
  /// Returns the first number of another line that it answers.
  double answer();

 private:
  pid_t child_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
  bool ready_ = false;
};

/// Returns the peer of `python`; nothing, and says so, if that is empty or cannot run the script.
std::unique_ptr<PythonPeer> start_python_peer(const std::string& python,
                                              std::vector<std::string> script);

/// The Python that `./smp perf` offers, or an empty text.
std::string offered_python();

}  // namespace smp::perf
