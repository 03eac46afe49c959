// fuzz/judge.h: whether this library did with a program what plain LibTorch does.
#pragma once

#include <string>

#include "fuzz/program.h"

namespace smp::fuzz {

enum class Verdict {
  kEqual,         ///< losses, every gradient of every step, parameters and buffers at the end
  kBothThrow,     ///< at the same step
  kRefused,       ///< with a message of the list, on every rank, and the session goes on
  kDifferent,     ///< a number, or what is missing
  kUndocumented,  ///< an error that one process has not, and the list neither
  kUnnoticed,     ///< one process throws, this library does not
  kTorn,          ///< ranks disagree about whether or where it failed, or the session is dead
  kCrash,
  kHang,
};

const char* name_of(Verdict verdict);
inline bool is_failure(Verdict verdict) { return verdict > Verdict::kRefused; }

struct Result {
  Verdict verdict = Verdict::kEqual;
  std::string text;  ///< what differs, or the message
  int replayed = 0;  ///< steps without control messages
  int ahead = 0;     ///< calls that ranks computed again while they would idle
};

/// Runs it. In this process: a crash or an endless loop is the caller's. Sets LibTorch's default
/// type.
Result judge(const Program& program);

}  // namespace smp::fuzz
