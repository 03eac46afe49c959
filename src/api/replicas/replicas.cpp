// api/replicas/replicas.cpp: see the header.
#include "api/replicas/replicas.h"

#include "api/rank/session_parts.h"

namespace smp {

Replicas& Replicas::current() { return SessionParts::current().replicas; }

void Replicas::forget_models() {
  gradients_.forget();
  writes_.forget();
}

void Replicas::deal(const std::vector<at::Tensor>& parameters) {
  shards_.deal(parameters);
  gradients_.forget();
}

}  // namespace smp
