#pragma once

#include <cstdint>
#include <deque>

#include "trainer/api/data_loader.hpp"

namespace dtrain::train {

// Of a stream: up to `window` batches in `ready`, the same number on every rank, of which at least
// one rank has not had its batches in this epoch. The others begin their parts anew. Returns how
// many; none at the epoch's end. Collective. Throws Error on every rank if a rank's part is empty.
std::int64_t fill_window(DataLoader::Pass& pass, std::deque<Batch>& ready, std::int64_t window,
                         Context& context);

}  // namespace dtrain::train
