// nemo/references.h: what ${model.encoder_seq_length} stands for in a configuration.
#pragma once

#include "config/json.h"

namespace smp::nemo {

/// Replaces texts that refer to other values by these, as OmegaConf does: `${a.b}` from the root,
/// `${.b}` and `${..b}` from the map that holds the text and those above, also within a text, in
/// one another, and `${multiply:A,B}`, which NeMo adds. A reference to what is not there, to
/// itself, or by another function (`${oc.env:HOME}`) is left as it is.
void resolve_references(base::Json& root);

/// True of a text in which a reference is left.
bool has_reference(const base::Json& value);

}  // namespace smp::nemo
