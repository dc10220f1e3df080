#pragma once

#include <set>
#include <string>

#include "launcher/core/files.hpp"
#include "launcher/wire/session.hpp"

// What is to be known of a machine before anything is put on it. Reads files and asks the kernel;
// starts no program and asks no name service, which a static program cannot.
namespace dtrain::session {

// `root` stands for / where configuration files are read, for tests.
wire::HostFacts gather_host_facts(const fs::path& root = "/");

// Whether a file system is shared between machines, or has no shared memory over its files: WAL and
// locks cannot be relied on there. `magic` as statfs(2) gives it.
bool is_network_filesystem(std::uint64_t magic) noexcept;

// Whether logind ends the processes of `user` at logout: logind.conf and its drop-ins below `root`.
// What they leave open is as the distribution built it, which its own file says in a comment.
bool logind_kills(const fs::path& root, const std::string& user);

// Takes out of the environment what belongs to this login alone and must not go on into agents,
// which outlive it: where it came from, the keys that it may have been lent, and the marks by which
// what a cluster started is ended with it.
void forget_login();

// HOME, else from /etc/passwd; Error(invalid) without either.
fs::path home_folder();

// "~", "~/x" and absolute paths; Error(invalid) for others.
fs::path expand_base(const std::string& base, const fs::path& home);

// $DTRAIN_SPARE_ROOT, else /var/tmp/dtrain-UID: for roots where the home will not do.
fs::path spare_base();
// Others may take that name first: whether what is there, if anything, is another's, or a link.
bool spare_base_taken();
// Where folders of this user's clusters may be: `base`, the home's, and the spare one unless it is
// taken, whichever of them it is.
std::set<fs::path> known_bases(const fs::path& base, const fs::path& home);
// Where the home did not do for the agent, it will not do for programs of jobs either.
void use_spare_base(wire::HostFacts& host, const fs::path& program);

}  // namespace dtrain::session
