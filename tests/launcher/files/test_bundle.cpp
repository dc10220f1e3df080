#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/bundle.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using dtrain::testing::TemporaryFolder;

namespace {

// What a command says; the test fails when it does.
std::string run(const std::string& command) {
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  std::array<char, 4096> buffer;
  for (std::size_t got = 0; (got = ::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    text.append(buffer.data(), got);
  }
  const int status = ::pclose(pipe);
  CAPTURE(command);
  CAPTURE(text);
  REQUIRE(status == 0);
  return text;
}

std::string quoted(const fs::path& path) {
  return shell_quote(path.string());
}

// Tiny libraries and programs, made by the machine's compiler.
struct Workshop {
  TemporaryFolder folder;

  fs::path at(const std::string& name) const { return folder.path() / name; }

  void compile(const std::string& output, const std::string& code, const std::string& flags) const {
    fs::create_directories(at(output).parent_path());
    const fs::path source = at(output + ".c");
    std::ofstream(source) << code;
    run("cc -O0 -w " + quoted(source) + " -o " + quoted(at(output)) + " " + flags);
  }
  void library(const std::string& output, const std::string& code = "",
               const std::string& flags = "") const {
    const std::string soname = fs::path(output).filename().string();
    compile(output, code, "-shared -fPIC -Wl,-soname," + soname + " " + flags);
  }

  // Where ld.so itself finds what the program needs: name to file.
  std::map<std::string, std::string> traced(const std::string& program,
                                            const std::string& environment = "") const {
    std::map<std::string, std::string> found;
    std::istringstream lines(
        run(environment + " LD_TRACE_LOADED_OBJECTS=1 " + quoted(at(program))));
    for (std::string line; std::getline(lines, line);) {
      const std::size_t arrow = line.find(" => ");
      const std::size_t address = line.rfind(" (0x");
      if (arrow == std::string::npos || address == std::string::npos) continue;
      const std::size_t begin = line.find_first_not_of(" \t");
      found[line.substr(begin, arrow - begin)] = line.substr(arrow + 4, address - arrow - 4);
    }
    return found;
  }

  BundlePlan plan(const std::string& program, const std::string& library_path = "") const {
    FileFactsCache cache;
    BundleOptions options;
    options.library_path = library_path;
    return plan_bundle(at(program), options, cache);
  }
};

const BundleFile* find(const BundlePlan& plan, const std::string& name) {
  for (const BundleFile& file : plan.files) {
    if (file.name == name) return &file;
  }
  return nullptr;
}

// The walk finds what ld.so finds.
void check_same(const BundlePlan& plan, const std::map<std::string, std::string>& traced) {
  for (const auto& entry : traced) {
    const std::string& name = entry.first;
    CAPTURE(name);
    const BundleFile* file = find(plan, name);
    REQUIRE(file != nullptr);
    std::error_code failed;
    CHECK(fs::equivalent(file->file, entry.second, failed));
    CHECK(file->taken != is_base_library(name));
  }
}

}  // namespace

TEST_CASE("the walk is the loader's: RPATH, RUNPATH, LD_LIBRARY_PATH, $ORIGIN, chains") {
  const Workshop shop;
  const std::string old_tags = "-Wl,--disable-new-dtags ";
  const std::string new_tags = "-Wl,--enable-new-dtags ";
  // The same library in two places; who wins depends on the tags.
  shop.library("one/libwho.so.1", "int who() { return 1; }");
  shop.library("two/libwho.so.1", "int who() { return 2; }");
  const std::string one = quoted(shop.at("one/libwho.so.1"));
  const std::string code = "int who(); int main() { return who(); }";
  shop.compile("rpath", code, one + " " + old_tags + "-Wl,-rpath," + quoted(shop.at("one")));
  shop.compile("runpath", code, one + " " + new_tags + "-Wl,-rpath," + quoted(shop.at("one")));
  shop.compile("bin/origin", code, one + " " + new_tags + "-Wl,-rpath,'$ORIGIN/../one'");
  shop.compile("bin/braces", code, one + " " + old_tags + "-Wl,-rpath,'${ORIGIN}/../one'");
  for (const char* program : {"rpath", "runpath", "bin/origin", "bin/braces"}) {
    CAPTURE(program);
    for (const std::string& path : {std::string(), shop.at("two").string()}) {
      CAPTURE(path);
      const std::string environment = path.empty() ? "" : "LD_LIBRARY_PATH=" + shell_quote(path);
      const auto traced = shop.traced(program, environment);
      REQUIRE(traced.contains("libwho.so.1"));
      check_same(shop.plan(program, path), traced);
    }
  }
  // An RPATH holds for what the program's libraries need, a RUNPATH does not.
  shop.library("far/libinner.so", "int inner() { return 3; }");
  shop.library("near/libouter.so", "int inner(); int outer() { return inner(); }",
               quoted(shop.at("far/libinner.so")));
  const std::string outer = quoted(shop.at("near/libouter.so"));
  const std::string both =
      "-Wl,-rpath," + quoted(shop.at("near")) + " -Wl,-rpath," + quoted(shop.at("far"));
  const std::string outer_code = "int outer(); int main() { return outer(); }";
  shop.compile("chain", outer_code, outer + " " + old_tags + both);
  check_same(shop.plan("chain"), shop.traced("chain"));
  CHECK(find(shop.plan("chain"), "libinner.so")->reason.find("the RPATH of chain") !=
        std::string::npos);
  shop.compile("broken", outer_code,
               outer + " " + new_tags + both + " -Wl,--allow-shlib-undefined");
  const BundlePlan broken = shop.plan("broken");
  CHECK(broken.missing == std::vector<std::string>{"libinner.so, needed by libouter.so"});
  CHECK(find(broken, "libouter.so")->taken);
}

TEST_CASE("what may be loaded later by name goes along, with what that needs") {
  const Workshop shop;
  shop.library("lib/libdeep.so", "int deep() { return 1; }");
  shop.library("lib/libplugin.so.2", "int deep(); int plugin() { return deep(); }",
               quoted(shop.at("lib/libdeep.so")) + " -Wl,-rpath,'$ORIGIN'");
  shop.library("lib/libunrelated.so");
  shop.library("lib/libmain.so", "const char* name = \"libplugin.so.2\";");
  shop.compile("program", "extern const char* name; int main() { return name[0] == 0; }",
               quoted(shop.at("lib/libmain.so")) + " -Wl,-rpath," + quoted(shop.at("lib")));
  const BundlePlan plan = shop.plan("program");
  REQUIRE(find(plan, "libplugin.so.2") != nullptr);
  CHECK(find(plan, "libplugin.so.2")->reason.find("named in libmain.so") != std::string::npos);
  CHECK(find(plan, "libdeep.so") != nullptr);
  CHECK(find(plan, "libunrelated.so") == nullptr);
  CHECK(plan.wanted);
  REQUIRE(plan.glibc.has_value());
  CHECK(*plan.glibc >= GlibcVersion{2, 2});

  std::map<std::string, fs::path> sources;
  FileFactsCache cache;
  const ContentTree tree = bundle_tree(plan, true, cache, sources);
  CHECK(content_tree_from_text(to_text(tree)) == tree);
  std::string listed;
  for (const ContentEntry& entry : tree.entries) listed += entry.path + "\n";
  CHECK(listed == "bin/program\nlib/libdeep.so\nlib/libmain.so\nlib/libplugin.so.2\n");
  CHECK(sources.size() == 4);
}

TEST_CASE("a library is there under its soname too") {
  const Workshop shop;
  shop.compile("libreal.so.1.2.3", "int real() { return 0; }",
               "-shared -fPIC -Wl,-soname,libreal.so.1");
  fs::create_symlink("libreal.so.1.2.3", shop.at("libreal.so.1"));
  shop.compile("program", "int real(); int main() { return real(); }",
               quoted(shop.at("libreal.so.1.2.3")) + " -Wl,-rpath,'$ORIGIN'");
  check_same(shop.plan("program"), shop.traced("program"));
}

TEST_CASE("what needs no bundle, and why") {
  const Workshop shop;
  shop.compile("static", "int main() { return 0; }", "-static");
  std::ofstream(shop.at("script")) << "#!/bin/sh\n";
  CHECK(shop.plan("static").why_not.find("static") != std::string::npos);
  CHECK(shop.plan("static").ours);
  CHECK(shop.plan("script").why_not.find("script") != std::string::npos);
  CHECK_FALSE(shop.plan("script").ours);
  shop.compile("plain", "int main() { return 0; }", "");
  CHECK_FALSE(shop.plan("plain").wanted);
  CHECK(shop.plan("plain").ours);
  FileFactsCache cache;
  CHECK(plan_bundle("/bin/sh", {}, cache).why_not.find("system") != std::string::npos);
  fs::copy_file(shop.at("plain"), shop.at("python3.11"));
  CHECK(shop.plan("python3.11").why_not.find("interpreter") != std::string::npos);
  CHECK_THROWS_AS(shop.plan("nowhere"), Error);
}

TEST_CASE("what every machine brings itself") {
  for (const char* name : {"libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2",
                           "libcuda.so.1", "libnvidia-ml.so.1", "libnss_dns.so.2"}) {
    CAPTURE(name);
    CHECK(is_base_library(name));
  }
  for (const char* name :
       {"libstdc++.so.6", "libgcc_s.so.1", "libcudart.so.13", "libnccl.so.2", "libtorch_cpu.so",
        "libcublas.so.13", "libcudnn.so.9", "libc10.so", "libz.so.1", "libmpi.so.40"}) {
    CAPTURE(name);
    CHECK_FALSE(is_base_library(name));
  }
}

TEST_CASE("versions of glibc") {
  CHECK(parse_glibc_version("2.36") == GlibcVersion{2, 36});
  CHECK(parse_glibc_version("2.2.5") == GlibcVersion{2, 2});
  CHECK(GlibcVersion{2, 9} < GlibcVersion{2, 36});
  for (const char* wrong : {"", "2", "2.", "x.y", "2.3x", "-2.3"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_glibc_version(wrong).has_value());
  }
  ElfFile file;
  CHECK_FALSE(needed_glibc(file).has_value());
  file.versions = {{"libc.so.6", "GLIBC_2.9"},
                   {"libc.so.6", "GLIBC_2.34"},
                   {"libm.so.6", "GLIBC_2.4"},
                   {"libx.so", "X_9.9"},
                   {"libc.so.6", "GLIBC_PRIVATE"}};
  CHECK(needed_glibc(file) == GlibcVersion{2, 34});
  // What the machine says of itself by other means.
  const std::string said = run("getconf GNU_LIBC_VERSION");
  const auto here = machine_glibc();
  REQUIRE(here.has_value());
  CHECK(said == "glibc " + here->str() + "\n");
  CHECK_FALSE(machine_glibc("/nowhere").has_value());
}

TEST_CASE("files that are no ELF, or a broken one") {
  CHECK_FALSE(read_elf(std::string_view("")).has_value());
  CHECK_FALSE(read_elf(std::string_view("#!/bin/sh\n")).has_value());
  const std::string whole = read_file(fs::read_symlink("/proc/self/exe"), std::size_t{1} << 30);
  const auto good = read_elf(std::string_view(whole));
  REQUIRE(good.has_value());
  CHECK(good->dynamic);
  CHECK_FALSE(good->needed.empty());
  // Torn anywhere: an answer or an Error, never more.
  for (std::size_t size = 16; size < 4096; size += 7) {
    try {
      (void)read_elf(std::string_view(whole).substr(0, size));
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::invalid);
    }
  }
  CHECK_THROWS_AS((void)read_elf(std::string_view(whole).substr(0, 40)), Error);
}

