// SMP_API marks what the shared library shows; everything else in it is hidden.
#pragma once

#define SMP_API __attribute__((visibility("default")))
