#include "launcher/files/elf.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kSegments = 256;
constexpr std::size_t kDynamicBytes = std::size_t{1} << 20;
constexpr std::size_t kStringBytes = 4096;
constexpr int kVersionSteps = 4096;  // entries of version needs that are followed

// Bytes of a file or of memory, by offset.
class ElfSource {
 public:
  virtual ~ElfSource() = default;
  virtual std::uint64_t size() const = 0;
  // At most `wanted` bytes; fewer at the end.
  virtual std::size_t read(std::uint64_t offset, void* to, std::size_t wanted) const = 0;
};

class FileSource final : public ElfSource {
 public:
  explicit FileSource(const fs::path& path) : path_(path), fd_(open_file(path, O_RDONLY)) {
    struct stat status {};
    if (::fstat(fd_.get(), &status) != 0)
      throw errno_error("cannot look at " + path.string(), errno);
    if (!S_ISREG(status.st_mode)) {
      throw Error(ErrorCode::invalid, printable_path(path) + " is not a regular file");
    }
    size_ = static_cast<std::uint64_t>(status.st_size);
  }
  std::uint64_t size() const override { return size_; }
  std::size_t read(std::uint64_t offset, void* to, std::size_t wanted) const override {
    std::size_t done = 0;
    while (done < wanted && offset + done < size_) {
      const ssize_t got = ::pread(fd_.get(), static_cast<char*>(to) + done, wanted - done,
                                  static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw errno_error("cannot read " + path_.string(), errno);
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

 private:
  fs::path path_;
  UniqueFd fd_;
  std::uint64_t size_ = 0;
};

class MemorySource final : public ElfSource {
 public:
  explicit MemorySource(std::string_view bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  std::size_t read(std::uint64_t offset, void* to, std::size_t wanted) const override {
    if (offset >= bytes_.size()) return 0;
    const std::size_t got = std::min<std::uint64_t>(wanted, bytes_.size() - offset);
    std::memcpy(to, bytes_.data() + offset, got);
    return got;
  }

 private:
  std::string_view bytes_;
};

[[noreturn]] void damaged_elf(const std::string& what) {
  throw Error(ErrorCode::invalid, "a damaged ELF file: " + what);
}

template <typename T>
T read_struct(const ElfSource& source, std::uint64_t offset, const char* what) {
  T value{};
  if (offset > source.size() || source.read(offset, &value, sizeof value) != sizeof value) {
    damaged_elf(std::string(what) + " lies outside of it");
  }
  return value;
}

// Places in memory as places in the file.
class Layout {
 public:
  void add(const Elf64_Phdr& segment) {
    if (segment.p_type == PT_LOAD) loads_.push_back(segment);
  }
  std::uint64_t offset_of(std::uint64_t address, const char* what) const {
    for (const Elf64_Phdr& load : loads_) {
      if (address >= load.p_vaddr && address - load.p_vaddr < load.p_filesz) {
        const std::uint64_t within = address - load.p_vaddr;
        if (within > UINT64_MAX - load.p_offset) break;
        return load.p_offset + within;
      }
    }
    damaged_elf(std::string(what) + " lies in no segment");
  }

 private:
  std::vector<Elf64_Phdr> loads_;
};

// A text of the string table.
class Strings {
 public:
  Strings(const ElfSource& source, std::uint64_t offset, std::uint64_t size)
      : source_(source), offset_(offset), size_(size) {
    if (offset > source.size() || size > source.size() - offset) {
      damaged_elf("its strings lie outside of it");
    }
  }
  std::string at(std::uint64_t index) const {
    if (index >= size_) damaged_elf("a text lies outside of its strings");
    std::array<char, kStringBytes> buffer;
    const auto wanted =
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), size_ - index));
    const std::size_t got = source_.read(offset_ + index, buffer.data(), wanted);
    const auto* end = static_cast<const char*>(std::memchr(buffer.data(), 0, got));
    if (end == nullptr) damaged_elf("a text has no end");
    return {buffer.data(), static_cast<std::size_t>(end - buffer.data())};
  }

 private:
  const ElfSource& source_;
  std::uint64_t offset_;
  std::uint64_t size_;
};

std::vector<std::string> folders(const std::string& text) {
  std::vector<std::string> list;
  for (std::string& part : split(text, ':')) {
    if (!part.empty()) list.push_back(std::move(part));
  }
  return list;
}

void read_versions(const ElfSource& source, const Strings& strings, std::uint64_t at,
                   std::uint64_t count, ElfFile& file) {
  int steps = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto need = read_struct<Elf64_Verneed>(source, at, "a version need");
    const std::string library = strings.at(need.vn_file);
    std::uint64_t aux = at + need.vn_aux;
    for (unsigned j = 0; j < need.vn_cnt; ++j) {
      if (++steps > kVersionSteps) damaged_elf("its version needs have no end");
      const auto version = read_struct<Elf64_Vernaux>(source, aux, "a version need");
      file.versions.push_back({library, strings.at(version.vna_name)});
      if (version.vna_next == 0) break;
      aux += version.vna_next;
    }
    if (need.vn_next == 0) break;
    at += need.vn_next;
    if (++steps > kVersionSteps) damaged_elf("its version needs have no end");
  }
}

