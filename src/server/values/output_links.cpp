// server/values/output_links.cpp: a note lists changes, then links (output, kind, source, view).
#include "server/values/output_links.h"

#include "base/check.h"
#include "server/protocol/number_list.h"

namespace smp::server {
namespace {

constexpr std::size_t kLinkKinds = 5;

OutputLink read_link(NumberReader& in, std::size_t num_tensors, std::size_t num_arguments) {
  OutputLink link;
  link.output = in.index(num_tensors);
  link.kind = static_cast<OutputLink::Kind>(in.index(kLinkKinds));
  link.source = static_cast<OutputLink::Source>(in.index(2));
  link.index = in.index(link.source == OutputLink::Source::kArgument ? num_arguments : num_tensors);
  if (link.kind == OutputLink::Kind::kSame) return link;
  link.view.sizes = in.list();
  link.view.strides = in.list();
  link.view.offset = in.get();
  SMP_ASSERT(link.view.sizes.size() == link.view.strides.size());
  return link;
}

}  // namespace

std::string OutputLinks::note() const {
  std::string note;
  NumberWriter out(note);
  out.put(static_cast<std::int64_t>(num_outputs));
  out.put(static_cast<std::int64_t>(changes.size()));
  for (const auto& [argument, history] : changes) {
    out.put(static_cast<std::int64_t>(argument));
    out.put(history ? 1 : 0);
  }
  for (const auto& [output, kind, source, index, view] : links) {
    out.put(static_cast<std::int64_t>(output));
    out.put(static_cast<std::int64_t>(kind));
    out.put(static_cast<std::int64_t>(source));
    out.put(static_cast<std::int64_t>(index));
    if (kind == OutputLink::Kind::kSame) continue;
    out.put(view.sizes);
    out.put(view.strides);
    out.put(view.offset);
  }
  return note;
}

OutputLinks OutputLinks::from_note(std::string_view note, std::size_t num_tensors,
                                   std::size_t num_arguments) {
  OutputLinks told;
  told.num_outputs = num_tensors;
  if (note.empty()) return told;
  NumberReader in(note);
  told.num_outputs = in.index(num_tensors + 1);
  const auto num_changes = in.index(num_tensors + 1);
  for (std::size_t i = 0; i < num_changes; ++i) {
    const auto argument = in.index(num_arguments);
    told.changes.push_back({argument, in.index(2) != 0});
  }
  while (!in.at_end()) told.links.push_back(read_link(in, num_tensors, num_arguments));
  return told;
}

}  // namespace smp::server
