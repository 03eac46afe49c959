// config/original_sections.h: the parts of original_names(), each where its rows are.
#pragma once

#include "config/original_names.h"

namespace smp::base::original {

OriginalSection steps();
OriginalSection models();
OriginalSection optimizers();
OriginalSection placement();
OriginalSection layers();
OriginalSection hugging_face();
OriginalSection activations();
OriginalSection files();
OriginalSection ranks();
OriginalSection messages();
OriginalSection environment();
OriginalSection tensorflow();

}  // namespace smp::base::original
