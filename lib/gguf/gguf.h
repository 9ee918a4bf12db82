// GGUF model files: what another folder may include.
#pragma once

#include "gguf/file.h"
#include "gguf/header.h"
#include "gguf/types.h"
