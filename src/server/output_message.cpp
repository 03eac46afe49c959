// server/output_message.cpp: two counts a microbatch (bytes, tensors), then all bytes.
#include "server/output_message.h"

#include <cstring>
#include <iterator>

#include "base/check.h"
#include "server/detached.h"

namespace smp::server {
namespace {

void put_count(std::string& bytes, std::uint64_t count) {
  bytes.append(reinterpret_cast<const char*>(&count), sizeof count);
}

std::uint64_t get_count(const std::string& bytes, std::size_t& offset) {
  std::uint64_t count = 0;
  SMP_ASSERT(offset + sizeof count <= bytes.size());
  std::memcpy(&count, bytes.data() + offset, sizeof count);
  offset += sizeof count;
  return count;
}

}  // namespace

Message pack_outputs(const std::vector<Packet>& outputs) {
  Message message;
  put_count(message.body, outputs.size());
  for (const auto& output : outputs) {
    put_count(message.body, output.bytes.size());
    put_count(message.body, output.tensors.size());
    message.body += output.bytes;
    for (const auto& tensor : output.tensors) {
      message.tensors.push_back(detached(tensor));
    }
  }
  return message;
}

std::vector<Packet> unpack_outputs(Message&& message) {
  std::size_t offset = 0;
  auto tensor = std::make_move_iterator(message.tensors.begin());
  std::vector<Packet> outputs(message.body.empty() ? 0 : get_count(message.body, offset));
  for (auto& output : outputs) {
    const auto num_bytes = get_count(message.body, offset);
    const auto num_tensors = get_count(message.body, offset);
    SMP_ASSERT(offset + num_bytes <= message.body.size());
    output.bytes = message.body.substr(offset, num_bytes);
    offset += num_bytes;
    output.tensors.assign(tensor, tensor + static_cast<std::ptrdiff_t>(num_tensors));
    tensor += static_cast<std::ptrdiff_t>(num_tensors);
  }
  return outputs;
}

}  // namespace smp::server
