// fuzz/apart.h: judges programs in child processes, so that a crash or an endless loop is a
// verdict.
#pragma once

#include <functional>

#include "fuzz/judge.h"
#include "fuzz/program.h"

namespace smp::fuzz {

/// Judges programs 0 ... count - 1 by `judged`, in order, and calls `note` with each result; it
/// returns whether to go on. A child process judges up to 50 programs; one that computes for over
/// `seconds`, or says nothing for six times as long, is ended, and the program hung.
void judge_apart(int count, const std::function<Result(int)>& judged,
                 const std::function<bool(int, const Result&)>& note, double seconds = 30);

/// A smaller program with the same verdict, or `program` itself. @param seconds  to spend at most
Program shrink(const Program& program, Verdict verdict, double seconds);

}  // namespace smp::fuzz
