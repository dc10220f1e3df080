#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/files/content_tree.hpp"
#include "launcher/files/elf.hpp"
#include "launcher/files/file_facts.hpp"

// A program's shared libraries, found as the dynamic loader would find them here, so that it runs
// on machines that lack them. What every Linux has stays behind: glibc's own libraries, which fit
// their kernel and each other, and the NVIDIA driver's, which fit its kernel module.
//
// In the bundle every library lies flat in lib/, under each name by which it is asked for: the node
// puts that folder in front of LD_LIBRARY_PATH, so that what is needed, and what a library loads by
// dlopen(), is found by name wherever it lay here.
namespace dtrain {

struct BundleFile {
  std::string name;  // as it is asked for: libtorch_cpu.so
  fs::path file;     // here
  std::uint64_t size = 0;
  bool taken = false;  // false: it stays behind
  std::string reason;  // "needed by train, found by its RPATH"
};

struct BundlePlan {
  fs::path program;                   // here, absolute
  bool ours = false;                  // an ELF program that the nodes need not have
  bool wanted = false;                // there is something to take along
  std::string why_not;                // else
  std::vector<BundleFile> files;      // in the order in which the loader would meet them
  std::vector<std::string> missing;   // needed, and not here either: name and by whom
  std::optional<GlibcVersion> glibc;  // the oldest that will do
  std::string glibc_of;               // the file that wants it
};

struct BundleOptions {
  std::string library_path;  // LD_LIBRARY_PATH of here
  fs::path root = "/";       // of the machine; for tests
};

// The walk. Reads a few pages of each file, and all of one once for the names in it (cached).
// Throws Error when the program cannot be read.
BundlePlan plan_bundle(const fs::path& program, const BundleOptions& options,
                       FileFactsCache& cache);

// The plan as a tree: lib/NAME, and bin/PROGRAM with `with_program`. `sources` gets where to read
// each sum's bytes.
ContentTree bundle_tree(const BundlePlan& plan, bool with_program, FileFactsCache& cache,
                        std::map<std::string, fs::path>& sources);

// "libc.so.6", "libcuda.so.1": what the machine that runs the program brings itself.
bool is_base_library(std::string_view name);

// The places of /etc/ld.so.cache: names and files of libraries for this architecture that need no
// special CPU. Parses what it is given with care; damaged: what could be read.
std::vector<std::pair<std::string, std::string>> parse_loader_cache(std::string_view bytes);

}  // namespace dtrain
