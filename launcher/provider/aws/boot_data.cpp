#include "launcher/provider/aws/boot_data.hpp"

#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/remote/gzip.hpp"
#include "launcher/remote/ssh/new_key.hpp"

namespace dtrain::aws {
namespace {

// The instance's number in its request, of its metadata service.
constexpr const char* kWhich = R"sh(#!/bin/sh
ask() {
  if command -v curl >/dev/null; then
    token=$(curl -sS -f --noproxy '*' -m 10 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' "$1/api/token") &&
      curl -sS -f --noproxy '*' -m 10 -H "X-aws-ec2-metadata-token: $token" "$1/meta-data/ami-launch-index"
  else
    python3 - "$1" <<'END'
import sys, urllib.request
def ask(path, method, **fields):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(urllib.request.Request(sys.argv[1] + path, headers=fields, method=method), timeout=10).read().decode()
token = ask("/api/token", "PUT", **{"X-aws-ec2-metadata-token-ttl-seconds": "300"})
print(ask("/meta-data/ami-launch-index", "GET", **{"X-aws-ec2-metadata-token": token}))
END
  fi
}
for try in 1 2 3 4 5 6 7 8 9 10; do
  which=$(ask http://169.254.169.254/latest) && break
  sleep $try
done
)sh";

constexpr const char* kPart = "dtrain-part-4c1f8a";

// Runs the i-th of the scripts.
std::string run(const std::vector<std::string>& scripts, std::size_t i, const std::string& user) {
  const std::string end = "dtrain-script-" + std::to_string(i);
  const std::string how =
      user.empty() ? "exec sh -s <<'" + end + "'"
                   : "setsid su -l -s /bin/sh " + user +
                         " -c 'exec sh -s' >>/var/log/dtrain-join.log 2>&1 <<'" + end + "' &";
  return how + "\n" + scripts[i] + (scripts[i].ends_with('\n') ? "" : "\n") + end + "\n";
}

std::string script_of(const std::vector<std::string>& scripts, const std::string& user) {
  if (scripts.size() == 1) {
    return user.empty() ? scripts.front() : "#!/bin/sh\n" + run(scripts, 0, user);
  }
  std::string script = kWhich;
  script += "case $which in\n";
  for (std::size_t i = 0; i < scripts.size(); ++i) {
    script += std::to_string(i) + ") " + run(scripts, i, user) + ";;\n";
  }
  script +=
      "*) echo \"dtrain: which instance of its request this is cannot be told: $which\"; exit "
      "1;;\nesac\n";
  return script;
}

}  // namespace

// cloud-init reads JSON as the YAML that it is.
std::string settings_of(const ssh::NewKey* host_key, const std::string& login_key, bool restarts) {
  nlohmann::json settings = {
      // Of a person's own settings the lists count too.
      {"merge_how",
       {{{"name", "list"}, {"settings", {"append"}}},
        {{"name", "dict"}, {"settings", {"no_replace", "recurse_list", "recurse_dict"}}},
        {{"name", "str"}, {"settings", nlohmann::json::array()}}}}};
  if (host_key != nullptr) {
    settings["ssh_keys"] = {{"ed25519_private", host_key->private_text},
                            {"ed25519_public", host_key->public_line()}};
  }
  if (!login_key.empty()) settings["ssh_authorized_keys"] = {login_key};
  if (restarts) {
    // Who says what is run again says all that is done then: this is what cloud-init does of
    // itself, and what an image does not know it leaves out.
    settings["cloud_final_modules"] = {"package-update-upgrade-install",
                                       "scripts-vendor",
                                       "scripts-per-once",
                                       "scripts-per-boot",
                                       "scripts-per-instance",
                                       nlohmann::json::array({"scripts-user", "always"}),
                                       "ssh-authkey-fingerprints",
                                       "keys-to-console",
                                       "final-message",
                                       "power-state-change"};
  }
  return "#cloud-config\n" + settings.dump() + "\n";
}

std::string packed(const BootData& data) {
  std::vector<std::pair<const char*, std::string>> parts;
  if (!data.users.empty()) parts.emplace_back("text/plain", data.users);
  if (!data.settings.empty()) parts.emplace_back("text/cloud-config", data.settings);
  if (!data.scripts.empty()) {
    parts.emplace_back("text/x-shellscript", script_of(data.scripts, data.user));
  }
  if (parts.empty()) return {};
  if (parts.size() == 1) return gzip_of(parts.front().second);
  const std::string boundary = std::string("--") + kPart;
  std::string message = "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"" +
                        std::string(kPart) + "\"\n\n";
  for (const auto& [kind, text] : parts) {
    message += boundary + "\nContent-Type: " + kind + "; charset=\"utf-8\"\n\n" + text + "\n";
  }
  return gzip_of(message + boundary + "--\n");
}

}  // namespace dtrain::aws
