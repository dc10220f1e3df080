#include "launcher/provider/http.hpp"

#include <curl/curl.h>
#include <openssl/crypto.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <new>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/ssh/name_service.hpp"

namespace dtrain {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kKept = 8;                              // idle connections' owners
constexpr std::size_t kMostFields = std::size_t{256} << 10U;  // bytes of an answer's head
constexpr const char* kAgent = "dtrain/" DTRAIN_VERSION;
constexpr std::array<const char*, 6> kBundles{
    "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch, Alpine
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // Red Hat, Fedora, Amazon Linux
    "/etc/pki/tls/certs/ca-bundle.crt",                   // older ones
    "/etc/ssl/ca-bundle.pem",                             // SUSE
    "/etc/ssl/cert.pem",                                  // Alpine
    "/etc/ssl/certs/ca-bundle.crt"};                      // NixOS

// The machine's openssl.cnf may name modules: a static program loads none.
void start_curl() {
  static const bool started = [] {
    ::OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr);
    return ::curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
  }();
  if (!started) throw Error(ErrorCode::internal, "libcurl does not start");
}

std::string find_bundle() {
  if (const char* named = std::getenv("SSL_CERT_FILE"); named != nullptr && *named != '\0') {
    return named;
  }
  for (const char* path : kBundles) {
    std::error_code none;
    if (fs::is_regular_file(path, none)) return path;
  }
  throw Error(ErrorCode::not_found, "this machine has no certificates to trust")
      .with_hint("install ca-certificates, or set SSL_CERT_FILE to a file that has them");
}

struct FreeEasy {
  void operator()(CURL* easy) const noexcept { ::curl_easy_cleanup(easy); }
};
struct FreeMulti {
  void operator()(CURLM* multi) const noexcept { ::curl_multi_cleanup(multi); }
};
struct FreeList {
  void operator()(curl_slist* list) const noexcept { ::curl_slist_free_all(list); }
};
using List = std::unique_ptr<curl_slist, FreeList>;

void append(List& list, const std::string& text) {
  curl_slist* longer = ::curl_slist_append(list.get(), text.c_str());
  if (longer == nullptr) throw std::bad_alloc();
  static_cast<void>(list.release());
  list.reset(longer);
}

// A multi handle, so that another thread can wake it; it owns the connections that are kept.
struct Line {
  std::unique_ptr<CURLM, FreeMulti> multi{::curl_multi_init()};
  std::unique_ptr<CURL, FreeEasy> easy{::curl_easy_init()};
};

// An answer while it comes.
struct Coming {
  HttpAnswer answer;
  std::size_t most = 0;
  std::size_t head = 0;
  bool too_large = false;
};

// Functions of libcurl's: nothing may be thrown through it.
std::size_t take_body(const char* data, std::size_t, std::size_t size, void* to) noexcept {
  Coming& coming = *static_cast<Coming*>(to);
  if (size > coming.most - coming.answer.body.size()) {
    coming.too_large = true;
    return 0;
  }
  try {
    coming.answer.body.append(data, size);
  } catch (...) {
    return 0;
  }
  return size;
}

std::size_t take_field(const char* data, std::size_t, std::size_t size, void* to) noexcept {
  Coming& coming = *static_cast<Coming*>(to);
  coming.head += size;
  if (coming.head > kMostFields) {
    coming.too_large = true;
    return 0;
  }
  try {
    std::string_view line(data, size);
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0) {
      line.remove_suffix(1);
    }
    if (line.starts_with("HTTP/")) coming.answer.fields.clear();  // of a proxy, or 100 Continue
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return size;
    std::string_view value = line.substr(colon + 1);
    while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) {
      value.remove_prefix(1);
    }
    coming.answer.fields.emplace_back(lower_case(line.substr(0, colon)), value);
  } catch (...) {
    return 0;
  }
  return size;
}

