// api/report_error.cpp: see the header.
#include "smp/report_error.h"

#include "server/common_errors.h"
#include "server/exception_text.h"

namespace smp {

void report_error(const std::exception& error) noexcept try {
  server::say_once(server::text_of(error));
} catch (...) {
  server::say_once("an error that could not be printed");
}

}  // namespace smp