TEST_CASE("why a program cannot be loaded here") {
  const testing::TemporaryFolder folder;
  const fs::path file = folder / "program";
  const auto why = [&](std::string bytes) {
    write_file_atomic(file, bytes);
    return why_not_loadable(file).value_or("");
  };
  const std::string good = read_file("/bin/sh", std::size_t{1} << 30);
  CHECK(why(good) == "");
  CHECK(why("#!/bin/sh\n") == "");
  std::string other = good;
  other[18] = '\xb7';
  CHECK(why(other) == "is built for aarch64, and this machine is x86_64");
  other[18] = '\x77';
  CHECK(why(other) == "is built for another kind of machine (119), and this machine is x86_64");
  std::string homeless = good;
  const std::size_t loader = good.find("/lib64/ld-linux");
  REQUIRE(loader != std::string::npos);
  homeless[loader + 1] = 'L';
  CHECK(why(homeless) ==
        "wants the dynamic loader /Lib64/ld-linux-x86-64.so.2, which is not there");
  CHECK(why(good.substr(0, 80)).starts_with("is no whole program ("));
  CHECK_FALSE(why_not_loadable(folder / "gone").has_value());
}

TEST_CASE("the loader's cache") {
  CHECK(parse_loader_cache("").empty());
  CHECK(parse_loader_cache("glibc-ld.so.cache1.1").empty());
  const auto bytes = read_file_if_there("/etc/ld.so.cache");
  if (!bytes) return;
  bool has_libc = false;
  for (const auto& entry : parse_loader_cache(*bytes)) {
    has_libc = has_libc || entry.first == "libc.so.6";
    CHECK(entry.second.front() == '/');
  }
  CHECK(has_libc);
  for (std::size_t size = 0; size < std::min<std::size_t>(bytes->size(), 3000); size += 13) {
    CHECK_NOTHROW(parse_loader_cache(std::string_view(*bytes).substr(0, size)));
  }
}
