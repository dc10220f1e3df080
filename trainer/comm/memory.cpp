#include "trainer/comm/memory.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "trainer/core/error.hpp"

namespace dtrain::train::comm {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kPage = 4096;
// Address space only: 16 GiB of gradients and parameters in one process are plenty, and ten ranks
// that each map ten heaps still fit into 47 bits with room to spare.
constexpr std::size_t kHeapSize = std::size_t{16} << 30;
// From this size on, a block begins on a page and its pages are given back when it is freed.
constexpr std::size_t kLarge = std::size_t{64} << 10;

std::size_t round_up(std::size_t value, std::size_t to) {
  return (value + to - 1) / to * to;
}

std::atomic<SharedHeap*> the_heap{nullptr};

}  // namespace

Mapping::Mapping(int fd, std::size_t size) : size_(size) {
  void* const address =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (address == MAP_FAILED) throw errno_error("cannot map shared memory", errno);
  data_ = static_cast<std::byte*>(address);
  ::madvise(address, size, MADV_HUGEPAGE);  // where the kernel's settings leave it to us
  ::madvise(address, size, MADV_DONTDUMP);  // a core file of a rank need not hold its peers
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

FileDescriptor make_memory(const char* label, std::size_t size) {
  FileDescriptor fd(::memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) throw errno_error("cannot create shared memory", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) {
    throw errno_error("cannot size shared memory", errno);
  }
  // A peer that shrank it would make everybody's next access a SIGBUS.
  ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return fd;
}

SharedHeap::SharedHeap(std::size_t size)
    : fd_(make_memory("dtrain-heap", size)), mapping_(fd_.get(), size), free_{{0, size}} {}

SharedHeap* SharedHeap::of_process() {
  static const bool made = [] {
    try {
      the_heap = new SharedHeap(kHeapSize);  // on purpose never deleted
    } catch (const Error&) {
      return false;
    }
    return true;
  }();
  static_cast<void>(made);
  return the_heap.load();
}

SharedHeap* SharedHeap::if_made() {
  return the_heap.load();
}

void* SharedHeap::allocate(std::size_t bytes) {
  const std::size_t unit = bytes >= kLarge ? kPage : kAlignment;
  const std::size_t size = round_up(std::max<std::size_t>(bytes, 1), unit);
  const std::lock_guard lock(mutex_);
  for (auto item = free_.begin(); item != free_.end(); ++item) {
    const auto [offset, space] = *item;
    const std::size_t begin = round_up(offset, unit);
    if (begin - offset + size > space) continue;
    free_.erase(item);
    if (begin > offset) free_.emplace(offset, begin - offset);
    if (begin + size < offset + space) free_.emplace(begin + size, offset + space - begin - size);
    allocated_.emplace(begin, size);
    used_ += size;
    return mapping_.data() + begin;
  }
  return nullptr;
}

void SharedHeap::free(void* pointer) {
  const std::lock_guard lock(mutex_);
  const auto found =
      allocated_.find(static_cast<std::size_t>(static_cast<std::byte*>(pointer) - mapping_.data()));
  if (found == allocated_.end()) return;
  auto [offset, size] = *found;
  allocated_.erase(found);
  used_ -= size;
  if (size >= kLarge) {
    ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                static_cast<off_t>(size));
  }
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + size) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  free_.emplace(offset, size);
}

bool SharedHeap::contains(const void* pointer) const {
  const auto* const byte = static_cast<const std::byte*>(pointer);
  return byte >= mapping_.data() && byte < mapping_.data() + mapping_.size();
}

std::optional<std::uint64_t> SharedHeap::offset_of(const void* pointer, std::size_t bytes) const {
  if (!contains(pointer)) return std::nullopt;
  const auto offset =
      static_cast<std::size_t>(static_cast<const std::byte*>(pointer) - mapping_.data());
  if (bytes > mapping_.size() - offset) return std::nullopt;
  return offset;
}

std::size_t SharedHeap::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

}  // namespace dtrain::train::comm
