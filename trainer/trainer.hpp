#pragma once

// All of the training library: `#include "trainer/trainer.hpp"`, namespace dtrain::train. Each
// header beneath can be included alone and is the documentation of what it declares.

#include "trainer/api/callbacks.hpp"
#include "trainer/api/creator_trainer.hpp"
#include "trainer/api/data_loader.hpp"
#include "trainer/api/functions.hpp"
#include "trainer/api/module.hpp"
#include "trainer/api/torch_trainer.hpp"
#include "trainer/api/trainer.hpp"
#include "trainer/core/error.hpp"
#include "trainer/core/run.hpp"
#include "trainer/data/open.hpp"
#include "trainer/data/random.hpp"
#include "trainer/data/stream_loader.hpp"
#include "trainer/models/mlp.hpp"
#include "trainer/models/resnet.hpp"
#include "trainer/models/vision_transformer.hpp"
#include "trainer/schedule/schedule.hpp"
#include "trainer/train/batch_norm.hpp"
#include "trainer/train/export.hpp"
#include "trainer/train/gradients.hpp"
#include "trainer/train/measures.hpp"
#include "trainer/train/objects.hpp"
#include "trainer/train/profiler.hpp"
#include "trainer/train/zero.hpp"
