// d2d/channel/frame_encoder.h: a frame becomes one control buffer, and tensors that travel beside
// it. Threads: any; nothing is kept between calls.
#pragma once

#include <vector>

#include "d2d/channel/frame.h"
#include "d2d/lend/frame_loans.h"
#include "d2d/wire/byte_buffer.h"
#include "d2d/wire/wire.h"

namespace smp::d2d {

/// Writes header, body, stubs and small tensors of `frame` to `control`; its other tensors are
/// `lent`, or go to `data` (cleared first) without history, numbered on from `next_transfer`, to be
/// sent by one of `wires`. All tensors of a device travel there, whatever their size, so that the
/// host need not wait for them; where no wire reaches its memory, or it is not that of home
/// (base/machine/home_device.h), it is copied to host memory first.
/// @throws UsageError        the control buffer passes 1 GiB.
/// @throws UnsupportedError  a tensor is of a kind that cannot be sent.
void encode_frame(const FrameToSend& frame, const DataWires& wires, TransferId& next_transfer,
                  ByteBuffer& control, std::vector<DataTensor>& data, FrameLoans& lent);
/// Does the same, and lends nothing.
void encode_frame(const FrameToSend& frame, const DataWires& wires, TransferId& next_transfer,
                  ByteBuffer& control, std::vector<DataTensor>& data);

}  // namespace smp::d2d
