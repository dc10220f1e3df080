#include "launcher/remote/gzip.hpp"

#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <thread>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/side_by_side.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kMember = std::size_t{1} << 20;
constexpr int kGzip = 15 + 16;  // the largest window, and gzip's header
constexpr int kLevel = 4;  // the smallest that less than half a second of a core makes of the agent
constexpr std::size_t kLittle = std::size_t{64} << 10;  // for so much no work is too much

// Empty when there is no memory for it.
std::string member_of(std::string_view content) {
  z_stream stream{};
  const int level = content.size() > kLittle ? kLevel : Z_BEST_COMPRESSION;
  if (::deflateInit2(&stream, level, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    return {};
  }
  std::string out(::deflateBound(&stream, content.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const bool is_done = ::deflate(&stream, Z_FINISH) == Z_STREAM_END;
  out.resize(is_done ? stream.total_out : 0);
  ::deflateEnd(&stream);
  return out;
}

}  // namespace

std::string gzip_of(std::string_view content) {
  std::vector<std::string> members(
      std::max<std::size_t>((content.size() + kMember - 1) / kMember, 1));
  side_by_side(members.size(), std::thread::hardware_concurrency(), [&](std::size_t i) {
    members[i] = member_of(content.substr(i * kMember, kMember));
  });
  std::string all;
  for (const std::string& member : members) {
    if (member.empty()) throw Error(ErrorCode::exhausted, "no memory to compress the agent");
    all += member;
  }
  return all;
}

}  // namespace dtrain
