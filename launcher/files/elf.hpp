#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/files.hpp"

// What an ELF file says of the libraries it needs. Reads a few pages of it, whatever its size, and
// trusts none of them.
namespace dtrain {

// A version of glibc: 2.36 is {2, 36}.
struct GlibcVersion {
  int major = 0;
  int minor = 0;

  auto operator<=>(const GlibcVersion&) const = default;
  std::string str() const { return std::to_string(major) + "." + std::to_string(minor); }
};
// "2.36" or "2.36.1"; absent for anything else.
std::optional<GlibcVersion> parse_glibc_version(std::string_view text);

struct ElfFile {
  int bits = 64;
  int machine = 0;  // EM_X86_64 is 62
  bool dynamic = false;
  std::string interpreter;  // PT_INTERP; empty: none
  std::string soname;
  std::vector<std::string> needed;
  std::vector<std::string> rpath;    // as written, $ORIGIN and all; empty where a RUNPATH is
  std::vector<std::string> runpath;  // as written
  bool has_runpath = false;
  struct Need {
    std::string library;  // libc.so.6
    std::string version;  // GLIBC_2.34
  };
  std::vector<Need> versions;
};

// Absent when it is no ELF file. Throws Error(invalid) for one that is damaged, Error(io) when it
// cannot be read.
std::optional<ElfFile> read_elf(const fs::path& path);
// The same of bytes in memory.
std::optional<ElfFile> read_elf(std::string_view bytes);

// Why a program that exec(2) refuses cannot be loaded here, as words that follow its name ("is
// built for aarch64, and this machine is x86_64"); absent where nothing is seen that is wrong.
std::optional<std::string> why_not_loadable(const fs::path& file);

// The newest GLIBC_x.y that the file needs.
std::optional<GlibcVersion> needed_glibc(const ElfFile& file);

// The version of this machine's glibc, from libc.so.6 itself: a static program's own library says
// nothing of it. Absent where there is none.
std::optional<GlibcVersion> machine_glibc(const fs::path& root = "/");

}  // namespace dtrain