void read_dynamic(const ElfSource& source, const Layout& layout, const Elf64_Phdr& segment,
                  ElfFile& file) {
  if (segment.p_filesz > kDynamicBytes) damaged_elf("its dynamic section is too large");
  std::vector<Elf64_Dyn> entries(segment.p_filesz / sizeof(Elf64_Dyn));
  if (segment.p_offset > source.size() ||
      source.read(segment.p_offset, entries.data(), entries.size() * sizeof(Elf64_Dyn)) !=
          entries.size() * sizeof(Elf64_Dyn)) {
    damaged_elf("its dynamic section lies outside of it");
  }
  std::map<std::int64_t, std::uint64_t> values;
  std::vector<std::uint64_t> needed;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag == DT_NULL) break;
    if (entry.d_tag == DT_NEEDED) needed.push_back(entry.d_un.d_val);
    values.emplace(entry.d_tag, entry.d_un.d_val);
  }
  file.dynamic = true;
  if (!values.contains(DT_STRTAB)) {
    if (needed.empty()) return;
    damaged_elf("it has no strings");
  }
  const std::uint64_t size = values.contains(DT_STRSZ) ? values[DT_STRSZ] : 0;
  const Strings strings(source, layout.offset_of(values[DT_STRTAB], "its strings"), size);
  for (const std::uint64_t name : needed) file.needed.push_back(strings.at(name));
  if (values.contains(DT_SONAME)) file.soname = strings.at(values[DT_SONAME]);
  file.has_runpath = values.contains(DT_RUNPATH);
  if (file.has_runpath) {
    file.runpath = folders(strings.at(values[DT_RUNPATH]));
  } else if (values.contains(DT_RPATH)) {
    file.rpath = folders(strings.at(values[DT_RPATH]));
  }
  if (values.contains(DT_VERNEED) && values.contains(DT_VERNEEDNUM)) {
    read_versions(source, strings, layout.offset_of(values[DT_VERNEED], "its version needs"),
                  values[DT_VERNEEDNUM], file);
  }
}

std::optional<ElfFile> read(const ElfSource& source) {
  std::array<unsigned char, EI_NIDENT> ident{};
  if (source.read(0, ident.data(), ident.size()) != ident.size() ||
      std::memcmp(ident.data(), ELFMAG, SELFMAG) != 0) {
    return std::nullopt;
  }
  ElfFile file;
  file.bits = ident[EI_CLASS] == ELFCLASS64 ? 64 : 32;
  if (file.bits == 32 || ident[EI_DATA] != ELFDATA2LSB) {
    // Not ours to run; its machine stands at the same place, in its own byte order.
    file.machine = read_struct<Elf32_Ehdr>(source, 0, "its header").e_machine;
    return file;
  }
  const auto header = read_struct<Elf64_Ehdr>(source, 0, "its header");
  file.machine = header.e_machine;
  if (header.e_phnum > kSegments) damaged_elf("it has too many segments");
  if (header.e_phnum > 0 && header.e_phentsize != sizeof(Elf64_Phdr)) {
    damaged_elf("its segments have another size");
  }
  Layout layout;
  std::optional<Elf64_Phdr> dynamic;
  std::optional<Elf64_Phdr> interpreter;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    if (header.e_phoff > source.size()) damaged_elf("its segments lie outside of it");
    const auto segment =
        read_struct<Elf64_Phdr>(source, header.e_phoff + i * sizeof(Elf64_Phdr), "a segment");
    layout.add(segment);
    if (segment.p_type == PT_DYNAMIC) dynamic = segment;
    if (segment.p_type == PT_INTERP) interpreter = segment;
  }
  if (interpreter) {
    const Strings name(source, interpreter->p_offset, interpreter->p_filesz);
    file.interpreter = name.at(0);
  }
  if (dynamic) read_dynamic(source, layout, *dynamic, file);
  return file;
}

