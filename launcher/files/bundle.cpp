#include "launcher/files/bundle.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/manifest.hpp"

namespace dtrain {
namespace {

constexpr int kX86_64 = 62;
constexpr std::size_t kObjects = 4000;
constexpr std::string_view kLoader = "/lib64/ld-linux-x86-64.so.2";

// glibc's own, whatever number stands behind .so.
constexpr std::array<std::string_view, 18> kGlibc{
    {"libc", "libm", "libpthread", "libdl", "librt", "libresolv", "libutil", "libnsl", "libanl",
     "libmvec", "libBrokenLocale", "libthread_db", "libcrypt_stub", "libc_malloc_debug",
     "libmemusage", "libpcprofile", "libSegFault", "libcidn"}};
// The driver's.
constexpr std::array<std::string_view, 8> kDriver{{"libcuda", "libcudadebugger", "libnvcuvid",
                                                   "libnvoptix", "libEGL_nvidia", "libGLX_nvidia",
                                                   "libGLESv1_CM_nvidia", "libGLESv2_nvidia"}};

// "libfoo" of libfoo.so.1.
std::string_view stem(std::string_view name) {
  return name.substr(0, name.find(".so"));
}

// One search path of ld.so and what it is called.
struct Places {
  std::vector<fs::path> folders;
  std::string how;
};

struct Object {
  fs::path file;
  std::string name;  // as it was asked for
  ElfFile elf;
  std::optional<std::size_t> loader;  // who asked for it
  struct stat status {};
};

struct Candidate {
  fs::path file;
  ElfFile elf;
  std::string how;
};

class LibraryWalk {
 public:
  LibraryWalk(BundlePlan& plan, const BundleOptions& options, FileFactsCache& cache)
      : plan_(plan), options_(options), cache_(cache) {
    if (!options.library_path.empty()) {
      for (std::string part : split(options.library_path, ':')) {
        std::replace(part.begin(), part.end(), ';', ':');
        // An empty part is the current folder, which is not the node's.
        if (!part.empty()) library_path_.emplace_back(std::move(part));
      }
    }
    try {
      if (const auto bytes = read_file_if_there(options.root / "etc/ld.so.cache")) {
        for (auto& [name, file] : parse_loader_cache(*bytes)) {
          system_.emplace(std::move(name), std::move(file));
        }
      }
    } catch (const Error&) {
      // The usual folders remain.
    }
  }

  void run(const fs::path& program, ElfFile elf) {
    Object object{program, program.filename().string(), std::move(elf), std::nullopt, {}};
    note_glibc(object);
    objects_.push_back(std::move(object));
    // As the loader does: everything needed first, then what may be loaded later by name.
    std::size_t next_needed = 0;
    std::size_t next_opened = 0;
    while (true) {
      while (next_needed < objects_.size()) take_needed(next_needed++);
      if (next_opened == objects_.size()) return;
      take_opened(next_opened++);
    }
  }

 private:
  void note_glibc(const Object& object) {
    const auto version = needed_glibc(object.elf);
    if (version && (!plan_.glibc || *version > *plan_.glibc)) {
      plan_.glibc = version;
      plan_.glibc_of = object.name;
    }
  }

  fs::path expand(std::string text, const Object& object, const char* lib) const {
    const auto replace = [&](const std::string& what, const std::string& by) {
      for (const std::string& form : {"${" + what + "}", "$" + what}) {
        for (std::size_t at = text.find(form); at != std::string::npos;
             at = text.find(form, at + by.size())) {
          text.replace(at, form.size(), by);
        }
      }
    };
    std::error_code failed;
    // The program's is where it really lies, as the kernel says; a library's is as it was found.
    fs::path origin = object.file.parent_path();
    if (!object.loader) {
      const fs::path real = fs::canonical(object.file, failed);
      if (!failed) origin = real.parent_path();
    }
    replace("ORIGIN", origin.string());
    replace("LIB", lib);
    replace("PLATFORM", "x86_64");
    return text;
  }

