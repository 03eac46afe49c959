// perf/harness/main.cpp: perf NAME [options].
#include "program.h"

int main(int argc, char** argv) { return smp::perf::run_named_program(argc, argv); }
