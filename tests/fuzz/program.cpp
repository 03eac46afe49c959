// fuzz/program.cpp: what an instruction of each kind has.
#include "fuzz/program.h"

namespace smp::fuzz {

bool names_module(Op op) {
  switch (op) {
    case Op::kCall:
    case Op::kSlope:
    case Op::kReadWeight:
    case Op::kReadWeightValue:
    case Op::kIfWeight:
    case Op::kReadTable:
    case Op::kReadCount:
    case Op::kReadAverage:
    case Op::kReadScratch:
    case Op::kReadCounter:
    case Op::kReadAuxiliary:
    case Op::kToggle:
    case Op::kFreeze:
      return true;
    default:
      return false;
  }
}

bool has_block(Op op) { return has_branches(op) || op == Op::kLoop || op == Op::kNoGrad; }

bool has_branches(Op op) {
  return op == Op::kIfData || op == Op::kIfMicrobatch || op == Op::kIfWeight || op == Op::kTry;
}

}  // namespace smp::fuzz
