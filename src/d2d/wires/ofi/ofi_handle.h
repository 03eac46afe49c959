// d2d/wires/ofi/ofi_handle.h: libfabric's objects, closed by whoever owns them.
// Threads: one at a time.
#pragma once

#include <memory>

struct fi_info;
struct fid_av;
struct fid_cq;
struct fid_domain;
struct fid_ep;
struct fid_fabric;
struct fid_mr;

namespace smp::d2d {

struct OfiClose {
  void operator()(fi_info* info) const noexcept;
  void operator()(fid_fabric* fabric) const noexcept;
  void operator()(fid_domain* domain) const noexcept;
  void operator()(fid_av* addresses) const noexcept;
  void operator()(fid_cq* completions) const noexcept;
  void operator()(fid_ep* endpoint) const noexcept;
  void operator()(fid_mr* memory) const noexcept;
};

template <class Object>
using OfiHandle = std::unique_ptr<Object, OfiClose>;

}  // namespace smp::d2d
