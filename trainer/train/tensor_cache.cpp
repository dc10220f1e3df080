#include "trainer/train/tensor_cache.hpp"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <deque>
#include <limits>
#include <list>
#include <mutex>
#include <new>
#include <unordered_map>

#include "trainer/core/environment.hpp"

namespace dtrain::train {
namespace {

constexpr std::size_t kAlignment = 64;
// Smaller ones are malloc's, which keeps them itself.
constexpr std::size_t kSmallest = std::size_t{128} << 10;
constexpr std::size_t kHuge = std::size_t{2} << 20;
constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 4;

// Lies before each tensor's data, so that an address is enough to free it.
struct alignas(kAlignment) Header {
  std::size_t block;  // bytes, this included; 0: from malloc
};
static_assert(sizeof(Header) == kAlignment);

// Eight sizes between a power of two and the next: an eighth is lost at most.
std::size_t block_size(std::size_t bytes) {
  const std::size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

class TensorCache {
 public:
  void* allocate(std::size_t bytes) {
    if (bytes > kMost) throw std::bad_alloc();
    const std::size_t whole = bytes + sizeof(Header);
    Header* const header = whole < kSmallest ? small(whole) : large(block_size(whole));
    return header + 1;
  }

  void free(void* data) {
    if (data == nullptr) return;
    Header* const header = static_cast<Header*>(data) - 1;
    if (header->block == 0) {
      std::free(header);
      return;
    }
    const std::lock_guard lock(mutex_);
    use_.in_use -= header->block;
    use_.kept += header->block;
    kept_.push_back(header);
    by_size_[header->block].push_back(std::prev(kept_.end()));
  }

  void trim() {
    const std::lock_guard lock(mutex_);
    while (!kept_.empty()) drop_oldest();
    most_ = use_.in_use;
  }

  TensorCacheUse use() {
    const std::lock_guard lock(mutex_);
    return use_;
  }

 private:
  static Header* small(std::size_t bytes) {
    void* memory = nullptr;
    if (::posix_memalign(&memory, kAlignment, bytes) != 0) throw std::bad_alloc();
    return new (memory) Header{0};
  }

  Header* large(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto& same = by_size_[bytes];
    Header* header = nullptr;
    if (!same.empty()) {  // the one freed last: it may still be in the processor's cache
      header = *same.back();
      kept_.erase(same.back());
      same.pop_back();
      use_.kept -= bytes;
    }
    use_.in_use += bytes;
    most_ = std::max(most_, use_.in_use);
    if (header != nullptr) return header;
    while (!kept_.empty() && use_.in_use + use_.kept > most_ + most_ / 2) drop_oldest();
    try {
      return map(bytes);
    } catch (const std::bad_alloc&) {
      use_.in_use -= bytes;
      throw;
    }
  }

  Header* map(std::size_t bytes) {
    void* memory = MAP_FAILED;
    while (memory == MAP_FAILED) {
      memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory != MAP_FAILED) break;
      if (kept_.empty()) throw std::bad_alloc();
      drop_oldest();
    }
    if (bytes >= kHuge) ::madvise(memory, bytes, MADV_HUGEPAGE);
    ++use_.mapped;
    return new (memory) Header{bytes};
  }

  void drop_oldest() {
    Header* const header = kept_.front();
    by_size_[header->block].pop_front();  // the oldest of its size
    kept_.pop_front();
    use_.kept -= header->block;
    ::munmap(header, header->block);
  }

  std::mutex mutex_;
  std::list<Header*> kept_;  // by the time that they were freed
  std::unordered_map<std::size_t, std::deque<std::list<Header*>::iterator>> by_size_;
  TensorCacheUse use_;
  std::size_t most_ = 0;  // bytes ever in use
};

// Never destroyed: tensors may outlive everything else.
TensorCache* cache = nullptr;

void free_memory(void* data) {
  cache->free(data);
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device cpu(c10::kCPU);
    if (bytes == 0) return {nullptr, cpu};
    void* memory = nullptr;
    try {
      memory = cache->allocate(bytes);
    } catch (const std::bad_alloc&) {
      TORCH_CHECK(false, "no memory for a tensor of ", bytes, " bytes");
    }
    return {memory, memory, &free_memory, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_memory; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
};

}  // namespace

void install_tensor_cache() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (process_variable("DTRAIN_TENSOR_CACHE") == "0") return;
    cache = new TensorCache;
    static Allocator allocator;
    c10::SetCPUAllocator(&allocator, 50);
  });
}

void trim_tensor_cache() {
  if (cache != nullptr) cache->trim();
}

TensorCacheUse tensor_cache_use() {
  return cache == nullptr ? TensorCacheUse{} : cache->use();
}

}  // namespace dtrain::train
