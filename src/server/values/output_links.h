// server/values/output_links.h: outputs of a remote module that are its arguments, or share memory
// with them or with each other, stay what they are at the caller (docs/design.md, Aliases). This is
// the note about them; link_taker.h makes it at the owner, link_follower.h does what it says.
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/values/tensor_layout.h"

namespace smp::server {

/// The relation of one output to its source, a tensor that the caller has or gets. The numbers are
/// part of the wire format.
struct OutputLink {
  enum class Kind : std::int64_t {
    kSame,           ///< it is the source
    kView,           ///< a differentiable view of it
    kViewNoGrad,     ///< one that was made without grad mode
    kDetached,       ///< shares its memory, not its history
    kThroughRecord,  ///< shares its memory; its history is the module's
  };
  enum class Source : std::int64_t { kArgument, kOutput };

  bool passes_record() const noexcept { return kind == Kind::kThroughRecord; }

  std::size_t output = 0;
  Kind kind = Kind::kSame;
  Source source = Source::kArgument;
  std::size_t index = 0;  ///< of the source
  Layout view;            ///< in the source, as it is sent; of no meaning for kSame
};

/// An argument that the module changed in place.
struct ChangedArgument {
  std::size_t argument;
  bool history;  ///< recorded by autograd
};

/// The content of the note to the caller. The tensors sent are outputs first, new values of changed
/// arguments last; between them stand those that outputs are views of.
struct OutputLinks {
  /// Reads a note. @throws InternalError  it is not about so many tensors and arguments.
  static OutputLinks from_note(std::string_view note, std::size_t num_tensors,
                               std::size_t num_arguments);
  std::string note() const;

  std::size_t num_outputs = 0;
  std::vector<ChangedArgument> changes;
  std::vector<OutputLink> links;
};

}  // namespace smp::server
