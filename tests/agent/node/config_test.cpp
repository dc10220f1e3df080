#include "agent/node/config.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>

#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/error.hpp"
#include "launcher/wire/identity.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;

namespace {

// Sets SHELL for one scope.
class ShellIs {
 public:
  explicit ShellIs(const std::string& shell) : before_(::getenv("SHELL")) {
    if (before_ != nullptr) kept_ = before_;
    ::setenv("SHELL", shell.c_str(), 1);
  }
  ~ShellIs() {
    if (before_ != nullptr) {
      ::setenv("SHELL", kept_.c_str(), 1);
    } else {
      ::unsetenv("SHELL");
    }
  }

 private:
  const char* before_;
  std::string kept_;
};

bool has(const std::vector<std::string>& env, const std::string& entry) {
  return std::find(env.begin(), env.end(), entry) != env.end();
}

void make_shell(const fs::path& path, const std::string& body) {
  write_file_atomic(path, "#!/bin/sh\n" + body, 0700);
}

}  // namespace

TEST_CASE("node.json: the head's place is read anew from its file") {
  const testing::TemporaryFolder folder;
  const fs::path head = folder / "head.json";
  write_file_atomic(folder / "node.json",
                    R"({"cluster":"lab-abcdef","node":"node-0","address":"127.0.0.1",)"
                    R"("head":{"file":")" +
                        head.string() + "\"}}");
  const node::NodeConfig config = node::read_node_config({folder.path()});
  CHECK(config.node == NodeId("node-0"));
  CHECK_THROWS_AS(node::head_place(config), Error);
  write_file_atomic(head, R"({"port":0})");
  CHECK_THROWS_AS(node::head_place(config), Error);
  write_file_atomic(head, R"({"port":46501})");
  CHECK(node::head_place(config).port == 46501);

  write_file_atomic(folder / "node.json",
                    R"({"cluster":"c","node":"n","address":"10.0.0.2",)"
                    R"("head":{"addresses":["10.0.0.1","192.168.0.1"],"port":46500}})");
  CHECK(node::head_place(node::read_node_config({folder.path()})).addresses.size() == 2);

  // Of a head that moves: what it says last counts, and what was said at first where it says
  // nothing.
  write_file_atomic(folder / "node.json",
                    R"({"cluster":"c","node":"n","address":"10.0.0.2",)"
                    R"("head":{"addresses":["10.0.0.1"],"port":46500,"place":")" +
                        (folder / "place").string() + "\"}}");
  const node::NodeConfig moving = node::read_node_config({folder.path()});
  CHECK(node::head_place(moving).port == 46500);
  for (const char* nothing : {"", "\n", "46501\n", "0 10.0.0.9\n", "x 10.0.0.9\n"}) {
    write_file_atomic(folder / "place", nothing);
    CHECK(node::head_place(moving).port == 46500);
  }
  write_file_atomic(folder / "place", "46501 10.0.0.7 fd00::7\n");
  CHECK(node::head_place(moving).port == 46501);
  CHECK(node::head_place(moving).addresses == std::vector<std::string>{"10.0.0.7", "fd00::7"});
  write_file_atomic(folder / "node.json", R"({"cluster":"c"})");
  CHECK_THROWS_AS(node::read_node_config({folder.path()}), Error);
}

TEST_CASE("the login shell's environment is kept, noise and all around it left out") {
  const testing::TemporaryFolder folder;
  const fs::path shell = folder / "shell";
  make_shell(shell,
             "echo welcome to this machine\nFROM_LOGIN='two\nlines' ; export FROM_LOGIN\n"
             "export DTRAIN_ATTEMPT_TOKEN=t DTRAIN_EXEC_ROOT=/r DTRAIN_SETUP_ROOT=/r\n"
             "echo more noise; shift; exec /bin/sh \"$@\"\n");
  const ShellIs set(shell.string());
  CHECK(node::capture_environment({folder.path()}).empty());
  const auto env = node::login_environment({folder.path()});
  CHECK(has(env, "FROM_LOGIN=two\nlines"));
  CHECK(std::none_of(env.begin(), env.end(),
                     [](const std::string& entry) { return entry.rfind("PWD=", 0) == 0; }));
  // Where `up` was typed in a shell of another node: what carries these is ended with that one.
  CHECK(std::none_of(env.begin(), env.end(), is_mark));
  struct stat status {};
  REQUIRE(::stat((folder / "login_env").c_str(), &status) == 0);
  CHECK((status.st_mode & 077) == 0);
}

TEST_CASE("a login shell that fails is replaced by /bin/sh, and that is said") {
  const testing::TemporaryFolder folder;
  const fs::path shell = folder / "shell";
  make_shell(shell, "exit 1\n");
  const ShellIs set(shell.string());
  CHECK(node::capture_environment({folder.path()}).find("/bin/sh") != std::string::npos);
  CHECK_FALSE(node::login_environment({folder.path()}).empty());
}

TEST_CASE("a node's key stays where it was made; certificates come to it") {
  const testing::TemporaryFolder folder;
  const paths::NodeRoot root{folder.path()};
  const ClusterId cluster("lab-abcdef");
  const std::string request = node::init_node(root, cluster, NodeId("node-0"));
  const std::string key = read_file(root.identity() / "key.pem");
  CHECK(request.find("PRIVATE") == std::string::npos);
  (void)node::init_node(root, cluster, NodeId("node-0"));
  CHECK(read_file(root.identity() / "key.pem") == key);

  const auto now = std::chrono::system_clock::now();
  const wire::CertifiedKey ca = wire::make_ca(cluster, now);
  const wire::PeerName name{cluster, wire::PeerName::Role::node, NodeId("node-0")};
  CHECK_THROWS_AS(node::install_identity(root, ca.certificate_pem), Error);
  node::install_identity(root, wire::sign_request(ca, request, name, now) + ca.certificate_pem);
  CHECK(wire::tls_context(root.identity(), wire::PeerName::Role::node) != nullptr);
}
