// partition/simulated/json_numbers.cpp: see the header.
#include "partition/simulated/json_numbers.h"

#include "base/check.h"

namespace smp::partitioning {

double quantity_at(const base::Json& numbers, std::size_t index, const std::string& name) {
  const auto quantity = base::json_element<double>(numbers, index, name);
  SMP_REQUIRE(quantity >= 0 && quantity <= kMostSeconds, name, ": element ", index, " of ",
              base::excerpt(base::json_text(numbers)), " must be from 0 to ", kMostSeconds);
  return quantity;
}

std::int64_t bytes_at(const base::Json& numbers, std::size_t index, const std::string& name) {
  const auto bytes = base::json_element<std::int64_t>(numbers, index, name);
  SMP_REQUIRE(bytes >= 0 && bytes <= kMostBytes, name, ": element ", index, " of ",
              base::excerpt(base::json_text(numbers)), " must be from 0 to ", kMostBytes);
  return bytes;
}

void require_numbers(const base::Json& numbers, std::size_t count, const char* what,
                     const std::string& name, std::size_t more) {
  const bool right =
      numbers.is_array() && (numbers.size() == count || numbers.size() == count + more);
  SMP_REQUIRE(right, name, ": ", what, " must be ", count, " numbers, found ",
              base::excerpt(base::json_text(numbers)));
}

}  // namespace smp::partitioning
