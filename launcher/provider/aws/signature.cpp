#include "launcher/provider/aws/signature.hpp"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <map>
#include <span>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/aws/credentials.hpp"

namespace dtrain::aws {
namespace {

using Sum = std::array<unsigned char, 32>;

Sum sha256(std::string_view text) {
  Sum sum{};
  unsigned size = 0;
  if (::EVP_Digest(text.data(), text.size(), sum.data(), &size, ::EVP_sha256(), nullptr) != 1) {
    throw Error(ErrorCode::internal, "OpenSSL has no SHA-256");
  }
  return sum;
}

Sum hmac(std::span<const unsigned char> key, std::string_view text) {
  Sum sum{};
  unsigned size = 0;
  if (::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), sum.data(),
             &size) == nullptr) {
    throw Error(ErrorCode::internal, "OpenSSL has no HMAC");
  }
  return sum;
}

struct Target {
  std::string host;  // without the scheme's own port
  std::string path;
};

Target target_of(const std::string& url) {
  const std::size_t begin = url.find("://");
  if (begin == std::string::npos || url.find_first_of("?#") != std::string::npos) {
    throw Error(ErrorCode::internal, "only URLs without a query are signed");
  }
  const std::size_t end = std::min(url.find('/', begin + 3), url.size());
  Target target{url.substr(begin + 3, end - begin - 3), url.substr(end)};
  if (const std::size_t user = target.host.rfind('@'); user != std::string::npos) {
    target.host.erase(0, user + 1);
  }
  const std::string own = url.starts_with("https") ? ":443" : ":80";
  if (target.host.ends_with(own)) target.host.resize(target.host.size() - own.size());
  if (target.path.empty()) target.path = "/";
  return target;
}

// Without blanks at its ends, and one where there are several.
std::string folded(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == ' ' && (out.empty() || out.back() == ' ')) continue;
    out += c;
  }
  while (out.ends_with(' ')) out.pop_back();
  return out;
}

}  // namespace

void sign(HttpRequest& request, const SigningScope& scope, const Credentials& credentials,
          WallTime now) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &utc);
  const std::string time = text.data();
  const std::string day = time.substr(0, 8);

  request.fields.emplace_back("X-Amz-Date", time);
  if (!credentials.token.empty()) {
    request.fields.emplace_back("X-Amz-Security-Token", credentials.token);
  }
  const Target target = target_of(request.url);
  std::map<std::string, std::string> fields{{"host", target.host}};
  for (const auto& [name, value] : request.fields) {
    fields.insert_or_assign(lower_case(name), folded(value));
  }
  // Of all services but S3 the path, which is quoted already, is quoted again.
  std::string canonical = request.method + "\n" + percent_encode(target.path, "-._~/") + "\n\n";
  std::string names;
  for (const auto& [name, value] : fields) {
    canonical += name + ":" + value + "\n";
    names += (names.empty() ? "" : ";") + name;
  }
  canonical += "\n" + names + "\n" + to_hex(sha256(request.body));

  const std::string where = day + "/" + scope.region + "/" + scope.service + "/aws4_request";
  const std::string first = "AWS4" + credentials.secret_key;
  Sum key = hmac({reinterpret_cast<const unsigned char*>(first.data()), first.size()}, day);
  for (const std::string& part : {scope.region, scope.service, std::string("aws4_request")}) {
    key = hmac(key, part);
  }
  const std::string signature = to_hex(
      hmac(key, "AWS4-HMAC-SHA256\n" + time + "\n" + where + "\n" + to_hex(sha256(canonical))));
  request.fields.emplace_back(
      "Authorization", "AWS4-HMAC-SHA256 Credential=" + credentials.access_key + "/" + where +
                           ", SignedHeaders=" + names + ", Signature=" + signature);
}

}  // namespace dtrain::aws
