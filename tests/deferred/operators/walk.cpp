// deferred/operators/walk.cpp
#include "deferred/operators/walk.h"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <sstream>
#include <stdexcept>

#include "base/check.h"
#include "deferred/operators/outcome.h"
#include "deferred/operators/samples.h"
#include "smp/error.h"

namespace smp::deferred {
namespace {

constexpr unsigned kSecondsForAPhase = 20;

c10::OperatorHandle find(const std::string& full_name) {
  const auto dot = full_name.find('.');
  const auto name = full_name.substr(0, dot);
  const auto overload = dot == std::string::npos ? "" : full_name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
}

std::string first_line(const std::string& text) {
  return text.substr(0, std::min<std::size_t>(text.find('\n'), 300));
}

/// What a child says, a line each, so that its parent knows where it ended.
class Report {
 public:
  explicit Report(int pipe) : pipe_(pipe) {}
  void say(const std::string& what, const std::string& text = "") const {
    const auto line = what + " " + first_line(text) + "\n";
    if (write(pipe_, line.data(), line.size()) < 0) _exit(1);
    alarm(kSecondsForAPhase);
  }

 private:
  int pipe_;
};

/// Says what `run` gives as "equal", "differs" or "refused".
void judge(const Report& report, const std::string& mode, const std::vector<std::string>& expected,
           const std::function<Outcome()>& run) {
  report.say("phase", mode);
  try {
    const auto seen = run();
    const auto differs = difference(expected, seen.lines);
    report.say(mode + (differs.empty() ? "-equal" : "-differs"),
               differs.empty() ? (seen.put_off ? "put off" : "computed") : differs);
  } catch (const Error& error) {
    report.say(mode + "-refused", error.what());
  } catch (const c10::Error& error) {
    report.say(mode + "-differs", std::string("throws ") + error.what_without_backtrace());
  } catch (const std::exception& error) {
    report.say(mode + "-differs", std::string("throws ") + error.what());
  }
}

ArgumentKinds kinds_of(int attempt) {
  ArgumentKinds kinds;
  kinds.requires_grad = attempt % 3 == 1;
  kinds.first_real = attempt % 4 == 2;
  return kinds;
}

/// Tries attempts from `first` on; `taken` were before.
void try_operator(const std::string& name, int first, int taken, const Effort& effort,
                  const Report& report) {
  const auto op = find(name);
  const auto seed_of = [&](int attempt) {
    return std::hash<std::string>()(name) / 1024 * 1024 + static_cast<std::uint64_t>(attempt);
  };
  for (int attempt = first; attempt < effort.attempts && taken < effort.enough; ++attempt) {
    report.say("attempt", std::to_string(attempt));
    const auto kinds = kinds_of(attempt);
    Outcome ordinary;
    try {
      ordinary = run_ordinarily(op, seed_of(attempt), kinds);
    } catch (const std::exception&) {
      continue;
    }
    report.say("taken", std::to_string(attempt));
    ++taken;
    judge(report, "scope", ordinary.lines,
          [&] { return run_delayed(op, seed_of(attempt), kinds); });
    judge(report, "shapes", shapes_of(ordinary),
          [&] { return run_on_shapes(op, seed_of(attempt), kinds); });
  }
}

/// One child process and the lines it said.
class Child {
 public:
  explicit Child(const std::function<void(const Report&)>& work) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe for a child");
    std::fflush(nullptr);
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork failed");
    if (pid_ == 0) {
      close(ends[0]);
      const int nowhere = open("/dev/null", O_WRONLY);
      dup2(nowhere, STDERR_FILENO);
      dup2(nowhere, STDOUT_FILENO);
      work(Report(ends[1]));
      _exit(0);
    }
    close(ends[1]);
    lines_ = fdopen(ends[0], "r");
  }
  ~Child() { std::fclose(lines_); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool next(std::string& line) {
    char text[1024];
    if (std::fgets(text, sizeof text, lines_) == nullptr) return false;
    line = text;
    while (!line.empty() && line.back() == '\n') line.pop_back();
    return true;
  }
  /// Returns why it ended, or "" if it came to its end.
  std::string end() {
    int status = 0;
    waitpid(pid_, &status, 0);
    if (WIFSIGNALED(status)) {
      return WTERMSIG(status) == SIGALRM ? "does not come to an end"
                                         : base::concat("ended by ", strsignal(WTERMSIG(status)));
    }
    return WEXITSTATUS(status) == 0 ? "" : base::concat("exited ", WEXITSTATUS(status));
  }

 private:
  pid_t pid_ = -1;
  std::FILE* lines_ = nullptr;
};

void note(std::string& where, const std::string& text) {
  if (where.empty()) where = text;
}

class Walk {
 public:
  Walk(std::vector<std::string> names, const Effort& effort)
      : names_(std::move(names)), effort_(effort) {
    for (const auto& name : names_) findings_.emplace_back().name = name;
  }

  std::vector<Finding> run() {
    while (at_ < names_.size()) {
      Child child([this](const Report& report) { go_on(report); });
      std::string line;
      while (child.next(line)) read(line);
      const auto fault = child.end();
      if (fault.empty()) break;
      if (phase_ == "scope") note(findings_[at_].failed, fault);
      if (phase_ == "shapes") note(findings_[at_].failed_on_shapes, fault);
      phase_.clear();
      ++attempt_;
    }
    return std::move(findings_);
  }

 private:
  void go_on(const Report& report) const {
    for (auto i = at_; i < names_.size(); ++i) {
      report.say("operator", std::to_string(i));
      const bool same = i == at_;
      try_operator(names_[i], same ? attempt_ : 0, same ? findings_[i].accepted : 0, effort_,
                   report);
    }
  }

  void read(const std::string& line) {
    const auto space = line.find(' ');
    const auto what = line.substr(0, space), text = line.substr(space + 1);
    auto& finding = findings_[at_];
    if (what == "operator") {
      const auto index = std::stoul(text);
      if (index != at_) attempt_ = 0;
      at_ = index;
      phase_.clear();
    } else if (what == "attempt") {
      attempt_ = std::stoi(text);
      phase_.clear();
    } else if (what == "taken") {
      ++finding.accepted;
    } else if (what == "phase") {
      phase_ = text;
    } else if (what == "scope-equal") {
      finding.put_off = finding.put_off || text == "put off";
    } else if (what == "scope-refused") {
      note(finding.refused, text);
    } else if (what == "shapes-refused") {
      note(finding.refused_shapes, text);
    } else if (what == "scope-differs") {
      note(finding.failed, text);
    } else if (what == "shapes-differs") {
      note(finding.failed_on_shapes, text);
    }
  }

  std::vector<std::string> names_;
  Effort effort_;
  std::vector<Finding> findings_;
  std::size_t at_ = 0;
  int attempt_ = 0;
  std::string phase_;
};

}  // namespace

std::vector<std::string> all_operators() {
  std::vector<std::string> names;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    if (!c10::Dispatcher::singleton().findSchema(name)) continue;
    names.push_back(name.name + (name.overload_name.empty() ? "" : "." + name.overload_name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<Finding> walk(const std::vector<std::string>& names, const Effort& effort) {
  at::set_num_threads(1);  // before fork
  auto findings = Walk(names, effort).run();
  for (auto& finding : findings) {
    // Whether it was this operator, or one before it that had spoilt the process.
    if (finding.failed.empty() && finding.failed_on_shapes.empty()) continue;
    finding = Walk({finding.name}, effort).run()[0];
  }
  return findings;
}

}  // namespace smp::deferred
