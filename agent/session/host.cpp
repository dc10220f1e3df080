#include "agent/session/host.hpp"

#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "agent/node/facts.hpp"
#include "launcher/core/clock.hpp"
#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/elf.hpp"

namespace dtrain::session {
namespace {

struct FilesystemName {
  std::uint64_t magic;
  const char* name;
  bool network;
};
// statfs(2), and the file systems' own headers for those that it does not list.
constexpr std::array kFilesystems{
    FilesystemName{0x6969, "nfs", true},          FilesystemName{0x517B, "smb", true},
    FilesystemName{0xFF534D42, "cifs", true},     FilesystemName{0xFE534D42, "smb2", true},
    FilesystemName{0x5346414F, "afs", true},      FilesystemName{0x6B414653, "afs", true},
    FilesystemName{0x0BD00BD0, "lustre", true},   FilesystemName{0x47504653, "gpfs", true},
    FilesystemName{0x00C36400, "ceph", true},     FilesystemName{0x65735546, "fuse", true},
    FilesystemName{0x01021997, "9p", true},       FilesystemName{0x19830326, "beegfs", true},
    FilesystemName{0x7461636F, "ocfs2", true},    FilesystemName{0x01161970, "gfs2", true},
    FilesystemName{0xAAD7AAEA, "panfs", true},    FilesystemName{0x20030528, "orangefs", true},
    FilesystemName{0x564C, "ncp", true},          FilesystemName{0x73757245, "coda", true},
    FilesystemName{0x786F4256, "vboxsf", true},   FilesystemName{0xEF53, "ext4", false},
    FilesystemName{0x58465342, "xfs", false},     FilesystemName{0x9123683E, "btrfs", false},
    FilesystemName{0x2FC12FC1, "zfs", false},     FilesystemName{0xF2F52010, "f2fs", false},
    FilesystemName{0x01021994, "tmpfs", false},   FilesystemName{0x794C7630, "overlay", false},
    FilesystemName{0xCA451A4E, "bcachefs", false}};

const FilesystemName* filesystem(std::uint64_t magic) noexcept {
  for (const FilesystemName& each : kFilesystems) {
    if (each.magic == magic) return &each;
  }
  return nullptr;
}

// Field `index` of our line in /etc/passwd; empty when we have none there.
std::string passwd_field(std::size_t index) {
  const auto users = read_file_if_there("/etc/passwd");
  for (const std::string& line : split(users.value_or(""), '\n')) {
    const std::vector<std::string> fields = split(line, ':');
    if (fields.size() == 7 && fields[2] == std::to_string(::geteuid())) return fields[index];
  }
  return {};
}

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::int64_t free_bytes(const fs::path& folder) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0) return -1;
  return static_cast<std::int64_t>(status.f_bavail * status.f_frsize);
}

bool writable_home(const fs::path& home) {
  return ::access(home.c_str(), W_OK | X_OK) == 0;
}

std::vector<fs::path> logind_files(const fs::path& root) {
  std::vector<fs::path> files{root / "usr/lib/systemd/logind.conf",
                              root / "etc/systemd/logind.conf"};
  // A drop-in counts by its name, whichever folder it lies in.
  std::vector<fs::path> more;
  for (const char* place : {"usr/lib/systemd/logind.conf.d", "run/systemd/logind.conf.d",
                            "etc/systemd/logind.conf.d"}) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(root / place, none)) {
      if (entry.path().extension() == ".conf") more.push_back(entry.path());
    }
  }
  std::stable_sort(more.begin(), more.end(), [](const fs::path& a, const fs::path& b) {
    return a.filename() < b.filename();
  });
  files.insert(files.end(), more.begin(), more.end());
  return files;
}