  void add_folders(Places& places, const std::vector<std::string>& texts,
                   const Object& object) const {
    for (const std::string& text : texts) {
      places.folders.push_back(expand(text, object, "lib/x86_64-linux-gnu"));
      if (text.find("LIB") != std::string::npos) {
        places.folders.push_back(expand(text, object, "lib64"));
      }
    }
  }

  // Where `object`'s needs are looked for, in ld.so's order, down to what the system has.
  std::vector<Places> places_of(const Object& object) const {
    std::vector<Places> all;
    if (!object.elf.has_runpath) {
      for (const Object* at = &object; at != nullptr;
           at = at->loader ? &objects_[*at->loader] : nullptr) {
        Places places{{}, at == &object ? "its RPATH" : "the RPATH of " + at->name};
        add_folders(places, at->elf.rpath, *at);
        all.push_back(std::move(places));
      }
    }
    all.push_back({library_path_, "LD_LIBRARY_PATH"});
    Places runpath{{}, "its RUNPATH"};
    add_folders(runpath, object.elf.runpath, object);
    all.push_back(std::move(runpath));
    return all;
  }

  // A library of our kind at that place.
  static std::optional<ElfFile> library_at(const fs::path& file) {
    struct stat status {};
    if (::stat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
    try {
      auto elf = read_elf(file);
      if (elf && elf->bits == 64 && elf->machine == kX86_64) return elf;
    } catch (const Error&) {
      // ld.so would stop here; we look on and, if nothing is found, name it as missing.
    }
    return std::nullopt;
  }

  std::optional<Candidate> find_in(const std::vector<Places>& all, const std::string& name) const {
    for (const Places& places : all) {
      for (const fs::path& folder : places.folders) {
        if (auto elf = library_at(folder / name)) {
          return Candidate{folder / name, std::move(*elf), "found by " + places.how};
        }
      }
    }
    return std::nullopt;
  }

  std::optional<Candidate> find(const Object& object, const std::string& name) const {
    if (name.find('/') != std::string::npos) {
      const fs::path file = expand(name, object, "lib/x86_64-linux-gnu");
      auto elf = library_at(file);
      if (!elf) return std::nullopt;
      return Candidate{file, std::move(*elf), "named by its path"};
    }
    if (auto found = find_in(places_of(object), name)) return found;
    if (const auto entry = system_.find(name); entry != system_.end()) {
      const fs::path file = options_.root / fs::path(entry->second).relative_path();
      if (auto elf = library_at(file)) return Candidate{file, std::move(*elf), "of this system"};
    }
    Places usual{{}, ""};
    for (const char* folder : {"lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib64",
                               "usr/lib64", "lib", "usr/lib"}) {
      usual.folders.push_back(options_.root / folder);
    }
    auto found = find_in({usual}, name);
    if (found) found->how = "of this system";
    return found;
  }

  // The name under which it lies in the bundle.
  static std::string plain_name(const std::string& name) {
    return fs::path(name).filename().string();
  }

  void take(std::size_t from, const std::string& name, Candidate found, const std::string& why) {
    if (objects_.size() == kObjects) {
      throw Error(ErrorCode::invalid, plan_.program.string() + " needs more than " +
                                          std::to_string(kObjects) + " libraries");
    }
    Object object{found.file, plain_name(name), std::move(found.elf), from, {}};
    if (::stat(object.file.c_str(), &object.status) != 0) {
      throw errno_error("cannot look at " + object.file.string(), errno);
    }
    known_.insert(object.name);
    if (!object.elf.soname.empty()) known_.insert(object.elf.soname);
    plan_.files.push_back({object.name, object.file,
                           static_cast<std::uint64_t>(object.status.st_size), true,
                           why + " " + objects_[from].name + ", " + found.how});
    if (!object.elf.soname.empty() && object.elf.soname != object.name &&
        is_plain_relative_path(object.elf.soname) &&
        object.elf.soname.find('/') == std::string::npos) {
      plan_.files.push_back(
          {object.elf.soname, object.file, 0, true, "the soname of " + object.name});
    }
    note_glibc(object);
    objects_.push_back(std::move(object));
  }

  void take_needed(std::size_t at) {
    const std::vector<std::string> needed = objects_[at].elf.needed;
    for (const std::string& name : needed) {
      const std::string plain = plain_name(name);
      if (plain.empty() || !known_.insert(plain).second) continue;
      if (is_base_library(plain)) {
        BundleFile file{plain, "", 0, false, "part of every system: glibc"};
        if (!is_glibc(plain)) file.reason = "part of the NVIDIA driver";
        if (const auto found = find(objects_[at], name)) file.file = found->file;
        plan_.files.push_back(std::move(file));
        continue;
      }
      auto found = find(objects_[at], name);
      if (found) {
        take(at, name, std::move(*found), "needed by");
      } else {
        plan_.missing.push_back(plain + ", needed by " + objects_[at].name);
      }
    }
  }

  // What stands in it as a name may be given to dlopen(): it goes along if it lies where the loader
  // would look, the system's own folders apart.
  void take_opened(std::size_t at) {
    if (!objects_[at].loader) {
      struct stat status {};
      if (::stat(objects_[at].file.c_str(), &status) != 0) return;
      objects_[at].status = status;
    }
    const FileFacts facts = cache_.facts(objects_[at].file, identity_of(objects_[at].status));
    if (facts.library_names.empty()) return;
    std::vector<Places> places = places_of(objects_[at]);
    if (objects_[at].loader && !of_system(objects_[at].file)) {
      places.push_back({{objects_[at].file.parent_path()}, "lying beside it"});
    }
    for (const std::string& name : facts.library_names) {
      if (known_.contains(name) || is_base_library(name)) continue;
      auto found = find_in(places, name);
      if (!found || of_system(found->file)) continue;
      known_.insert(name);
      take(at, name, std::move(*found), "named in");
    }
  }

  bool of_system(const fs::path& file) const {
    for (const char* folder : {"lib", "lib64", "usr/lib", "usr/lib64"}) {
      const std::string prefix = (options_.root / folder).string() + "/";
      if (file.string().starts_with(prefix)) return true;
    }
    return false;
  }

  static bool is_glibc(std::string_view name) {
    return !name.starts_with("libnvidia") &&
           std::find(kDriver.begin(), kDriver.end(), stem(name)) == kDriver.end();
  }

  BundlePlan& plan_;
  const BundleOptions& options_;
  FileFactsCache& cache_;
  std::vector<fs::path> library_path_;
  std::map<std::string, std::string> system_;
  std::vector<Object> objects_;
  std::set<std::string> known_;  // names that need not be looked for any more
};

bool in_folder(const fs::path& file, const fs::path& folder) {
  return file.string().starts_with(folder.string() + "/");
}

// A program of the system's own, or one that is nothing without its installation.
std::string stays(const fs::path& program, const fs::path& root) {
  for (const char* folder : {"bin", "sbin", "usr/bin", "usr/sbin", "lib", "lib64", "usr/lib"}) {
    if (in_folder(program, root / folder)) {
      return "it belongs to the system, and each node has its own";
    }
  }
  const std::string name = program.filename().string();
  if (name.starts_with("python") && name.find_first_not_of("0123456789.", 6) == std::string::npos) {
    return "an interpreter needs its whole installation, which must be on the nodes";
  }
  return {};
}

}  // namespace

bool is_base_library(std::string_view name) {
  if (name.starts_with("ld-linux") || name.starts_with("linux-vdso") ||
      name.starts_with("libnvidia-") || name.starts_with("libnss_")) {
    return true;
  }
  const std::string_view base = stem(name);
  return std::find(kGlibc.begin(), kGlibc.end(), base) != kGlibc.end() ||
         std::find(kDriver.begin(), kDriver.end(), base) != kDriver.end();
}

BundlePlan plan_bundle(const fs::path& program, const BundleOptions& options,
                       FileFactsCache& cache) {
  BundlePlan plan;
  std::error_code failed;
  plan.program = fs::absolute(program, failed).lexically_normal();
  if (std::string why = stays(plan.program, options.root); !why.empty()) {
    plan.why_not = std::move(why);
    return plan;
  }
  std::optional<ElfFile> elf = read_elf(plan.program);
  if (!elf) {
    plan.why_not = "it is no ELF program: a script or the like runs as it is";
    return plan;
  }
  if (elf->bits != 64 || elf->machine != kX86_64) {
    throw Error(ErrorCode::invalid, printable_path(plan.program) +
                                        " is a program for another kind of machine than x86-64");
  }
  plan.ours = true;
  if (!elf->dynamic || (elf->needed.empty() && elf->interpreter.empty())) {
    plan.why_not = "it is static: it needs no libraries";
    return plan;
  }
  if (!elf->interpreter.empty() && elf->interpreter != kLoader) {
    plan.why_not = "it starts with the loader " + printable(elf->interpreter, false) +
                   ", which must be on the nodes, as must its libraries";
    return plan;
  }
  LibraryWalk(plan, options, cache).run(plan.program, std::move(*elf));
  plan.wanted = std::any_of(plan.files.begin(), plan.files.end(),
                            [](const BundleFile& file) { return file.taken; });
  if (!plan.wanted) plan.why_not = "every system has all that it needs";
  return plan;
}

ContentTree bundle_tree(const BundlePlan& plan, bool with_program, FileFactsCache& cache,
                        std::map<std::string, fs::path>& sources) {
  ContentTree tree;
  std::map<fs::path, std::string> names;  // a file's first name in the bundle
  std::set<std::string> used;
  const auto add_file = [&](const std::string& path, const fs::path& file, bool executable) {
    struct stat status {};
    if (::stat(file.c_str(), &status) != 0) {
      throw errno_error("cannot look at " + file.string(), errno);
    }
    ContentEntry entry;
    entry.path = path;
    entry.sha256 = cache.facts(file, identity_of(status)).sha256;
    entry.size = static_cast<std::uint64_t>(status.st_size);
    entry.mode = executable ? 0755 : 0644;
    sources[entry.sha256] = file;
    tree.entries.push_back(std::move(entry));
  };
  for (const BundleFile& file : plan.files) {
    if (!file.taken || !used.insert(file.name).second) continue;
    if (const auto first = names.find(file.file); first != names.end()) {
      ContentEntry link;
      link.path = "lib/" + file.name;
      link.kind = ContentEntry::Kind::link;
      link.mode = 0777;
      link.target = first->second;
      tree.entries.push_back(std::move(link));
      continue;
    }
    names[file.file] = file.name;
    add_file("lib/" + file.name, file.file, false);
  }
  if (with_program) add_file("bin/" + plan.program.filename().string(), plan.program, true);
  std::sort(tree.entries.begin(), tree.entries.end(),
            [](const ContentEntry& a, const ContentEntry& b) { return a.path < b.path; });
  return tree;
}

std::vector<std::pair<std::string, std::string>> parse_loader_cache(std::string_view bytes) {
  constexpr std::string_view kMagic = "glibc-ld.so.cache1.1";
  constexpr std::size_t kHeader = 48;
  constexpr std::size_t kEntry = 24;
  constexpr std::uint32_t kOurs = 0x0303;  // a library for glibc, x86-64
  std::vector<std::pair<std::string, std::string>> found;
  const std::size_t start = bytes.find(kMagic);
  if (start == std::string_view::npos) return found;
  const std::string_view cache = bytes.substr(start);
  const auto number = [&](std::size_t at) {
    std::uint32_t value = 0;
    std::memcpy(&value, cache.data() + at, sizeof value);
    return value;
  };
  if (cache.size() < kHeader) return found;
  const std::size_t count = number(kMagic.size());
  const auto text = [&](std::size_t at) -> std::string {
    if (at >= cache.size()) return {};
    const std::size_t end = cache.find('\0', at);
    return end == std::string_view::npos ? std::string() : std::string(cache.substr(at, end - at));
  };
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = kHeader + i * kEntry;
    if (at + kEntry > cache.size()) break;
    const bool plain = number(at + 16) == 0 && number(at + 20) == 0;  // for any CPU
    if (number(at) != kOurs || !plain) continue;
    std::string name = text(number(at + 4));
    std::string file = text(number(at + 8));
    if (!name.empty() && file.starts_with('/'))
      found.emplace_back(std::move(name), std::move(file));
  }
  return found;
}

}  // namespace dtrain
