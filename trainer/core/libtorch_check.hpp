#pragma once

// A program must be built with the LibTorch that the installed library was built with: another
// minor version has other classes, and would crash. The package files say which one that was.
#ifdef DTRAIN_LIBTORCH_MINOR
#include <torch/version.h>
#if TORCH_VERSION_MAJOR != DTRAIN_LIBTORCH_MAJOR || TORCH_VERSION_MINOR != DTRAIN_LIBTORCH_MINOR
#error \
    "this LibTorch is not of the version that dtrain-trainer was built with: pkg-config --variable=libtorch_version dtrain-trainer"
#endif
#endif
