// d2d/job/route_text.cpp: see the header.
#include "d2d/job/route_text.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "d2d/channel/frame.h"
#include "d2d/lend/heap_allocator.h"

namespace smp::d2d {
namespace {

constexpr const char* kLent = "lent";
constexpr const char* kRings = "host_shm";

bool any_has(const std::vector<std::string>& texts, std::string_view word) {
  return std::any_of(texts.begin(), texts.end(), [word](const std::string& text) {
    return text.find(word) != std::string::npos;
  });
}

}  // namespace

std::string route_text(const Routes& routes, GlobalRank peer, MemoryKind memory) {
  const auto name_of = [&](std::uint8_t wire) { return routes.wires()[wire].name(); };
  auto text =
      base::concat("up to ", kInlineBytes, " bytes ", routes.control(peer).name(), ", above ");
  const auto direct = routes.data(peer, memory);
  if (direct != kNoWire && memory != MemoryKind::kHost) return text + name_of(direct);
  if (memory != MemoryKind::kHost) text += "host memory and ";
  text += name_of(routes.data(peer, MemoryKind::kHost));
  if (routes.loans(peer) == nullptr) return text;
  return base::concat(text, ", from ", HeapAllocator::kLeast, " bytes ", kLent);
}

void keep_to(RouteOptions& options, const std::vector<std::string>& texts) {
  options.shared_memory = options.shared_memory && any_has(texts, kRings);
  options.lend = options.lend && any_has(texts, kLent);
}

}  // namespace smp::d2d