// As uname(1) calls it.
std::string machine_name(int machine) {
  switch (machine) {
    case EM_386:
      return "i686";
    case EM_X86_64:
      return "x86_64";
    case EM_ARM:
      return "arm";
    case EM_AARCH64:
      return "aarch64";
    case EM_PPC64:
      return "ppc64le";
    case EM_RISCV:
      return "riscv64";
    default:
      return "another kind of machine (" + std::to_string(machine) + ")";
  }
}

}  // namespace

std::optional<GlibcVersion> parse_glibc_version(std::string_view text) {
  GlibcVersion version;
  const char* const end = text.data() + text.size();
  const auto major = std::from_chars(text.data(), end, version.major);
  if (major.ec != std::errc{} || major.ptr == end || *major.ptr != '.') return std::nullopt;
  const auto minor = std::from_chars(major.ptr + 1, end, version.minor);
  if (minor.ec != std::errc{} || version.major < 0 || version.minor < 0) return std::nullopt;
  if (minor.ptr != end && *minor.ptr != '.') return std::nullopt;
  return version;
}

std::optional<ElfFile> read_elf(const fs::path& path) {
  const FileSource source(path);
  return while_doing("reading " + printable_path(path), [&] { return read(source); });
}

std::optional<ElfFile> read_elf(std::string_view bytes) {
  return read(MemorySource(bytes));
}

std::optional<std::string> why_not_loadable(const fs::path& file) {
  try {
    const auto elf = read_elf(file);
    const auto own = read_elf(fs::path("/proc/self/exe"));
    if (!elf || !own) return std::nullopt;
    if (elf->machine != own->machine) {
      return "is built for " + machine_name(elf->machine) + ", and this machine is " +
             machine_name(own->machine);
    }
    if (!elf->interpreter.empty() && ::access(elf->interpreter.c_str(), X_OK) != 0) {
      return "wants the dynamic loader " + printable(elf->interpreter, false) +
             ", which is not there";
    }
    return std::nullopt;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid) return std::nullopt;
    return "is no whole program (" + error.message() + ")";
  }
}

std::optional<GlibcVersion> needed_glibc(const ElfFile& file) {
  std::optional<GlibcVersion> newest;
  for (const ElfFile::Need& need : file.versions) {
    std::optional<GlibcVersion> version;
    if (need.version.starts_with("GLIBC_")) version = parse_glibc_version(need.version.substr(6));
    // A way of relocating that came with this release.
    if (need.version == "GLIBC_ABI_DT_RELR") version = GlibcVersion{2, 36};
    if (version && (!newest || *version > *newest)) newest = version;
  }
  return newest;
}

std::optional<GlibcVersion> machine_glibc(const fs::path& root) {
  for (const char* path :
       {"lib/x86_64-linux-gnu/libc.so.6", "lib64/libc.so.6", "usr/lib64/libc.so.6",
        "usr/lib/x86_64-linux-gnu/libc.so.6", "usr/lib/libc.so.6", "lib/libc.so.6"}) {
    try {
      const auto bytes = read_file_if_there(root / path, std::size_t{32} << 20);
      if (!bytes || !bytes->starts_with("\177ELF")) continue;
      // "GNU C Library (…) stable release version 2.36."
      constexpr std::string_view kWords = " release version ";
      for (std::size_t at = bytes->find(kWords); at != std::string::npos;
           at = bytes->find(kWords, at + 1)) {
        std::string_view number = std::string_view(*bytes).substr(at + kWords.size(), 16);
        number = number.substr(0, number.find_first_not_of("0123456789."));
        if (number.ends_with('.')) number.remove_suffix(1);
        if (const auto version = parse_glibc_version(number)) return version;
      }
    } catch (const Error&) {
      // Not readable: as if it were not there.
    }
  }
  return std::nullopt;
}

}  // namespace dtrain
