// fuzz/refusals.h: the messages with which this library may refuse a program that LibTorch runs.
#pragma once

#include <string>

namespace smp::fuzz {

/// Why a refusal with this message is legitimate; nullptr: it is not.
const char* reason_to_refuse(const std::string& message);

/// Why this library may run what LibTorch ends with this message; nullptr: it must not.
const char* reason_to_run(const std::string& message);

}  // namespace smp::fuzz