// "HOST:PORT:ADDRESS,…" of what the machine's own program knows of the URL's host, which libcurl,
// that asks files and DNS, does not; empty: nothing.
std::string look_up(const std::string& url, milliseconds limit) {
  struct FreeUrl {
    void operator()(CURLU* parsed) const noexcept { ::curl_url_cleanup(parsed); }
  };
  const std::unique_ptr<CURLU, FreeUrl> parsed(::curl_url());
  const auto part = [&](CURLUPart which) {
    char* text = nullptr;
    if (::curl_url_get(parsed.get(), which, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) {
      return std::string();
    }
    std::string out(text);
    ::curl_free(text);
    return out;
  };
  if (::curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return "";
  const std::string host = part(CURLUPART_HOST);
  const std::string port = part(CURLUPART_PORT);
  try {
    std::string found;
    for (const ssh::Address& address :
         ssh::look_up(host, std::atoi(port.c_str()), AF_UNSPEC, limit)) {
      found += (found.empty() ? host + ":" + port + ":" : ",") + address.str();
    }
    return found;
  } catch (const Error&) {  // what libcurl says is said
    return "";
  }
}

// One request on one line. The request outlives it.
class Exchange {
 public:
  Exchange(Line& line, const HttpRequest& request, const std::string& ca_bundle)
      : line_(line), request_(request) {
    coming_.most = request.most;
    CURL* const easy = line.easy.get();
    if (easy == nullptr || line.multi == nullptr) throw std::bad_alloc();
    ::curl_easy_reset(easy);
    set(CURLOPT_URL, request.url.c_str());
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
    set(CURLOPT_SSLVERSION, long{CURL_SSLVERSION_TLSv1_2});
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_ERRORBUFFER, said_.data());
    set(CURLOPT_USERAGENT, kAgent);
    set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(request.connect_timeout.count()));
    set(CURLOPT_WRITEFUNCTION, take_body);
    set(CURLOPT_WRITEDATA, &coming_);
    set(CURLOPT_HEADERFUNCTION, take_field);
    set(CURLOPT_HEADERDATA, &coming_);
    if (!ca_bundle.empty()) {
      set(CURLOPT_CAINFO, ca_bundle.c_str());
      set(CURLOPT_PROXY_CAINFO, ca_bundle.c_str());
    }
    if (request.direct) set(CURLOPT_PROXY, "");
    if (request.method != "GET") {
      set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
      set(CURLOPT_POSTFIELDS, request.body.data());
      set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
      append(fields_, "Content-Type:");  // none but what the request has
    }
    for (const auto& [name, value] : request.fields) {
      append(fields_, value.empty() ? name + ";" : name + ": " + value);
    }
    append(fields_, "Expect:");  // nobody waits for 100 Continue
    set(CURLOPT_HTTPHEADER, fields_.get());
  }
  ~Exchange() {
    if (added_) ::curl_multi_remove_handle(line_.multi.get(), line_.easy.get());
    ::curl_easy_reset(line_.easy.get());
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // `addresses`: of look_up(); empty: libcurl's own.
  CURLcode run(const std::string& addresses, milliseconds limit, const std::stop_token& stop) {
    CURLM* const multi = line_.multi.get();
    said_[0] = '\0';
    set(CURLOPT_TIMEOUT_MS, static_cast<long>(std::max<long>(1, limit.count())));
    if (!addresses.empty()) {
      append(addresses_, addresses);
      set(CURLOPT_RESOLVE, addresses_.get());
    }
    const std::stop_callback wake(stop, [multi] { ::curl_multi_wakeup(multi); });
    check(::curl_multi_add_handle(multi, line_.easy.get()));
    added_ = true;
    CURLcode code = CURLE_ABORTED_BY_CALLBACK;
    for (int running = 1; !stop.stop_requested();) {
      check(::curl_multi_perform(multi, &running));
      if (running == 0) {
        int left = 0;
        const CURLMsg* done = ::curl_multi_info_read(multi, &left);
        if (done != nullptr) code = done->data.result;
        break;
      }
      check(::curl_multi_poll(multi, nullptr, 0, 1000, nullptr));
    }
    ::curl_multi_remove_handle(multi, line_.easy.get());
    added_ = false;
    return code;
  }

  HttpAnswer answer() {
    long status = 0;
    ::curl_easy_getinfo(line_.easy.get(), CURLINFO_RESPONSE_CODE, &status);
    coming_.answer.status = static_cast<int>(status);
    return std::move(coming_.answer);
  }

  Error failure(CURLcode code, const std::stop_token& stop) const {
    const std::string where = origin_of(request_.url);
    if (stop.stop_requested()) {
      return {ErrorCode::failed, "the request to " + where + " was given up"};
    }
    if (coming_.too_large) {
      return {ErrorCode::exhausted,
              where + " answers with more than " + human_bytes(request_.most)};
    }
    const std::string why =
        printable(said_[0] != '\0' ? said_.data() : ::curl_easy_strerror(code), false);
    if (code == CURLE_OPERATION_TIMEDOUT) {
      return {ErrorCode::timeout, where + " does not answer: " + why};
    }
    Error error(ErrorCode::unreachable, where + " cannot be reached: " + why);
    if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE) {
      error.with_hint(
          "a proxy that opens TLS has a certificate of its own: put it into a file "
          "that AWS_CA_BUNDLE or SSL_CERT_FILE names");
    }
    return error;
  }

 private:
  template <typename Value>
  void set(CURLoption option, Value value) {
    const CURLcode code = ::curl_easy_setopt(line_.easy.get(), option, value);
    if (code != CURLE_OK) {
      throw Error(ErrorCode::internal, "libcurl takes no option " + std::to_string(option) + ": " +
                                           ::curl_easy_strerror(code));
    }
  }
  static void check(CURLMcode code) {
    if (code != CURLM_OK) throw Error(ErrorCode::internal, ::curl_multi_strerror(code));
  }

  Line& line_;
  const HttpRequest& request_;
  Coming coming_;
  List fields_;
  List addresses_;
  std::array<char, CURL_ERROR_SIZE> said_{};
  bool added_ = false;
};

