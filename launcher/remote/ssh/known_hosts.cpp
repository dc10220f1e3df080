#include "launcher/remote/ssh/known_hosts.hpp"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <set>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/ssh/blob.hpp"

namespace dtrain::ssh {
namespace {

constexpr std::size_t kLargestFile = std::size_t{16} << 20;

// Shell patterns with * and ?; both sides in lower case.
bool wildcard(std::string_view pattern, std::string_view name) {
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = std::string_view::npos;
  std::size_t from = 0;
  while (n < name.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n]) && pattern[p] != '*') {
      ++p;
      ++n;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++from;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool hashed_match(std::string_view field, const std::string& name) {
  const std::vector<std::string> parts = split(field, '|');  // "", "1", salt, hash
  if (parts.size() != 4 || parts[1] != "1") return false;
  const std::string salt = decode_base64(parts[2]);
  const std::string wanted = decode_base64(parts[3]);
  if (salt.empty() || wanted.empty()) return false;
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  HMAC(EVP_sha1(), salt.data(), static_cast<int>(salt.size()),
       reinterpret_cast<const unsigned char*>(name.data()), name.size(), digest.data(), &size);
  return wanted == std::string_view(reinterpret_cast<const char*>(digest.data()), size);
}

bool names_match(std::string_view field, const std::string& name) {
  if (!field.empty() && field.front() == '|') return hashed_match(field, name);
  bool matched = false;
  for (std::string pattern : split(field, ',')) {
    std::transform(pattern.begin(), pattern.end(), pattern.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    const bool negated = !pattern.empty() && pattern.front() == '!';
    if (!wildcard(std::string_view(pattern).substr(negated ? 1 : 0), name)) continue;
    if (negated) return false;
    matched = true;
  }
  return matched;
}

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  std::size_t i = 0;
  while (i < line.size() && fields.size() < 4) {
    i = line.find_first_not_of(" \t", i);
    if (i == std::string_view::npos) break;
    const std::size_t end = std::min(line.find_first_of(" \t", i), line.size());
    fields.push_back(line.substr(i, end - i));
    i = end;
  }
  return fields;
}

}  // namespace

std::string fingerprint(const HostKey& key) {
  const std::string blob = decode_base64(key.blob);
  if (blob.empty()) throw Error(ErrorCode::invalid, "a host key is not base64");
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  EVP_Digest(blob.data(), blob.size(), digest.data(), &size, EVP_sha256(), nullptr);
  std::string base64 =
      encode_base64({reinterpret_cast<const char*>(digest.data()), std::size_t{size}});
  while (!base64.empty() && base64.back() == '=') base64.pop_back();
  return "SHA256:" + base64;
}

void read_known_hosts(std::string_view text, const std::string& name, const fs::path& file,
                      KnownKeys& into) {
  int number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    std::vector<std::string_view> fields = fields_of(line);
    if (fields.empty() || fields[0].front() == '#') continue;
    std::vector<KnownKey>* list = &into.keys;
    if (fields[0].front() == '@') {
      if (fields[0] == "@revoked") {
        list = &into.revoked;
      } else if (fields[0] == "@cert-authority") {
        list = &into.authorities;
      } else {
        continue;
      }
      fields.erase(fields.begin());
    }
    if (fields.size() < 3 || !names_match(fields[0], name)) continue;
    if (decode_base64(fields[2]).empty()) continue;
    list->push_back({{std::string(fields[1]), std::string(fields[2])}, file, number});
  }
}

KnownKeys known_keys(const std::vector<fs::path>& files, const std::string& name) {
  KnownKeys known;
  for (const fs::path& file : files) {
    if (const auto text = read_file_if_there(file, kLargestFile)) {
      read_known_hosts(*text, name, file, known);
    }
  }
  return known;
}

KeyVerdict judge(const KnownKeys& known, const HostKey& key) {
  const auto same = [&](const KnownKey& entry) { return entry.key.blob == key.blob; };
  if (std::any_of(known.revoked.begin(), known.revoked.end(), same)) return KeyVerdict::revoked;
  if (std::any_of(known.keys.begin(), known.keys.end(), same)) return KeyVerdict::known;
  return known.keys.empty() ? KeyVerdict::unknown : KeyVerdict::changed;
}

void change_pins(const fs::path& file, const std::vector<Pin>& added,
                 const std::vector<Pin>& removed) {
  if (added.empty() && removed.empty()) return;
  const auto line_of = [](const Pin& pin) {
    return pin.name + " " + pin.key.type + " " + pin.key.blob + "\n";
  };
  static std::mutex here;  // a lock of a file does not keep our own threads apart
  const std::lock_guard guard(here);
  make_folders(file.parent_path());
  const FileLock lock = FileLock::wait(file.native() + ".lock");
  const std::string before = read_file_if_there(file, kLargestFile).value_or("");
  std::string text = before;
  if (!removed.empty()) {
    std::set<std::string> gone;
    for (const Pin& pin : removed) gone.insert(line_of(pin));
    text.clear();
    for (std::size_t begin = 0; begin < before.size();) {
      const std::size_t end = std::min(before.find('\n', begin), before.size() - 1) + 1;
      const std::string line = before.substr(begin, end - begin);
      if (!gone.contains(line)) text += line;
      begin = end;
    }
  }
  for (const Pin& pin : added) {
    KnownKeys there;
    read_known_hosts(text, pin.name, file, there);
    if (judge(there, pin.key) == KeyVerdict::known) continue;
    text += (text.empty() || text.back() == '\n' ? "" : "\n") + line_of(pin);
  }
  if (text != before) write_file_atomic(file, text, 0600);
}

void pin(const fs::path& file, const std::string& name, const HostKey& key) {
  change_pins(file, {{name, key}}, {});
}

std::vector<std::string> order_algorithms(const std::vector<std::string>& offered,
                                          const KnownKeys& known) {
  const auto of_known = [&](const std::string& algorithm) {
    // An RSA key signs by several algorithms.
    const std::string type =
        algorithm == "rsa-sha2-512" || algorithm == "rsa-sha2-256" ? "ssh-rsa" : algorithm;
    return std::any_of(known.keys.begin(), known.keys.end(),
                       [&](const KnownKey& entry) { return entry.key.type == type; });
  };
  std::vector<std::string> ordered = offered;
  std::stable_partition(ordered.begin(), ordered.end(), of_known);
  return ordered;
}

}  // namespace dtrain::ssh
