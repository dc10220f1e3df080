#include "agent/node/facts.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "launcher/core/cgroup.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/elf.hpp"

namespace dtrain::node {
namespace {

// Calls `use` with the text of `name` in our cgroup and in each above it.
template <typename Use>
void each_cgroup(const char* name, Use use) {
  fs::path folder = cgroup::own().value_or("");
  std::error_code none;
  while (!folder.empty() && fs::exists(folder / "cgroup.controllers", none)) {
    try {
      if (const auto text = read_file_if_there(folder / name, 65536)) use(*text);
    } catch (const Error&) {
      // Not readable: no limit that we know of.
    }
    folder = folder.parent_path();
  }
}

int usable_cpus() {
  int cpus = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) cpus = CPU_COUNT(&set);
  each_cgroup("cpu.max", [&](const std::string& text) {
    const std::vector<std::string> words = split(text, ' ');
    if (words.size() < 2 || words[0] == "max") return;
    const double quota = std::strtod(words[0].c_str(), nullptr);
    const double period = std::strtod(words[1].c_str(), nullptr);
    if (quota > 0 && period > 0) {
      cpus = std::min(cpus, std::max(1, static_cast<int>(std::ceil(quota / period))));
    }
  });
  return std::max(1, cpus);
}

std::uint64_t usable_memory() {
  std::uint64_t memory = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                         static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  each_cgroup("memory.max", [&](const std::string& text) {
    const std::uint64_t limit = std::strtoull(text.c_str(), nullptr, 10);
    if (limit > 0) memory = std::min(memory, limit);
  });
  return memory;
}

int count_gpus() {
  std::error_code none;
  int gpus = 0;
  for ([[maybe_unused]] const auto& entry :
       fs::directory_iterator("/proc/driver/nvidia/gpus", none)) {
    ++gpus;
  }
  return gpus;
}

// In a step of Slurm: where it is, and what it has of the machine, which not every site enforces.
void bound_by_slurm(Facts& facts) {
  const auto number = [](const char* name) {
    const char* text = std::getenv(name);
    return text == nullptr ? std::nullopt : number_from<std::uint32_t>(std::string_view(text));
  };
  if (std::getenv("SLURM_STEP_ID") == nullptr) return;
  const char* job = std::getenv("SLURM_JOB_ID");
  const char* node = std::getenv("SLURMD_NODENAME");
  if (job != nullptr && node != nullptr) facts.slurm = wire::SlurmPlace{job, node};
  const auto cpus = number("SLURM_CPUS_ON_NODE");
  if (cpus && *cpus > 0) facts.cpus = std::min(facts.cpus, static_cast<int>(*cpus));
  std::uint64_t mib = number("SLURM_MEM_PER_NODE").value_or(0);
  if (mib == 0) mib = std::uint64_t{number("SLURM_MEM_PER_CPU").value_or(0)} * cpus.value_or(0);
  if (mib > 0) facts.memory = std::min(facts.memory, mib << 20);
  if (const char* gpus = std::getenv("CUDA_VISIBLE_DEVICES")) {
    const bool none = *gpus == '\0' || std::string_view(gpus) == "NoDevFiles";
    facts.gpus = none ? 0 : static_cast<int>(split(gpus, ',').size());
  }
}

std::string namespace_of(const char* kind) {
  std::error_code failed;
  return fs::read_symlink(std::string("/proc/self/ns/") + kind, failed).string();
}

// The address as a number; empty for one of another family.
std::string address_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address == nullptr) return {};
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    if (!IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) {
      ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
    }
  }
  return text;
}

// Calls `use` with name, address and flags of each address of an interface that is up.
template <typename Use>
void each_address(Use use) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    const std::string address = address_of(each->ifa_addr);
    if (!address.empty() && (each->ifa_flags & IFF_UP) != 0) {
      use(std::string(each->ifa_name), address, each->ifa_flags);
    }
  }
  ::freeifaddrs(all);
}

}  // namespace

std::vector<wire::Interface> gather_interfaces() {
  std::vector<wire::Interface> found;
  each_address([&](const std::string& name, const std::string& address, unsigned flags) {
    if ((flags & IFF_LOOPBACK) == 0) found.push_back({name, address});
  });
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return (a.address.find(':') == std::string::npos) > (b.address.find(':') == std::string::npos);
  });
  return found;
}

std::string interface_with(const std::string& wanted) {
  std::string found;
  each_address([&](const std::string& name, const std::string& address, unsigned) {
    if (found.empty() && address == wanted) found = name;
  });
  return found;
}

Facts gather_facts() {
  Facts facts;
  facts.cpus = usable_cpus();
  facts.gpus = count_gpus();
  facts.memory = usable_memory();
  bound_by_slurm(facts);
  // A container's too: with it its first process begins anew.
  facts.boot_id = boot_id() + " " + std::to_string(start_time(1).value_or(0));
  facts.machine = boot_id() + " " + namespace_of("net") + " " + namespace_of("mnt");
  if (const auto glibc = machine_glibc()) facts.glibc = glibc->str();
  return facts;
}

}  // namespace dtrain::node