class CurlHttp final : public Http {
 public:
  explicit CurlHttp(std::string ca_bundle) : ca_bundle_(std::move(ca_bundle)) {}

  HttpAnswer send(const HttpRequest& request, const std::stop_token& stop) override {
    start_curl();
    const auto deadline = steady_clock::now() + request.timeout;
    const auto left = [&] {
      return std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
    };
    const bool sealed = !lower_case(request.url).starts_with("http:");
    const std::string trusted = sealed ? bundle() : "";
    std::unique_ptr<Line> line = take();
    HttpAnswer answer;
    {
      Exchange exchange(*line, request, trusted);
      CURLcode code = exchange.run("", left(), stop);
      if (code == CURLE_COULDNT_RESOLVE_HOST && !stop.stop_requested()) {
        const std::string addresses = look_up(request.url, left());
        if (!addresses.empty()) code = exchange.run(addresses, left(), stop);
      }
      if (code != CURLE_OK) throw Error(exchange.failure(code, stop));
      answer = exchange.answer();
    }
    keep(std::move(line));
    return answer;
  }

 private:
  const std::string& bundle() {
    const std::lock_guard lock(mutex_);
    if (ca_bundle_.empty()) ca_bundle_ = find_bundle();
    return ca_bundle_;
  }
  std::unique_ptr<Line> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Line>();
    std::unique_ptr<Line> line = std::move(idle_.back());
    idle_.pop_back();
    return line;
  }
  void keep(std::unique_ptr<Line> line) {
    const std::lock_guard lock(mutex_);
    if (idle_.size() < kKept) idle_.push_back(std::move(line));
  }

  std::mutex mutex_;
  std::string ca_bundle_;  // written once
  std::vector<std::unique_ptr<Line>> idle_;
};

}  // namespace

const std::string* HttpAnswer::field(std::string_view name) const {
  const auto found = std::find_if(fields.begin(), fields.end(),
                                  [&](const auto& each) { return each.first == name; });
  return found == fields.end() ? nullptr : &found->second;
}

std::string origin_of(const std::string& url) {
  const std::size_t begin = url.find("://");
  if (begin == std::string::npos) return "a URL without a scheme";
  const std::size_t end = url.find_first_of("/?#", begin + 3);
  std::string host = url.substr(begin + 3, end == std::string::npos ? end : end - begin - 3);
  if (const std::size_t user = host.rfind('@'); user != std::string::npos) host.erase(0, user + 1);
  return printable(url.substr(0, begin + 3) + host, false);
}

std::unique_ptr<Http> make_http(std::string ca_bundle) {
  return std::make_unique<CurlHttp>(std::move(ca_bundle));
}

}  // namespace dtrain