bool holds_word(const std::string& list, const std::string& word) {
  const std::vector<std::string> words = split(list, ' ');
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

bool is_network_filesystem(std::uint64_t magic) noexcept {
  const FilesystemName* known = filesystem(magic);
  return known != nullptr && known->network;
}

bool logind_kills(const fs::path& root, const std::string& user) {
  std::map<std::string, std::string> said{{"KillExcludeUsers", "root"}};
  std::map<std::string, std::string> built;
  for (const fs::path& file : logind_files(root)) {
    std::optional<std::string> text;
    try {
      text = read_file_if_there(file, std::size_t{1} << 20);
    } catch (const Error&) {
    }
    for (const std::string& line : split(text.value_or(""), '\n')) {
      std::string words = trimmed(line);
      const bool comment = words.starts_with("#") || words.starts_with(";");
      if (comment) words = trimmed(std::string_view(words).substr(1));
      const std::size_t equals = words.find('=');
      if (equals == std::string::npos) continue;
      const std::string key = trimmed(std::string_view(words).substr(0, equals));
      (comment ? built : said)[key] = trimmed(std::string_view(words).substr(equals + 1));
    }
  }
  const std::string value =
      said.contains("KillUserProcesses") ? said["KillUserProcesses"] : built["KillUserProcesses"];
  if (value != "yes" && value != "true" && value != "1" && value != "on") return false;
  if (holds_word(said["KillExcludeUsers"], user)) return false;
  return said["KillOnlyUsers"].empty() || holds_word(said["KillOnlyUsers"], user);
}

fs::path home_folder() {
  std::string home = from_environment("HOME");
  if (!home.starts_with('/')) home = passwd_field(5);
  if (!home.starts_with('/')) {
    throw Error(ErrorCode::invalid, "this login has no home folder: HOME is not set");
  }
  return home;
}

fs::path expand_base(const std::string& base, const fs::path& home) {
  if (base == "~") return home;
  if (base.starts_with("~/")) return home / base.substr(2);
  if (base.starts_with('/')) return fs::path(base).lexically_normal();
  throw Error(ErrorCode::invalid,
              "\"" + printable(base, false) + "\" is neither absolute nor below ~/");
}

fs::path spare_base() {
  const std::string named = from_environment("DTRAIN_SPARE_ROOT");
  if (named.starts_with('/')) return named;
  return "/var/tmp/dtrain-" + std::to_string(::geteuid());
}

bool spare_base_taken() {
  const fs::path spare = spare_base();
  std::error_code none;
  return fs::exists(fs::symlink_status(spare, none)) && !is_own_folder(spare);
}

std::set<fs::path> known_bases(const fs::path& base, const fs::path& home) {
  std::set<fs::path> bases{base, home / ".dtrain", spare_base()};
  if (spare_base_taken()) bases.erase(spare_base());
  return bases;
}

wire::HostFacts gather_host_facts(const fs::path& root) {
  wire::HostFacts facts;
  facts.uid = static_cast<std::int64_t>(::geteuid());
  facts.user = passwd_field(0);
  for (const char* name : {"USER", "LOGNAME"}) {
    if (facts.user.empty()) facts.user = from_environment(name);
  }
  const fs::path home = home_folder();
  facts.home = home.string();
  facts.shell = from_environment("SHELL");
  if (facts.shell.empty()) facts.shell = passwd_field(6);
  utsname names{};
  ::uname(&names);
  facts.arch = names.machine;
  facts.kernel = names.release;
  facts.hostname = names.nodename;
  facts.wall_ms = to_millis(std::chrono::system_clock::now());
  facts.home_free = free_bytes(home);
  facts.tmp_free = free_bytes("/tmp");
  struct statfs home_is {};
  if (::statfs(home.c_str(), &home_is) == 0) {
    const auto magic = static_cast<std::uint64_t>(home_is.f_type) & 0xFFFFFFFFU;
    const FilesystemName* known = filesystem(magic);
    std::array<char, 24> hex{};
    std::snprintf(hex.data(), hex.size(), "0x%llx", static_cast<unsigned long long>(magic));
    facts.home_filesystem = known != nullptr ? known->name : hex.data();
    facts.home_on_network = is_network_filesystem(magic);
  }
  if (const auto glibc = machine_glibc(root)) facts.glibc = glibc->str();
  const node::Facts machine = node::gather_facts();
  facts.boot_id = machine.boot_id;
  facts.machine = machine.machine;
  facts.cpus = machine.cpus;
  facts.gpus = machine.gpus;
  facts.memory = static_cast<std::int64_t>(machine.memory);
  facts.interfaces = node::gather_interfaces();
  std::error_code none;
  facts.systemd = fs::is_directory(root / "run/systemd/system", none);
  facts.kills_user_processes = facts.systemd && logind_kills(root, facts.user);
  facts.lingers = facts.systemd && !facts.user.empty() &&
                  fs::exists(root / "var/lib/systemd/linger" / facts.user, none);
  const bool home_will_do = !facts.home_on_network && writable_home(home);
  facts.base = (home_will_do ? home / ".dtrain" : spare_base()).string();
  return facts;
}

void use_spare_base(wire::HostFacts& host, const fs::path& program) {
  const std::string spare = spare_base().string();
  if (program.string().starts_with(spare + "/")) host.base = spare;
}

void forget_login() {
  std::vector<std::string> names;
  for (const std::string& entry : current_environment()) {
    const std::string name = entry.substr(0, entry.find('='));
    if (name.starts_with("SSH_") || name.starts_with("XDG_SESSION_") ||
        name == "DBUS_SESSION_BUS_ADDRESS" || name == "KRB5CCNAME" || name == "MAIL" ||
        is_mark(name)) {
      names.push_back(name);
    }
  }
  for (const std::string& name : names) ::unsetenv(name.c_str());
}

}  // namespace dtrain::session
