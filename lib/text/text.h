// The text layer's public face: text to token ids and back, chat templates, stop strings.
#pragma once

#include "text/answer_reader.h"
#include "text/chat.h"
#include "text/detokenizer.h"
#include "text/stop.h"
#include "text/tokenizer.h"
