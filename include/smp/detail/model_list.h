// smp/detail/model_list.h: some models as one argument.
#pragma once

#include <functional>
#include <initializer_list>

namespace smp {

class DistributedModelBase;

/// Models in braces: `{generator, discriminator}`.
using ModelList = std::initializer_list<std::reference_wrapper<DistributedModelBase>>;

}  // namespace smp
