#pragma once

namespace dtrain::train {

// ATen's operations on this thread start no teams of threads from here on; other threads keep
// theirs. For threads that work beside the training: with N of them, each starting a team of as
// many threads as there are cores, those fight for the cores with the training's own. Cheap after
// the first call on a thread.
//
// at::set_num_threads(1) is not the way: it also sets what threads made later begin with.
void keep_to_one_thread();

}  // namespace dtrain::train
