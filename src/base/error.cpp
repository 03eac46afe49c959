// base/error.cpp: key functions of the error classes, so that their type information lives here.
#include "smp/error.h"

namespace smp {

Error::~Error() = default;
UsageError::~UsageError() = default;
UnsupportedError::~UnsupportedError() = default;
ResourceError::~ResourceError() = default;
PeerLostError::~PeerLostError() = default;
RemoteError::~RemoteError() = default;
const char* RemoteError::what() const noexcept { return text_.c_str(); }
InternalError::~InternalError() = default;

}  // namespace smp
