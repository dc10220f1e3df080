#include "launcher/remote/gzip.hpp"

#include <libdeflate.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/side_by_side.hpp"
#include "launcher/core/text.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kMember = std::size_t{1} << 20;
constexpr int kLevel = 5;  // the smallest that less than half a second of a core makes of the agent
constexpr std::size_t kLittle = std::size_t{64} << 10;  // for so much no work is too much
constexpr int kLittleLevel = 12;

// Empty when there is no memory for it.
std::string member_of(std::string_view content) {
  const std::unique_ptr<libdeflate_compressor, decltype(&::libdeflate_free_compressor)> compressor(
      ::libdeflate_alloc_compressor(content.size() > kLittle ? kLevel : kLittleLevel),
      ::libdeflate_free_compressor);
  if (!compressor) return {};
  std::string out(::libdeflate_gzip_compress_bound(compressor.get(), content.size()), '\0');
  out.resize(::libdeflate_gzip_compress(compressor.get(), content.data(), content.size(),
                                        out.data(), out.size()));
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
    if (member.empty()) {
      throw Error(ErrorCode::exhausted, "no memory to compress " + human_bytes(content.size()));
    }
    all += member;
  }
  return all;
}

}  // namespace dtrain
