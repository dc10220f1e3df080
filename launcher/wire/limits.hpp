#pragma once

#include <cstddef>

// Numbers that both ends of a connection go by.
namespace dtrain::wire {

inline constexpr std::size_t kFrameLimit = std::size_t{16} << 20;  // of a frame that is read

// Bytes of input for a command that a client of the head may have on their way (docs/api.md, Exec).
// Enough for a quick line to a far head; what is above is in the memory of head and node.
inline constexpr std::size_t kInputWindow = std::size_t{2} << 20;

}  // namespace dtrain::wire
