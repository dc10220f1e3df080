#include "launcher/core/ids.hpp"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/names.hpp"
#include "launcher/core/text.hpp"

namespace dtrain {
namespace {

void fill_random(unsigned char* bytes, std::size_t count) {
  while (count > 0) {
    const ssize_t got = getrandom(bytes, count, 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      throw errno_error("cannot get random numbers", errno);
    }
    bytes += got;
    count -= static_cast<std::size_t>(got);
  }
}

std::string random_letters(std::size_t count) {
  static constexpr std::string_view kBase32 = "abcdefghijklmnopqrstuvwxyz234567";
  std::vector<unsigned char> bytes(count);
  fill_random(bytes.data(), bytes.size());
  std::string letters;
  for (const unsigned char byte : bytes) letters += kBase32[byte % kBase32.size()];
  return letters;
}

}  // namespace

bool valid_name(std::string_view text) noexcept {
  constexpr std::size_t kLongest = 63;
  return text.size() <= kLongest && valid_cluster_name(text);
}

JobId make_job_id(std::string_view name) {
  return JobId(std::string(name) + "-" + random_letters(6));
}

SearchId make_search_id(std::string_view name) {
  return SearchId(std::string(name) + "-" + random_letters(6));
}

ClusterId make_cluster_id(std::string_view name) {
  return ClusterId(short_name(name) + "-" + random_letters(6));
}

std::string random_hex(std::size_t bytes) {
  std::vector<unsigned char> buffer(bytes);
  fill_random(buffer.data(), buffer.size());
  return to_hex(buffer);
}

}  // namespace dtrain
